#include "client/client.h"

#include <chrono>
#include <utility>

#include "client/channel.h"
#include "client/status_convert.h"

namespace kvstream {
namespace {

constexpr uint32_t kProtocolVersion = 1;

absl::StatusOr<v1::Status> StatusOver(const std::shared_ptr<grpc::Channel>& channel,
                                      absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  v1::Status status;
  const auto stub = v1::Admin::NewStub(channel);
  const grpc::Status result = stub->GetStatus(&context, v1::GetStatusRequest(), &status);
  if (!result.ok()) return FromGrpc(result, "get status");
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  const auto began = std::chrono::steady_clock::now();
  auto handoff = HandoffConnection::Connect(
      options.handoff_socket.empty() ? options.grpc_socket + ".handoff" : options.handoff_socket,
      options.connect_timeout);
  if (!handoff.ok()) return handoff.status();
  if ((*handoff)->welcome().protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError("open session: the daemon speaks protocol version " +
                                         std::to_string((*handoff)->welcome().protocol_version()) +
                                         ", this client " + std::to_string(kProtocolVersion));
  }
  std::unique_ptr<Client> client(new Client(options, *std::move(handoff)));
  const auto took = absl::FromChrono(std::chrono::steady_clock::now() - began);
  if (auto s = client->Open(options.connect_timeout - took); !s.ok()) return s;
  return client;
}

Client::Client(const ClientOptions& options, std::unique_ptr<HandoffConnection> handoff)
    : options_(options),
      channel_(OpenChannel(options.grpc_socket)),
      stub_(v1::KvCache::NewStub(channel_)),
      handoff_(std::move(handoff)) {}

Client::~Client() {
  // A daemon that does not let go is not this client's to wait for any longer.
  const bool let_go = Close().ok();
  // Stream and connection tell each other of their ends: silence one before either is destroyed.
  handoff_->Stop();
  if (auto landing = operations_.landing_handler()) landing->Detach(let_go);
}

absl::Status Client::Open(absl::Duration timeout) {
  v1::Hello hello;
  hello.set_token(handoff_->welcome().token());
  hello.set_protocol_version(kProtocolVersion);
  hello.set_client_name(options_.client_name);
  stream_ = std::make_unique<SessionStream>(
      stub_.get(), std::move(hello),
      SessionStream::Callbacks{[this](const v1::ServerMessage& message) { OnMessage(message); },
                               [this](const absl::Status& cause) {
                                 operations_.StreamEnded(cause);
                                 handoff_->HalfClose();
                                 // Wakes Open, which may be waiting for a session that is refused.
                                 absl::MutexLock lock(&mu_);
                                 changed_.NotifyAll();
                               }});
  handoff_->Start([this] {
    operations_.HandoffEnded();
    stream_->Cancel();
  });
  absl::MutexLock lock(&mu_);
  const auto settled = [this] {
    mu_.AssertReaderHeld();
    return is_open_ || !session_status().ok();
  };
  if (!changed_.Wait(&mu_, timeout, settled)) {
    return absl::DeadlineExceededError("open session: no answer from " + options_.grpc_socket);
  }
  return is_open_ ? absl::OkStatus() : session_status();
}

absl::Status Client::Close() {
  stream_->Cancel();
  handoff_->HalfClose();
  if (handoff_->WaitClosed(options_.call_timeout)) return absl::OkStatus();
  return absl::DeadlineExceededError("close session: the daemon has not let go of its memory");
}

void Client::OnMessage(const v1::ServerMessage& message) {
  for (const v1::Event& event : message.events()) {
    if (event.has_session_opened()) {
      absl::MutexLock lock(&mu_);
      if (is_open_) continue;
      opened_ = event.session_opened();
      is_open_ = true;
      changed_.NotifyAll();
    } else {
      operations_.Dispatch(event);
    }
  }
}

absl::StatusOr<NamespaceHandle> Client::RegisterNamespace(
    const v1::Namespace& description, const std::vector<v1::LocalShards>& local_shards) {
  v1::RegisterNamespaceRequest request;
  *request.mutable_namespace_() = description;
  for (const v1::LocalShards& shards : local_shards) *request.add_local_shards() = shards;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + options_.call_timeout));
  v1::RegisterNamespaceReply reply;
  const grpc::Status result = stub_->RegisterNamespace(&context, request, &reply);
  if (!result.ok()) return FromGrpc(result, "register namespace " + description.model());
  return NamespaceHandle{reply.namespace_id(), reply.segment_bytes()};
}

void AddPrefixHash(std::string_view prefix_hash, v1::LookupRequest* request) {
  request->set_prefix_hash_bytes(static_cast<uint32_t>(prefix_hash.size()));
  request->mutable_prefix_hashes()->append(prefix_hash);
}

absl::StatusOr<v1::LookupReply> Client::Lookup(v1::LookupRequest request) {
  request.set_session_id(session_id());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + options_.call_timeout));
  v1::LookupReply reply;
  const grpc::Status result = stub_->Lookup(&context, request, &reply);
  if (!result.ok()) return FromGrpc(result, "look up chunks");
  return reply;
}

absl::StatusOr<HostBuffer> Client::CreateHostBuffer(uint64_t bytes) {
  v1::HandoffRequest request;
  request.mutable_create_host_buffer()->set_bytes(bytes);
  const auto answer = handoff_->Call(std::move(request), -1, options_.call_timeout);
  if (answer.ok() && !answer->fd.valid()) {
    return absl::UnavailableError("create host buffer: no descriptor rides on the answer");
  }
  return MapAnswer(answer, answer.ok() ? answer->fd.get() : -1);
}

