#include "server/tier/recheck.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "server/base/errno_status.h"
#include "server/base/random.h"
#include "server/base/types.h"
#include "server/tier/mount.h"
#include "server/tier/paths.h"

namespace kvstream::tier {
namespace {

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// Room for a chunk: what is nearly full takes a block and fails the next write.
constexpr off_t kRoomBytes = 16 << 20;

// 0 or an errno; what was read back is compared by the caller.
int WriteAndRead(int fd, std::byte* memory) {
  if (fallocate(fd, 0, 0, kRoomBytes) != 0 && errno != EOPNOTSUPP) return errno;
  const ssize_t written = pwrite(fd, memory, kBlockBytes, 0);
  if (written != kBlockBytes) return written < 0 ? errno : ENOSPC;
  if (fdatasync(fd) != 0) return errno;
  // Where I/O is buffered: else the page cache answers for the disk.
  (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  const ssize_t read = pread(fd, memory + kBlockBytes, kBlockBytes, 0);
  if (read != kBlockBytes) return read < 0 ? errno : EIO;
  return 0;
}

absl::Status TryFile(int root_fd, const std::string& root, bool direct) {
  const std::string path = RandomSibling("v1/", ".probe-");
  // Someone may have emptied it to repair it.
  if (const int error = MakeFolders(root_fd, "v1/"); error != 0) {
    return ErrnoStatus(error, "make folder", root + "/v1");
  }
  const std::string where = root + "/" + path;
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | (direct ? O_DIRECT : 0);
  const UniqueFd fd(openat(root_fd, path.c_str(), flags, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, "make", where);
  const std::unique_ptr<std::byte, Free> memory(
      static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, 2 * kBlockBytes)));
  std::memset(memory.get(), 0, 2 * kBlockBytes);
  const auto random = RandomBytes16();
  std::memcpy(memory.get(), random.data(), random.size());
  const int error = WriteAndRead(fd.get(), memory.get());
  const int unlinked = unlinkat(root_fd, path.c_str(), 0) == 0 ? 0 : errno;
  if (error != 0) return ErrnoStatus(error, "write and read", where);
  if (unlinked != 0) return ErrnoStatus(unlinked, "unlink", where);
  if (std::memcmp(memory.get(), memory.get() + kBlockBytes, kBlockBytes) != 0) {
    return absl::DataLossError("read " + where + ": other bytes than were written");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Recheck(const UniqueFd& root_fd, const TierOptions& options, bool direct,
                     UniqueFd* renewed) {
  absl::Status status = TryFile(root_fd.get(), options.root, direct);
  if (status.ok()) return status;
  UniqueFd named(open(options.root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat here {};
  struct stat opened {};
  if (!named.valid() || fstat(named.get(), &here) != 0 ||
      (fstat(root_fd.get(), &opened) == 0 && here.st_dev == opened.st_dev)) {
    return status;
  }
  const std::string failed(status.message());
  if (!options.follows_mount) {
    return absl::FailedPreconditionError(failed +
                                         "; another file system is mounted there by now: restart");
  }
  status = CheckMounted(options.mount_point, here.st_dev, options.root);
  if (status.ok()) status = TryFile(named.get(), options.root, direct);
  if (status.ok()) *renewed = std::move(named);
  return status.ok()
             ? status
             : absl::Status(status.code(),
                            failed + "; of what is there by now: " + std::string(status.message()));
}

}  // namespace kvstream::tier
