// The handoff socket: the real server on a socket in a folder of its own, and the input is what a
// client does with one connection: packets, with and without descriptors. Every request is answered
// once, what is handed over stays within the limits, and no descriptor is left in the end.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kvstream/v1/handoff.pb.h"
#include "server/base/check.h"
#include "server/base/unique_fd.h"
#include "server/rpc/handoff_server.h"
#include "tests/fuzz/input.h"

namespace kvstream::rpc {
namespace {

// So few that the server's queue of answers never fills.
constexpr int kStepsMax = 24;
constexpr size_t kPacketBytesMax = 4096;
constexpr uint64_t kBuffersMax = 3;
constexpr uint64_t kBufferBytesMax = 5 * 4096;
// How long to wait for what must come.
constexpr int kPatienceSeconds = 60;

size_t CountFds() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// Plays the engine for one session at a time: keeps what it is handed, and answers drops only when
// it is told to.
class OneSessionEngine final : public engine::EventPoster {
 public:
  void Post(engine::Event event) override {
    absl::MutexLock lock(&mu_);
    if (const auto* connected = std::get_if<engine::SessionConnected>(&event)) {
      session_ = connected->session;
      open_ = true;
    } else if (auto* buffer = std::get_if<engine::BufferAttached>(&event)) {
      KV_CHECK(open_ && buffer->session == session_ && buffer->memory->size() > 0);
      bytes_ += buffer->memory->size();
      KV_CHECK(buffers_.emplace(buffer->buffer_id, std::move(buffer->memory)).second);
      KV_CHECK(buffers_.size() <= kBuffersMax && bytes_ <= kBufferBytesMax);
    } else if (auto* memory = std::get_if<engine::DeviceMemoryAttached>(&event)) {
      KV_CHECK(open_ && memory->memory->fd.valid() && memory->memory->allocation_bytes > 0);
      device_memory_.push_back(std::move(memory->memory));
    } else if (auto* drop = std::get_if<engine::DropBuffer>(&event)) {
      KV_CHECK(open_ && drop->session == session_);
      drops_.push_back(std::move(*drop));
      ++drops_asked_;
    } else {
      KV_CHECK(open_ && std::get<engine::HandoffClosed>(event).session == session_);
      open_ = false;
    }
  }

  void AnswerDrops(bool in_use) {
    absl::MutexLock lock(&mu_);
    for (engine::DropBuffer& drop : drops_) {
      const auto found = buffers_.find(drop.buffer_id);
      if (found == buffers_.end()) {
        drop.reply(absl::NotFoundError("drop"));
      } else if (in_use) {
        drop.reply(absl::FailedPreconditionError("drop"));
      } else {
        bytes_ -= found->second->size();
        buffers_.erase(found);
        drop.reply(absl::OkStatus());
      }
    }
    drops_.clear();
  }

  void AwaitSession() {
    absl::MutexLock lock(&mu_);
    Await([this] { return open_; });
  }

  // Waits until there were so many drops in all.
  void AwaitDrops(size_t drops) {
    absl::MutexLock lock(&mu_);
    Await([this, drops] { return drops_asked_ == drops; });
  }

  // Waits until the client is gone, and lets go of all that it handed over.
  SessionId AwaitEnd() {
    absl::MutexLock lock(&mu_);
    Await([this] { return !open_; });
    buffers_.clear();
    device_memory_.clear();
    drops_.clear();
    drops_asked_ = 0;
    bytes_ = 0;
    return session_;
  }

 private:
  template <typename Predicate>
  void Await(const Predicate& reached) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    KV_CHECK(mu_.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(kPatienceSeconds)));
  }

  absl::Mutex mu_;
  SessionId session_ ABSL_GUARDED_BY(mu_);
  bool open_ ABSL_GUARDED_BY(mu_) = false;
  std::map<uint64_t, std::unique_ptr<memory::SealedMemory>> buffers_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::shared_ptr<const gpu::HandoffMemory>> device_memory_ ABSL_GUARDED_BY(mu_);
  std::vector<engine::DropBuffer> drops_ ABSL_GUARDED_BY(mu_);
  size_t drops_asked_ ABSL_GUARDED_BY(mu_) = 0;
};

