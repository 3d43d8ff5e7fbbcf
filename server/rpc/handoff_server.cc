#include "server/rpc/handoff_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "server/base/check.h"
#include "server/base/clock.h"
#include "server/base/errno_status.h"
#include "server/base/logging.h"
#include "server/base/random.h"
#include "server/rpc/encode.h"
#include "server/rpc/status_convert.h"

namespace kvstream::rpc {
namespace {

// Tags of epoll events; every other is a session's number.
constexpr uint64_t kListenerTag = 0;
constexpr uint64_t kWakeTag = std::numeric_limits<uint64_t>::max();
// A client's share of a turn; more packets wait for the next one.
constexpr int kPacketsPerTurn = 16;
constexpr int kAcceptRetryMs = 100;

std::string MakeToken() {
  const auto bytes = RandomBytes16();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void LogPeer(SessionId session, int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return;
  spdlog::debug("handoff connected session={} pid={} uid={}", session.value, peer.pid, peer.uid);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HandoffServer>> HandoffServer::Start(const HandoffOptions& options,
                                                                    engine::EventPoster* poster,
                                                                    RpcStats* stats) {
  auto path = UnixSocketPath::Take(options.socket);
  if (!path.ok()) return path.status();
  std::unique_ptr<HandoffServer> server(
      new HandoffServer(options, *std::move(path), poster, stats));
  if (auto s = server->Listen(); !s.ok()) return s;
  server->thread_ = std::thread([s = server.get()] { s->Run(); });
  return server;
}

HandoffServer::HandoffServer(const HandoffOptions& options, UnixSocketPath path,
                             engine::EventPoster* poster, RpcStats* stats)
    : options_(options), path_(std::move(path)), poster_(*poster), stats_(*stats) {}

HandoffServer::~HandoffServer() {
  if (!thread_.joinable()) return;
  SendErrand(Stop{});
  thread_.join();
}

absl::Status HandoffServer::Listen() {
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return ErrnoStatus(errno, "make an epoll for", path_.path());
  wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return ErrnoStatus(errno, "make an eventfd for", path_.path());
  auto listener = ListenSeqpacket(path_);
  if (!listener.ok()) return listener.status();
  listener_ = *std::move(listener);
  Watch(EPOLL_CTL_ADD, wake_.get(), EPOLLIN, kWakeTag);
  Watch(EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kListenerTag);
  return absl::OkStatus();
}

void HandoffServer::Close(SessionId session) { SendErrand(CloseSession{session}); }

void HandoffServer::SendErrand(Errand errand) {
  {
    absl::MutexLock lock(&mu_);
    errands_.push_back(std::move(errand));
  }
  // A full counter would wake the thread as well.
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

void HandoffServer::Run() {
  std::array<epoll_event, 64> events;
  while (true) {
    const int n =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), WaitMs());
    KV_CHECK(n >= 0 || errno == EINTR);
    if (std::exchange(accept_paused_, false)) {
      stats_.accept_paused.Set(0);
      Watch(EPOLL_CTL_MOD, listener_.get(), EPOLLIN, kListenerTag);
    }
    bool stay = true;
    for (int i = 0; i < n; ++i) {
      const uint64_t tag = events[i].data.u64;
      if (tag == kListenerTag) {
        Accept();
      } else if (tag == kWakeTag) {
        stay = RunErrands();
      } else if (auto found = connections_.find(SessionId{tag}); found != connections_.end()) {
        OnReady(*found->second, events[i].events);
      }
    }
    if (!stay) return;
    EndSilent();
  }
}

int HandoffServer::WaitMs() const {
  if (hello_due_.empty()) return accept_paused_ ? kAcceptRetryMs : -1;
  // Rounded up, so that what is due then is due.
  const TimeNs left = hello_due_.begin()->first - Now() + kMillisecond - 1;
  const TimeNs most = accept_paused_ ? kAcceptRetryMs : std::numeric_limits<int>::max();
  return static_cast<int>(std::clamp<TimeNs>(left / kMillisecond, 0, most));
}

// A connection whose token was used has a stream, or had one that the engine ended.
void HandoffServer::EndSilent() {
  const TimeNs now = Now();
  while (!hello_due_.empty() && hello_due_.begin()->first <= now) {
    Connection& connection = *connections_.at(hello_due_.begin()->second);
    hello_due_.erase(hello_due_.begin());
    if (!tokens_.RemoveUnused(connection.token)) continue;
    CountAndWarnOnce(stats_.hellos_missed,
                     "a handoff connection has said no hello in time and was ended");
    Reply(connection,
          absl::DeadlineExceededError("open session: no stream has said hello within " +
                                      std::to_string(options_.limits.hello_max / kMillisecond) +
                                      " ms"),
          v1::HandoffReply(), UniqueFd());
    Lose(connection);
  }
}

bool HandoffServer::RunErrands() {
  uint64_t count;
  [[maybe_unused]] const ssize_t drained = read(wake_.get(), &count, sizeof count);
  std::vector<Errand> errands;
  {
    absl::MutexLock lock(&mu_);
    errands.swap(errands_);
  }
  bool stay = true;
  for (const Errand& errand : errands) {
    if (const auto* close = std::get_if<CloseSession>(&errand)) {
      const auto found = connections_.find(close->session);
      if (found == connections_.end()) continue;
      tokens_.Remove(found->second->token);
      hello_due_.erase({found->second->hello_due, close->session});
      connections_.erase(found);
    } else if (const auto* answer = std::get_if<DropAnswered>(&errand)) {
      OnDropAnswered(*answer);
    } else {
      stay = false;
    }
  }
  return stay;
}

void HandoffServer::Watch(int operation, int fd, uint32_t events, uint64_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  KV_CHECK(epoll_ctl(epoll_.get(), operation, fd, &event) == 0);
}

void HandoffServer::Accept() {
  while (true) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      // A client that gave up while it waited is no reason to stop accepting.
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) PauseAccept(errno);
      return;
    }
    accept_failed_ = false;
    Welcome(std::move(fd));
  }
}