absl::StatusOr<HostBuffer> Client::AttachHostBuffer(int fd, uint64_t bytes) {
  v1::HandoffRequest request;
  request.mutable_attach_host_buffer()->set_bytes(bytes);
  return MapAnswer(handoff_->Call(std::move(request), fd, options_.call_timeout), fd);
}

absl::StatusOr<HostBuffer> Client::MapAnswer(
    const absl::StatusOr<HandoffConnection::Answer>& answer, int fd) {
  if (!answer.ok()) return answer.status();
  const v1::HostBufferReply& reply = answer->reply.host_buffer();
  return HostBuffer::Map(fd, reply.bytes(), reply.buffer_id());
}

absl::Status Client::DropHostBuffer(HostBuffer buffer) {
  v1::HandoffRequest request;
  request.mutable_drop_host_buffer()->set_buffer_id(buffer.id());
  return handoff_->Call(std::move(request), -1, options_.call_timeout).status();
}

absl::StatusOr<RegionHandle> Client::RegisterMemory(v1::RegisterMemoryRequest request) {
  request.set_session_id(session_id());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + options_.call_timeout));
  v1::RegisterMemoryReply reply;
  const grpc::Status result = stub_->RegisterMemory(&context, request, &reply);
  if (!result.ok()) return FromGrpc(result, "register memory of " + request.gpu_uuid());
  return RegionHandle{reply.region_id(), reply.way(), reply.store_way()};
}

absl::Status Client::UnregisterMemory(uint64_t region_id) {
  v1::UnregisterMemoryRequest request;
  request.set_session_id(session_id());
  request.set_region_id(region_id);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + options_.call_timeout));
  v1::UnregisterMemoryReply reply;
  const grpc::Status result = stub_->UnregisterMemory(&context, request, &reply);
  if (result.ok()) return absl::OkStatus();
  return FromGrpc(result, "unregister region " + std::to_string(region_id));
}

absl::StatusOr<uint64_t> Client::AttachDeviceMemory(int fd, const std::string& gpu_uuid,
                                                    uint64_t allocation_bytes) {
  v1::HandoffRequest request;
  request.mutable_attach_device_memory()->set_gpu_uuid(gpu_uuid);
  request.mutable_attach_device_memory()->set_allocation_bytes(allocation_bytes);
  const auto answer = handoff_->Call(std::move(request), fd, options_.call_timeout);
  if (!answer.ok()) return answer.status();
  return answer->reply.device_memory().handoff_memory_id();
}

void Client::SetLandingHandler(std::shared_ptr<LandingHandler> handler) {
  operations_.SetLandingHandler(std::move(handler));
}

absl::Status Client::Begin(std::shared_ptr<Operation> operation, v1::ClientMessage message) {
  const uint64_t id = operation->id();
  const auto landing = operations_.landing_handler();
  if (landing != nullptr && message.has_read_step()) landing->OnRead(message.read_step());
  if (landing != nullptr && message.has_store()) landing->OnStore(message.store());
  absl::Status sent = operations_.Add(std::move(operation));
  if (sent.ok()) {
    sent = stream_->Send(std::move(message));
    // One that ended meanwhile, with its session, has told its callbacks: it has begun.
    if (sent.ok() || !operations_.Remove(id)) return absl::OkStatus();
  }
  if (landing != nullptr) landing->AfterCopies(id, true, [] {});
  return sent;
}

absl::StatusOr<std::shared_ptr<ReadOperation>> Client::ReadStep(v1::ReadStep step,
                                                                ReadCallbacks callbacks) {
  step.set_operation_id(++last_operation_id_);
  auto operation = std::make_shared<ReadOperation>(step, std::move(callbacks));
  v1::ClientMessage message;
  *message.mutable_read_step() = std::move(step);
  if (auto s = Begin(operation, std::move(message)); !s.ok()) return s;
  return operation;
}

absl::StatusOr<std::shared_ptr<StoreOperation>> Client::Store(v1::Store store) {
  store.set_operation_id(++last_operation_id_);
  auto operation = std::make_shared<StoreOperation>(store);
  v1::ClientMessage message;
  *message.mutable_store() = std::move(store);
  if (auto s = Begin(operation, std::move(message)); !s.ok()) return s;
  return operation;
}

absl::Status Client::Cancel(const Operation& operation) {
  v1::ClientMessage message;
  message.mutable_cancel()->set_operation_id(operation.id());
  return stream_->Send(std::move(message));
}

absl::Status Client::Release(uint64_t lease_id) {
  v1::ClientMessage message;
  message.mutable_release()->set_lease_id(lease_id);
  return stream_->Send(std::move(message));
}

absl::Status Client::ForwardBegan(uint64_t step_id) {
  v1::ClientMessage message;
  message.mutable_forward_began()->set_step_id(step_id);
  return stream_->Send(std::move(message));
}

absl::Status Client::SendScattered(const v1::Scattered& scattered) {
  v1::ClientMessage message;
  *message.mutable_scattered() = scattered;
  return stream_->Send(std::move(message));
}

absl::Status Client::SendGathered(const v1::Gathered& gathered) {
  v1::ClientMessage message;
  *message.mutable_gathered() = gathered;
  return stream_->Send(std::move(message));
}

void Client::Abandon(const absl::Status& cause) {
  operations_.SetCause(cause);
  stream_->Cancel();
  handoff_->HalfClose();
}

absl::StatusOr<v1::Status> Client::GetStatus() {
  return StatusOver(channel_, options_.call_timeout);
}

absl::StatusOr<v1::Status> FetchStatus(const std::string& grpc_socket, absl::Duration timeout) {
  return StatusOver(OpenChannel(grpc_socket), timeout);
}

}  // namespace kvstream
