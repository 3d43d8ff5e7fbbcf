// Whether the file system that a tier is meant to be on is mounted: without it the same path is a
// plain folder of the node's own disk, which would fill up unseen.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"

namespace kvstream::tier {

// FAILED_PRECONDITION unless `mount_point` is the root of a mount of `device`, the st_dev of the
// folder that is named `root`. May block for as long as that file system does.
absl::Status CheckMounted(const std::string& mount_point, dev_t device, const std::string& root);

}  // namespace kvstream::tier
