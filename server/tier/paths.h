// Names below a tier's root that are not chunks, and the folders that chunks lie in.
#pragma once

#include <string>
#include <string_view>

namespace kvstream::tier {

// A name that nobody else has chosen, in the folder of `path`: `prefix` and 32 hex digits.
std::string RandomSibling(std::string_view path, std::string_view prefix);

// Makes the folders of `path` below `root_fd`; those that exist are fine. Returns 0 or an errno.
int MakeFolders(int root_fd, const std::string& path);

}  // namespace kvstream::tier
