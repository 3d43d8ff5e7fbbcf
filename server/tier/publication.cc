#include "server/tier/publication.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "server/tier/io_queue.h"
#include "server/tier/paths.h"

namespace kvstream::tier {

Publication::Publication(int root_fd, std::string path, bool direct, bool fsync)
    : root_fd_(root_fd),
      path_(std::move(path)),
      direct_(direct),
      fsync_(fsync),
      temporary_(RandomSibling(path_, ".tmp-")) {}

Publication::~Publication() {
  // A network file system keeps a name that is unlinked while it is open.
  fd_.Reset();
  (void)unlinkat(root_fd_, temporary_.c_str(), 0);
}

int Publication::Begin() {
  if (const int error = MakeFolders(root_fd_, temporary_); error != 0) return error;
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  fd_.Reset(
      openat(root_fd_, temporary_.c_str(), flags | (direct_ ? O_DIRECT : 0), IoQueue::kFileMode));
  return fd_.valid() ? 0 : errno;
}

int Publication::Append(std::span<const std::byte> blocks) {
  while (!blocks.empty()) {
    const ssize_t n = write(fd_.get(), blocks.data(), blocks.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    blocks = blocks.subspan(static_cast<size_t>(n));
  }
  return 0;
}

int Publication::Finish() {
  if (fsync_ && fdatasync(fd_.get()) != 0) return errno;
  // Network file systems tell of failed writes here.
  return close(fd_.Release()) == 0 ? 0 : errno;
}

int Publication::Link() {
  if (linkat(root_fd_, temporary_.c_str(), root_fd_, path_.c_str(), 0) != 0) return errno;
  (void)unlinkat(root_fd_, temporary_.c_str(), 0);
  return 0;
}

}  // namespace kvstream::tier
