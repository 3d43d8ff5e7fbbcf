#include "server/tier/direct_io.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>

#include "server/base/errno_status.h"
#include "server/base/unique_fd.h"
#include "server/tier/paths.h"

namespace kvstream::tier {
namespace {

struct FileSystem {
  int64_t magic;
  std::string_view name;
};

constexpr FileSystem kFileSystems[] = {{EXT4_SUPER_MAGIC, "ext4"},        {XFS_SUPER_MAGIC, "xfs"},
                                       {BTRFS_SUPER_MAGIC, "btrfs"},      {TMPFS_MAGIC, "tmpfs"},
                                       {FUSE_SUPER_MAGIC, "FUSE"},        {NFS_SUPER_MAGIC, "NFS"},
                                       {OVERLAYFS_SUPER_MAGIC, "overlay"}};

std::string FileSystemOf(int fd) {
  struct statfs stat;
  if (fstatfs(fd, &stat) != 0) return "its file system";
  for (const FileSystem& f : kFileSystems) {
    if (f.magic == static_cast<int64_t>(stat.f_type)) return std::string(f.name);
  }
  char name[48];
  std::snprintf(name, sizeof name, "file system 0x%llx",
                static_cast<unsigned long long>(stat.f_type));
  return name;
}

}  // namespace

absl::StatusOr<DirectIo> AskDirectIo(int root_fd, const std::string& root) {
  const std::string path = RandomSibling("v1/", ".probe-");
  const UniqueFd fd(
      openat(root_fd, path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, "make probe file", root + "/" + path);
  DirectIo told;
  told.file_system = FileSystemOf(fd.get());
#ifdef STATX_DIOALIGN
  struct statx stat {};
  if (statx(fd.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &stat) == 0) {
    told.known = (stat.stx_mask & STATX_DIOALIGN) != 0;
    // No alignment of offsets means no direct I/O.
    if (told.known && stat.stx_dio_offset_align != 0) {
      told.alignment = std::max(stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    }
  }
#endif
  if (unlinkat(root_fd, path.c_str(), 0) != 0) {
    return ErrnoStatus(errno, "unlink probe file", root + "/" + path);
  }
  return told;
}

}  // namespace kvstream::tier
