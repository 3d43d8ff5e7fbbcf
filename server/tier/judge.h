// How a file is opened by who is to judge it: what he reads shall be what the storage holds, and
// not what a cache kept of it. A page in the cache may be sound where the disk is not, and the
// other way round.
//
// Stateless; any thread; blocks.
#pragma once

#include <string>

#include "server/base/unique_fd.h"

namespace kvstream::tier {

// For reading, past the caches: `direct` where the tier's files are opened for direct I/O,
// otherwise with what the page cache has of the file dropped, but for what is not written back yet.
// Links are not followed, and no open waits for a peer or for a lease to be given back. Invalid
// with errno set.
UniqueFd OpenToJudge(int root_fd, const std::string& path, bool direct);

}  // namespace kvstream::tier
