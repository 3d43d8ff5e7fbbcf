#include "client/handoff_connection.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "client/status_convert.h"

namespace kvstream {
namespace {

constexpr size_t kPacketBytesMax = 4096;
// Between attempts to receive on a socket that fails without having ended.
constexpr int kRetryMs = 10;
// An infinite one has no sum with a time.
constexpr absl::Duration kTimeoutMax = absl::Hours(24 * 365);

// Waits for `fd` to be readable. False at the deadline.
bool WaitReadable(int fd, std::chrono::steady_clock::time_point deadline) {
  while (true) {
    const int64_t left_ms =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now())
            .count();
    pollfd entry{fd, POLLIN, 0};
    const int n = poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left_ms, 0, 60'000)));
    if (n > 0) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
  }
}

// 0, or the errno.
int SendPacket(int socket, std::string& bytes, int fd) {
  iovec iov{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  while (sendmsg(socket, &message, MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

// kFailed leaves the errno.
enum class Received { kAnswer, kNonsense, kFailed, kEnd };

Received ReceivePacket(int socket, HandoffConnection::Answer* answer) {
  std::array<char, kPacketBytesMax> bytes;
  iovec iov{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t n;
  do {
    n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  // A daemon that closes, or dies with requests unread. No other failure says that it has let go of
  // the memory.
  if (n == 0 || (n < 0 && errno == ECONNRESET)) return Received::kEnd;
  if (n < 0) return Received::kFailed;
  const cmsghdr* c = CMSG_FIRSTHDR(&message);
  if (c != nullptr && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
    answer->fd = OwnedFd(fd);
  }
  const bool whole = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  return whole && answer->reply.ParseFromArray(bytes.data(), static_cast<int>(n))
             ? Received::kAnswer
             : Received::kNonsense;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HandoffConnection>> HandoffConnection::Connect(
    const std::string& path, absl::Duration timeout) {
  const auto deadline =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(std::min(timeout, kTimeoutMax));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError("connect to " + path + ": the path is longer than " +
                                      std::to_string(sizeof address.sun_path - 1) + " bytes");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  OwnedFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  OwnedFd stop(eventfd(0, EFD_CLOEXEC));
  if (!socket.valid() || !stop.valid()) return FromErrno(errno, "connect to", path);
  // Bounds connect (a full backlog) and every send (a daemon that does not read).
  const timeval send_timeout = absl::ToTimeval(timeout);
  if (setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &send_timeout, sizeof send_timeout) != 0) {
    return FromErrno(errno, "set the time limit of", path);
  }
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return FromErrno(errno, "connect to", path);
  }
  std::unique_ptr<HandoffConnection> connection(
      new HandoffConnection(std::move(socket), std::move(stop), path));
  if (auto s = connection->TakeWelcome(deadline); !s.ok()) return s;
  return connection;
}

HandoffConnection::HandoffConnection(OwnedFd socket, OwnedFd stop, std::string path)
    : socket_(std::move(socket)), stop_(std::move(stop)), path_(std::move(path)) {}

void HandoffConnection::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof one);
  thread_.join();
}

absl::Status HandoffConnection::TakeWelcome(std::chrono::steady_clock::time_point deadline) {
  if (!WaitReadable(socket_.get(), deadline)) {
    return absl::DeadlineExceededError("connect to " + path_ + ": no welcome from the daemon");
  }
  Answer answer;
  switch (ReceivePacket(socket_.get(), &answer)) {
    case Received::kEnd:
      return absl::UnavailableError("connect to " + path_ + ": the daemon closed the connection");
    case Received::kFailed:
      return FromErrno(errno, "receive the welcome of", path_);
    case Received::kNonsense:
      return absl::FailedPreconditionError("connect to " + path_ + ": not a handoff socket");
    case Received::kAnswer:
      break;
  }
  if (answer.reply.code() != v1::OK) {
    return FromCode(answer.reply.code(), "connect to " + path_, answer.reply.message());
  }
  if (!answer.reply.has_welcome()) {
    return absl::FailedPreconditionError("connect to " + path_ +
                                         ": the first packet is no welcome");
  }
  welcome_ = answer.reply.welcome();
  return absl::OkStatus();
}

void HandoffConnection::Start(std::function<void()> on_end) {
  thread_ = std::thread([this, done = std::move(on_end)] { Run(done); });
}

absl::StatusOr<HandoffConnection::Answer> HandoffConnection::Call(v1::HandoffRequest request,
                                                                  int fd, absl::Duration timeout) {
  Waiting waiting;
  {
    absl::MutexLock lock(&mu_);
    request.set_request_id(++last_request_id_);
    waiting_[request.request_id()] = &waiting;
  }
  std::string bytes = request.SerializeAsString();
  const int error = SendPacket(socket_.get(), bytes, fd);
  absl::MutexLock lock(&mu_);
  if (error == 0) {
    const auto settled = [&] {
      mu_.AssertReaderHeld();
      return waiting.answered || closed_;
    };
    changed_.Wait(&mu_, timeout, settled);
  }
  waiting_.erase(request.request_id());
  if (waiting.answered) {
    if (waiting.answer.reply.code() == v1::OK) return std::move(waiting.answer);
    return FromCode(waiting.answer.reply.code(), "hand off by " + path_,
                    waiting.answer.reply.message());
  }
  if (error != 0) return FromErrno(error, "send on", path_);
  if (closed_) {
    return absl::UnavailableError("hand off by " + path_ + ": the daemon closed the connection");
  }
  return absl::DeadlineExceededError("hand off by " + path_ + ": no answer from the daemon");
}

void HandoffConnection::HalfClose() { shutdown(socket_.get(), SHUT_WR); }

bool HandoffConnection::WaitClosed(absl::Duration timeout) const {
  absl::MutexLock lock(&mu_);
  return changed_.Wait(&mu_, timeout, [this] {
    mu_.AssertReaderHeld();
    return closed_;
  });
}

void HandoffConnection::Run(const std::function<void()>& on_end) {
  while (true) {
    std::array<pollfd, 2> entries{pollfd{socket_.get(), POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0}};
    if (poll(entries.data(), entries.size(), -1) < 0) continue;
    if (entries[1].revents != 0) return;
    Answer answer;
    switch (ReceivePacket(socket_.get(), &answer)) {
      case Received::kAnswer:
        Deliver(std::move(answer));
        continue;
      case Received::kNonsense:
        // Not a daemon of this protocol. Only its end of file says that memory is free, so the
        // session is given up and the reading goes on.
        HalfClose();
        continue;
      case Received::kFailed:
        HalfClose();
        if (poll(&entries[1], 1, kRetryMs) > 0) return;
        continue;
      case Received::kEnd:
        break;
    }
    on_end();
    absl::MutexLock lock(&mu_);
    closed_ = true;
    changed_.NotifyAll();
    return;
  }
}

void HandoffConnection::Deliver(Answer answer) {
  absl::MutexLock lock(&mu_);
  const auto found = waiting_.find(answer.reply.request_id());
  // Nobody waits any more: the answer and its descriptor are dropped.
  if (found == waiting_.end()) return;
  found->second->answer = std::move(answer);
  found->second->answered = true;
  changed_.NotifyAll();
}

}  // namespace kvstream