// Out of descriptors or memory: the waiting client would wake the thread without end.
void HandoffServer::PauseAccept(int error) {
  Watch(EPOLL_CTL_MOD, listener_.get(), 0, kListenerTag);
  accept_paused_ = true;
  stats_.accept_failures.Add();
  stats_.accept_paused.Set(1);
  if (!std::exchange(accept_failed_, true)) {
    spdlog::warn("handoff accept failing, retried every {} ms: {}", kAcceptRetryMs,
                 std::string(ErrnoStatus(error, "accept on", path_.path()).message()));
  }
}

void HandoffServer::Welcome(UniqueFd fd) {
  if (connections_.size() >= options_.limits.sessions_max) {
    CountAndWarnOnce(stats_.sessions_refused, "a session was refused, too many are open");
    v1::HandoffReply refusal;
    refusal.set_code(v1::RESOURCE_EXHAUSTED);
    refusal.set_message("open session: " + std::to_string(connections_.size()) +
                        " sessions are open already");
    // Its only packet: whether it arrives or not, the connection closes.
    [[maybe_unused]] const bool sent =
        PacketSocket(std::move(fd)).Send({refusal.SerializeAsString(), UniqueFd()});
    return;
  }
  const SessionId session = NewSessionId();
  LogPeer(session, fd.get());
  auto owned = std::make_unique<Connection>(session, MakeToken(), std::move(fd));
  Connection& connection = *owned;
  connections_[session] = std::move(owned);
  connection.hello_due = Now() + options_.limits.hello_max;
  hello_due_.emplace(connection.hello_due, session);
  Watch(EPOLL_CTL_ADD, connection.socket.fd(), EPOLLIN, session.value);
  tokens_.Add(connection.token, session);
  // Before the token leaves, so that the session exists when its stream opens.
  poster_.Post(engine::SessionConnected{session});
  v1::HandoffReply reply;
  v1::Welcome* welcome = reply.mutable_welcome();
  welcome->set_token(connection.token);
  welcome->set_boot_id(RawBytes(options_.boot_id));
  welcome->set_protocol_version(kProtocolVersion);
  Reply(connection, absl::OkStatus(), std::move(reply), UniqueFd());
}

// Unary calls name a session by its number alone: nobody may guess another one's.
SessionId HandoffServer::NewSessionId() const {
  while (true) {
    const auto bytes = RandomBytes16();
    uint64_t number = 0;
    std::memcpy(&number, bytes.data(), sizeof number);
    number >>= 1;  // Some languages have no other 64 bits.
    if (number != kListenerTag && !connections_.contains(SessionId{number})) {
      return SessionId{number};
    }
  }
}

void HandoffServer::OnReady(Connection& connection, uint32_t events) {
  if (connection.gone) return;  // Lost by an errand of this same turn.
  if ((events & EPOLLOUT) != 0) {
    if (!connection.socket.SendQueued()) return Lose(connection);
    if (!connection.socket.has_queued()) {
      connection.wants_write = false;
      Watch(EPOLL_CTL_MOD, connection.socket.fd(), EPOLLIN, connection.session.value);
    }
  }
  for (int i = 0; i < kPacketsPerTurn && !connection.gone; ++i) {
    PacketSocket::Packet packet;
    switch (connection.socket.Receive(&packet)) {
      case PacketSocket::Received::kPacket:
        Serve(connection, std::move(packet));
        break;
      case PacketSocket::Received::kNothing:
        return;
      case PacketSocket::Received::kEnd:
        return Lose(connection);
    }
  }
}

void HandoffServer::Lose(Connection& connection) {
  if (std::exchange(connection.gone, true)) return;
  tokens_.Remove(connection.token);
  hello_due_.erase({connection.hello_due, connection.session});
  connection.socket.DropQueued();
  Watch(EPOLL_CTL_DEL, connection.socket.fd(), 0, 0);
  poster_.Post(engine::HandoffClosed{connection.session});
}

void HandoffServer::Reply(Connection& connection, const absl::Status& status,
                          v1::HandoffReply reply, UniqueFd passed) {
  reply.set_code(ToCode(status.code()));
  reply.set_message(std::string(status.message()));
  if (!connection.socket.Send({reply.SerializeAsString(), std::move(passed)})) {
    return Lose(connection);
  }
  if (connection.socket.has_queued() && !std::exchange(connection.wants_write, true)) {
    Watch(EPOLL_CTL_MOD, connection.socket.fd(), EPOLLIN | EPOLLOUT, connection.session.value);
  }
}

}  // namespace kvstream::rpc
