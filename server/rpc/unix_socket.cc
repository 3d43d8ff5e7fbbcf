#include "server/rpc/unix_socket.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "server/base/errno_status.h"

namespace kvstream::rpc {
namespace {

constexpr gid_t kKeepGroup = static_cast<gid_t>(-1);
constexpr int kBacklog = 128;

absl::Status LiveListener(const std::string& path) {
  return absl::FailedPreconditionError("listen on " + path + ": another process listens on " +
                                       path);
}

// REQUIRES: the path fits.
sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::StatusOr<gid_t> FindGroup(const std::string& name) {
  if (name.empty()) return kKeepGroup;
  group entry;
  group* found = nullptr;
  std::vector<char> buffer(size_t{64} << 10);
  const int error = getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (error != 0) return ErrnoStatus(error, "look up group", name);
  if (found == nullptr) return absl::NotFoundError("look up group " + name + ": no such group");
  return entry.gr_gid;
}

absl::StatusOr<UniqueFd> Lock(const std::string& path) {
  const std::string lock_path = path + ".lock";
  UniqueFd fd(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, "open", lock_path);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno == EWOULDBLOCK) return LiveListener(path);
  return ErrnoStatus(errno, "lock", lock_path);
}

// Whether a process that does not know the lock listens there, whatever the socket's type.
absl::Status RemoveIfStale(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, "stat", path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError("listen on " + path + ": a file that is not a socket");
  }
  UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!probe.valid()) return ErrnoStatus(errno, "make a socket to probe", path);
  const sockaddr_un address = AddressOf(path);
  const int connected =
      connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  // A full backlog and another socket type are signs of life too.
  if (connected == 0 || errno == EAGAIN || errno == EPROTOTYPE) return LiveListener(path);
  if (errno != ECONNREFUSED) return ErrnoStatus(errno, "probe", path);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, "unlink", path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UnixSocketPath> UnixSocketPath::Take(const UnixSocketOptions& options) {
  const size_t bytes_max = sizeof(sockaddr_un::sun_path) - 1;
  if (options.path.empty() || options.path.size() > bytes_max) {
    return absl::InvalidArgumentError("listen on " + options.path + ": a path of " +
                                      std::to_string(options.path.size()) +
                                      " bytes, must be 1 .. " + std::to_string(bytes_max));
  }
  auto group = FindGroup(options.group);
  if (!group.ok()) return group.status();
  auto lock = Lock(options.path);
  if (!lock.ok()) return lock.status();
  if (auto s = RemoveIfStale(options.path); !s.ok()) return s;
  return UnixSocketPath(options, *group, *std::move(lock));
}

void UnixSocketPath::Release() {
  if (!lock_.valid()) return;
  unlink(options_.path.c_str());
  lock_.Reset();
}

absl::Status UnixSocketPath::Publish() const {
  // The mode last: until then nobody but the owner connects.
  if (group_ != kKeepGroup && chown(path().c_str(), static_cast<uid_t>(-1), group_) != 0) {
    return ErrnoStatus(errno, "set the group of", path());
  }
  if (chmod(path().c_str(), options_.mode) != 0)
    return ErrnoStatus(errno, "set the mode of", path());
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> ListenSeqpacket(const UnixSocketPath& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "make the socket", path.path());
  const sockaddr_un address = AddressOf(path.path());
  {
    PrivateUmask umask;
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return ErrnoStatus(errno, "bind", path.path());
    }
  }
  if (listen(fd.get(), kBacklog) != 0) return ErrnoStatus(errno, "listen on", path.path());
  if (auto s = path.Publish(); !s.ok()) return s;
  return fd;
}

PrivateUmask::PrivateUmask() : before_(umask(0077)) {}

PrivateUmask::~PrivateUmask() { umask(before_); }

}  // namespace kvstream::rpc
