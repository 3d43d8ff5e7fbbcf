// How a tier is tried again after it has failed: a small file is written, read back and unlinked,
// by plain calls and not by its lanes, which may be full of what does not come back.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "server/base/unique_fd.h"

namespace kvstream::tier {

// OK, or what failed. Says so where `root` is another file system by now than the one that the
// descriptor is of. May block for as long as the file system does, and touches nothing but what it
// is given.
absl::Status Recheck(const UniqueFd& root_fd, const std::string& root, bool direct);

}  // namespace kvstream::tier
