#include "server/tier/mount.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>

#include "server/base/errno_status.h"

namespace kvstream::tier {

absl::Status CheckMounted(const std::string& mount_point, dev_t device, const std::string& root) {
  struct statx mounted {};
  if (statx(AT_FDCWD, mount_point.c_str(), 0, STATX_BASIC_STATS, &mounted) != 0) {
    return ErrnoStatus(errno, "look at mount point", mount_point);
  }
  if ((mounted.stx_attributes & STATX_ATTR_MOUNT_ROOT) == 0) {
    return absl::FailedPreconditionError("nothing is mounted at " + mount_point);
  }
  if (makedev(mounted.stx_dev_major, mounted.stx_dev_minor) != device) {
    return absl::FailedPreconditionError("tier root " + root +
                                         " is not on the file system mounted at " + mount_point);
  }
  return absl::OkStatus();
}

}  // namespace kvstream::tier
