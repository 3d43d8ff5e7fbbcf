#include "tests/rpc/rig.h"

#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "server/base/check.h"

namespace kvstream::rpc {

TempDir::TempDir() {
  std::string pattern = std::filesystem::temp_directory_path() / "kvstream-rpc-XXXXXX";
  KV_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void RecordingPoster::Post(engine::Event event) {
  Answerer answerer;
  {
    absl::MutexLock lock(&mu_);
    answerer = answerer_;
  }
  if (answerer && answerer(event)) return;
  absl::MutexLock lock(&mu_);
  events_.push_back(std::move(event));
}

void RecordingPoster::Answer(Answerer answerer) {
  absl::MutexLock lock(&mu_);
  answerer_ = std::move(answerer);
}

void RecordingPoster::Drop() {
  std::optional<engine::Event> event;
  absl::MutexLock lock(&mu_);
  event.emplace(std::move(events_.front()));
  events_.pop_front();
}

HandoffClient::HandoffClient(const std::string& path)
    : socket_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  KV_CHECK(path.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, path.data(), path.size());
  KV_CHECK(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
}

void HandoffClient::Send(const v1::HandoffRequest& request, const std::vector<int>& fds) {
  EXPECT_TRUE(TrySend(request.SerializeAsString(), fds));
}

bool HandoffClient::TrySend(const std::string& bytes, const std::vector<int>& fds) {
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
    std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
  }
  return sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

std::optional<v1::HandoffReply> HandoffClient::Receive() {
  std::array<char, 4096> bytes;
  iovec iov{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  if (n <= 0) return std::nullopt;
  fd_.Reset();
  if (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
    fd_.Reset(fd);
  }
  v1::HandoffReply reply;
  EXPECT_TRUE(reply.ParseFromArray(bytes.data(), static_cast<int>(n)));
  return reply;
}

v1::HandoffReply HandoffClient::Call(const v1::HandoffRequest& request,
                                     const std::vector<int>& fds) {
  Send(request, fds);
  auto reply = Receive();
  EXPECT_TRUE(reply.has_value());
  return reply.value_or(v1::HandoffReply());
}

UniqueFd MakeMemfd(bool sealed) {
  UniqueFd fd(memfd_create("kvstream-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  KV_CHECK(fd.valid());
  KV_CHECK(ftruncate(fd.get(), 8192) == 0);
  if (sealed) KV_CHECK(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  return fd;
}

size_t CountFds() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

Limits TestLimits() {
  Limits limits;
  limits.segment_bytes_min = 16 * kKiB;
  limits.segment_bytes_max = 16 * kMiB;
  limits.segment_bytes_default = 4 * kMiB;
  limits.chunk_bytes_max = 64 * kMiB;
  limits.lookup_keys_max = 12;
  limits.chunks_per_operation_max = 4;
  limits.operations_per_session_max = 16;
  limits.host_buffers_per_session_max = 2;
  limits.host_buffer_bytes_per_session_max = kMiB;
  limits.deadline_max = 10 * kSecond;
  limits.lease_max = 20 * kSecond;
  limits.message_bytes_max = 4 * kMiB;
  limits.sessions_max = 8;
  limits.unread_events_bytes_max = kMiB;
  limits.unhandled_messages_max = 8;
  limits.unhandled_bytes_max = kMiB;
  limits.calls_max = 4;
  limits.lookup_keys_waiting_max = 24;
  limits.hello_max = 60 * kSecond;
  return limits;
}

v1::Namespace TestNamespace() {
  v1::Namespace name_space;
  name_space.set_model("model");
  name_space.set_weights_fingerprint("weights");
  name_space.set_kv_dtype("bfloat16");
  name_space.set_layout("block-major");
  name_space.set_chunk_tokens(256);
  v1::Group* sharded = name_space.add_groups();
  sharded->set_chunk_bytes(4096);
  sharded->set_shards(2);
  v1::Group* replicated = name_space.add_groups();
  replicated->set_chunk_bytes(1000);
  replicated->set_replicated(true);
  return name_space;
}

std::string CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                    const std::string& request) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto await = [&queue] {
    void* tag;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  await();
  grpc::Slice slice(request);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  await();
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  std::string bytes;
  if (await()) {
    std::vector<grpc::Slice> slices;
    KV_CHECK(answer.Dump(&slices).ok());
    for (const auto& s : slices) bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  await();
  queue.Shutdown();
  return bytes;
}

Rig::Rig(const Limits& limits_in, bool reflection_in, const gpu::Gpus* gpus_in)
    : limits(limits_in),
      reflection(reflection_in),
      gpus(gpus_in),
      namespaces({limits_in.segment_bytes_min, limits_in.segment_bytes_max,
                  limits_in.segment_bytes_default, limits_in.chunk_bytes_max}) {
  HandoffOptions handoff_options;
  handoff_options.socket.path = dir.Path("handoff");
  handoff_options.limits = limits;
  auto started_handoff = HandoffServer::Start(handoff_options, &poster, &rpc_stats);
  KV_CHECK(started_handoff.ok());
  handoff = *std::move(started_handoff);
  auto started = RpcServer::Start(Options(), {poster, namespaces, handoff->tokens(), rpc_stats});
  KV_CHECK(started.ok());
  server = *std::move(started);
  channel = grpc::CreateChannel("unix:" + dir.Path("grpc"), grpc::InsecureChannelCredentials());
  kvcache = v1::KvCache::NewStub(channel);
  admin = v1::Admin::NewStub(channel);
}

Rig::~Rig() { server.reset(); }

RpcOptions Rig::Options() const {
  RpcOptions options;
  options.socket.path = dir.Path("grpc");
  options.reflection = reflection;
  options.facts.boot_id.bytes.fill(7);
  options.facts.version = "test";
  options.facts.limits = limits;
  options.facts.tier_names = {"nvme", "pfs"};
  options.status.stats = &stats;
  options.status.gpus = gpus;
  options.status.rpc = &rpc_stats;
  options.status.tiers = {{"nvme", "/nvme", nullptr, "no such directory"},
                          {"pfs", "/pfs", &pfs, ""}};
  return options;
}

std::string Rig::Connect(std::unique_ptr<HandoffClient>* client, SessionId* session) {
  *client = std::make_unique<HandoffClient>(dir.Path("handoff"));
  *session = poster.Next<engine::SessionConnected>().session;
  const auto welcome = (*client)->Receive();
  EXPECT_TRUE(welcome.has_value() && welcome->has_welcome());
  return welcome.has_value() ? welcome->welcome().token() : "";
}

std::string Rig::Register() {
  grpc::ClientContext context;
  v1::RegisterNamespaceRequest request;
  *request.mutable_namespace_() = TestNamespace();
  v1::RegisterNamespaceReply reply;
  EXPECT_TRUE(kvcache->RegisterNamespace(&context, request, &reply).ok());
  return reply.namespace_id();
}

}  // namespace kvstream::rpc
