// How a tier is tried again after it has failed: a small file is written, read back and unlinked,
// by plain calls and not by its lanes, which may be full of what does not come back. Where that
// fails and another file system is mounted at the root's place by now, that one is tried.
#pragma once

#include "absl/status/status.h"
#include "server/base/unique_fd.h"
#include "server/tier/tier.h"

namespace kvstream::tier {

// OK, or what failed. `renewed` is the root of another file system that went well in the place of
// the one that `root_fd` is of; else it stays invalid. May block for as long as the file system
// does, and touches nothing but what it is given. Of the options: root, mount_point, follows_mount.
absl::Status Recheck(const UniqueFd& root_fd, const TierOptions& options, bool direct,
                     UniqueFd* renewed);

}  // namespace kvstream::tier
