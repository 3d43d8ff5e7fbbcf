// The path of a unix socket that this process listens on: taken over from a dead process, refused
// while another one lives, and shown to its users only with the right mode and group.
//
// Two daemons cannot race for a path: whoever holds the lock on "<path>.lock" owns it, and the
// kernel drops the lock with the process. The lock file stays behind, because unlinking it would
// let two processes lock two files of one name.
//
// Thread rule: none of its own, but binding changes the process's umask for a moment (to 0077, so
// that nobody connects before mode and group are set): listen before other threads make files that
// others must read.
// Ownership: a UnixSocketPath owns the lock and the socket's name. Errors name the path.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/unique_fd.h"

namespace kvstream::rpc {

struct UnixSocketOptions {
  std::string path;
  // Permission bits.
  uint32_t mode = 0660;
  // Empty: the process's own.
  std::string group;
};

class UnixSocketPath {
 public:
  // Takes the path. INVALID_ARGUMENT: too long for a socket. FAILED_PRECONDITION: another process
  // listens on it, or something else than a socket is there. NOT_FOUND: no such group. A socket
  // that nobody listens on is removed.
  static absl::StatusOr<UnixSocketPath> Take(const UnixSocketOptions& options);

  UnixSocketPath(UnixSocketPath&&) = default;
  UnixSocketPath& operator=(UnixSocketPath&&) = delete;
  ~UnixSocketPath() { Release(); }

  // Removes the socket's name and gives up the lock. Idempotent.
  void Release();

  // Sets group and mode. REQUIRES: the socket is bound.
  absl::Status Publish() const;

  const std::string& path() const { return options_.path; }

 private:
  UnixSocketPath(UnixSocketOptions options, gid_t group, UniqueFd lock)
      : options_(std::move(options)), group_(group), lock_(std::move(lock)) {}

  UnixSocketOptions options_;
  // (gid_t)-1: leave it.
  gid_t group_;
  UniqueFd lock_;
};

// Binds, publishes and listens for SOCK_SEQPACKET connections; non-blocking.
absl::StatusOr<UniqueFd> ListenSeqpacket(const UnixSocketPath& path);

// While it lives, files and sockets that the process makes are its user's alone.
class PrivateUmask {
 public:
  PrivateUmask();
  ~PrivateUmask();
  PrivateUmask(const PrivateUmask&) = delete;
  PrivateUmask& operator=(const PrivateUmask&) = delete;

 private:
  mode_t before_;
};

}  // namespace kvstream::rpc
