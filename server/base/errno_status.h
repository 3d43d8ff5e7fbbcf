// The one place where an errno becomes a Status of the closed vocabulary.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace kvstream {

// "<operation> <object>: <strerror>". ENOENT is NOT_FOUND; ENOSPC, EDQUOT, EMFILE, ENFILE and
// ENOMEM are RESOURCE_EXHAUSTED; EEXIST is ALREADY_EXISTS (an answer inside the daemon, never sent
// to a client); EACCES, EPERM and EROFS are PERMISSION_DENIED; EINVAL is INVALID_ARGUMENT; every
// other is UNAVAILABLE. REQUIRES: error > 0.
absl::Status ErrnoStatus(int error, std::string_view operation, std::string_view object);

}  // namespace kvstream
