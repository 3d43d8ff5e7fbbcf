#include "server/tier/judge.h"

#include <fcntl.h>

namespace kvstream::tier {

UniqueFd OpenToJudge(int root_fd, const std::string& path, bool direct) {
  // Nonblocking for what may have taken the file's place.
  const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  UniqueFd fd(openat(root_fd, path.c_str(), flags | (direct ? O_DIRECT : 0)));
  if (fd.valid() && !direct) (void)posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  return fd;
}

}  // namespace kvstream::tier