class Rig {
 public:
  Rig() {
    std::string pattern = std::filesystem::temp_directory_path() / "kvstream-fuzz-XXXXXX";
    KV_CHECK(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    HandoffOptions options;
    options.socket.path = folder_ + "/handoff";
    options.limits.sessions_max = 2;
    options.limits.host_buffers_per_session_max = kBuffersMax;
    options.limits.host_buffer_bytes_per_session_max = kBufferBytesMax;
    options.limits.hello_max = 3600 * kSecond;
    auto server = HandoffServer::Start(options, &engine_, &stats_);
    KV_CHECK(server.ok());
    server_ = *std::move(server);
  }
  ~Rig() {
    server_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  OneSessionEngine& engine() { return engine_; }

  UniqueFd Connect() {
    UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = folder_ + "/handoff";
    KV_CHECK(path.size() < sizeof address.sun_path);
    std::memcpy(address.sun_path, path.data(), path.size());
    KV_CHECK(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    const timeval patience{.tv_sec = kPatienceSeconds, .tv_usec = 0};
    KV_CHECK(setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    engine_.AwaitSession();
    return fd;
  }

  // REQUIRES: the client has ended its requests.
  void EndSession() { server_->Close(engine_.AwaitEnd()); }

 private:
  std::string folder_;
  OneSessionEngine engine_;
  RpcStats stats_;
  std::unique_ptr<HandoffServer> server_;
};

// 0: sealed as it must be, 1: empty, 2: may shrink, 3: not writable.
UniqueFd MakeMemfd(uint32_t kind) {
  UniqueFd fd(memfd_create("kvstream-fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  KV_CHECK(fd.valid() && ftruncate(fd.get(), kind == 1 ? 0 : 5000) == 0);
  constexpr std::array kSeals = {F_SEAL_SHRINK, F_SEAL_SHRINK, F_SEAL_GROW,
                                 F_SEAL_SHRINK | F_SEAL_WRITE};
  KV_CHECK(fcntl(fd.get(), F_ADD_SEALS, kSeals[kind]) == 0);
  return fd;
}

// What rides on a packet: mostly nothing, or one memfd.
std::vector<UniqueFd> TakeFds(fuzz::Input& input) {
  std::vector<UniqueFd> fds;
  const uint32_t kind = input.Below(16);
  if (kind < 4) {
    fds.push_back(MakeMemfd(kind));
  } else if (kind == 4) {
    fds.emplace_back(open("/dev/null", O_RDWR | O_CLOEXEC));
  } else if (kind == 5) {
    fds.emplace_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  } else if (kind == 6) {
    for (uint32_t more = 2 + input.Below(40); more > 0; --more) {
      fds.emplace_back(open("/dev/zero", O_RDONLY | O_CLOEXEC));
    }
  }
  return fds;
}

std::string TakePacket(fuzz::Input& input) {
  v1::HandoffRequest request;
  request.set_request_id(input.Take<uint8_t>());
  switch (input.Below(6)) {
    case 0:
      request.mutable_create_host_buffer()->set_bytes(input.Take<uint16_t>());
      break;
    case 1:
      request.mutable_attach_host_buffer()->set_bytes(input.Take<uint16_t>());
      break;
    case 2:
      request.mutable_drop_host_buffer()->set_buffer_id(input.Below(8));
      break;
    case 3:
      request.mutable_attach_device_memory()->set_allocation_bytes(input.Take<uint16_t>());
      break;
    case 4:
      return input.Bytes(input.Take<uint8_t>());
    default:
      // A request of about the longest packet: field 15 is one that the server does not know.
      return std::string("\x7a\xf5\x1f", 3) + std::string(kPacketBytesMax - 11, 'x') +
             input.Bytes(input.Below(16));
  }
  return request.SerializeAsString();
}

// Whether the server answers this, rather than end the connection.
bool IsRequest(const std::string& bytes, v1::HandoffRequest* request) {
  return !bytes.empty() && bytes.size() <= kPacketBytesMax && request->ParseFromString(bytes);
}

void Send(const UniqueFd& peer, const std::string& bytes, const std::vector<UniqueFd>& fds) {
  iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * fds.size()));
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    for (size_t i = 0; i < fds.size(); ++i) {
      const int number = fds[i].get();
      std::memcpy(CMSG_DATA(c) + i * sizeof number, &number, sizeof number);
    }
  }
  KV_CHECK(sendmsg(peer.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

// Reads packets, at most `most` and until the server has closed the connection, and returns how
// many came. The first of all is the Welcome.
size_t Receive(const UniqueFd& peer, size_t most, bool welcome) {
  for (size_t packets = 0;; ++packets) {
    if (packets == most) return packets;
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
      n = recvmsg(peer.get(), &message, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);  // libFuzzer's alarm.
    if (n == 0) return packets;
    KV_CHECK(n > 0 && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0);
    UniqueFd fd;
    if (const cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr) {
      int number;
      std::memcpy(&number, CMSG_DATA(c), sizeof number);
      fd.Reset(number);
    }
    v1::HandoffReply reply;
    KV_CHECK(reply.ParseFromArray(bytes.data(), static_cast<int>(n)));
    KV_CHECK(reply.has_welcome() == (welcome && packets == 0));
    KV_CHECK(!reply.has_welcome() || reply.welcome().token().size() == 16);
    KV_CHECK(!fd.valid() || (reply.code() == v1::OK && reply.host_buffer().bytes() > 0));
  }
}

void Run(Rig& rig, fuzz::Input input) {
  const size_t fds_before = CountFds();
  {
    const UniqueFd peer = rig.Connect();
    const bool patient = input.Below(4) != 0;
    size_t requests = 0;
    size_t drops = 0;
    bool answered = true;
    for (int step = 0; answered && step < kStepsMax && !input.empty(); ++step) {
      const uint32_t kind = input.Below(8);
      if (kind < 2) rig.engine().AnswerDrops(kind == 0);
      const std::vector<UniqueFd> fds = TakeFds(input);
      const std::string bytes = TakePacket(input);
      Send(peer, bytes, fds);
      v1::HandoffRequest request;
      answered = IsRequest(bytes, &request);
      requests += answered ? 1 : 0;
      drops += answered && request.has_drop_host_buffer() ? 1 : 0;
    }
    size_t replies = 0;
    if (answered && patient) {
      rig.engine().AwaitDrops(drops);
      rig.engine().AnswerDrops(false);
      replies = Receive(peer, 1 + requests, true);
      KV_CHECK(replies == 1 + requests);
    }
    KV_CHECK(shutdown(peer.get(), SHUT_WR) == 0);
    rig.EndSession();
    replies += Receive(peer, SIZE_MAX, replies == 0);
    KV_CHECK(replies >= 1 && replies <= 1 + requests);
  }
  KV_CHECK(CountFds() == fds_before);
}

}  // namespace
}  // namespace kvstream::rpc

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static kvstream::rpc::Rig rig;
  kvstream::rpc::Run(rig, kvstream::fuzz::Input(data, size));
  return 0;
}
