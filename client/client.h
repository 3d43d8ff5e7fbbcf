// The client of kvstreamd: one session with the daemon of this node.
//
//   auto client = kvstream::Client::Connect({.grpc_socket = "/run/kvstreamd/kvstreamd.sock"});
//   auto model = (*client)->RegisterNamespace(description, {});
//   auto buffer = (*client)->CreateHostBuffer(bytes);
//   auto found = (*client)->Lookup(request);
//   auto load = (*client)->ReadStep(step);
//   if ((*load)->WaitEnded(timeout)) ...                  // client/operation.h
//
// A client is one session, for good. When the daemon goes away, every operation that has not ended
// ends with UNAVAILABLE, but only after the handoff connection has reported end of file: until then
// the daemon may still touch the memory. From then on every call is UNAVAILABLE, session_status()
// says why, and the way on is a new Client: it is another session, perhaps of another boot, so
// namespaces and buffers have to be registered again. Buffers of the old one stay mapped and mean
// nothing to the new one.
//
// Thread rule: any thread. Calls block for at most a timeout of the options; operations run by
// themselves. No method may be called, and no client destroyed, from an operation's callback,
// except ReadStep, Store, Cancel, Release, ForwardBegan, SendScattered, SendGathered and Abandon,
// which never block.
// Ownership: owns the session. Operations and buffers may outlive it.
// Errors: the words of kvstream.v1 (types.proto), as absl::Status. UNAVAILABLE and
// DEADLINE_EXCEEDED also say that the daemon is gone or does not answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/handoff_connection.h"
#include "client/host_buffer.h"
#include "client/landing_handler.h"
#include "client/monotonic_condition.h"
#include "client/operation.h"
#include "client/operation_table.h"
#include "client/session_stream.h"
#include "kvstream/v1/admin.grpc.pb.h"
#include "kvstream/v1/kvstream.grpc.pb.h"

namespace kvstream {

struct ClientOptions {
  // The daemon's gRPC socket.
  std::string grpc_socket;
  // Empty means grpc_socket with ".handoff" appended.
  std::string handoff_socket;
  // For the daemon's logs, such as "vllm-0/rank3". At most 128 bytes; may be empty.
  std::string client_name;
  // Most that Connect takes.
  absl::Duration connect_timeout = absl::Seconds(2);
  // Most that any other blocking call takes.
  absl::Duration call_timeout = absl::Seconds(10);
};

struct NamespaceHandle {
  // 16 bytes: what requests carry.
  std::string id;
  // The segment size in force.
  uint64_t segment_bytes = 0;
};

// Memory that the daemon has opened.
struct RegionHandle {
  // Never 0.
  uint64_t region_id = 0;
  // How the daemon fills it, and how it reads it.
  v1::RegisterMemoryReply::Way way = v1::RegisterMemoryReply::WAY_UNSPECIFIED;
  v1::RegisterMemoryReply::Way store_way = v1::RegisterMemoryReply::WAY_UNSPECIFIED;

  // Some of it goes by the landing buffer, so the worker has kernels to run.
  bool has_landing() const {
    return way == v1::RegisterMemoryReply::WAY_LANDING ||
           store_way == v1::RegisterMemoryReply::WAY_LANDING;
  }
};

class Client {
 public:
  // Opens a session. NOT_FOUND when no socket is there, PERMISSION_DENIED when it may not be used,
  // FAILED_PRECONDITION when the daemon speaks another protocol version, UNAVAILABLE when nobody
  // listens, DEADLINE_EXCEEDED when the daemon does not answer in time.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ClientOptions& options);

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  // As Close.
  ~Client();

  // Ends the session: the daemon cancels what runs and lets go of all memory; operations that have
  // not ended end with UNAVAILABLE. DEADLINE_EXCEEDED when the daemon has not let go within
  // call_timeout: such operations never end, and memory that the caller had attached or registered
  // must be left alone until the daemon is gone. Idempotent. Registered memory may be freed once
  // this was OK and the client is destroyed: its landing handler may still copy until then.
  absl::Status Close();

  // Idempotent: the same namespace has the same id. `local_shards`: the shards whose ranks run on
  // this node; empty means all.
  absl::StatusOr<NamespaceHandle> RegisterNamespace(
      const v1::Namespace& description, const std::vector<v1::LocalShards>& local_shards);

  // Memory that the daemon makes. RESOURCE_EXHAUSTED past the session's limits.
  absl::StatusOr<HostBuffer> CreateHostBuffer(uint64_t bytes);
  // The caller's own memfd, sealed with F_SEAL_SHRINK; it stays the caller's. INVALID_ARGUMENT or
  // FAILED_PRECONDITION when it is not such a descriptor. REQUIRES: bytes > 0.
  absl::StatusOr<HostBuffer> AttachHostBuffer(int fd, uint64_t bytes);
  // Gives a buffer back, and unmaps it whatever the answer. FAILED_PRECONDITION while operations
  // use it: the daemon keeps it until the session ends then.
  absl::Status DropHostBuffer(HostBuffer buffer);

  // GPU memory, which client/cuda describes; the session's number is filled in. Errors as of the
  // RPC (kvstream.proto); after DEADLINE_EXCEEDED it counts as registered until the session's end.
  // The daemon keeps the memory open until UnregisterMemory or the session's end: it must not be
  // freed before. With a LandingBuffer use its RegisterRegion instead.
  absl::StatusOr<RegionHandle> RegisterMemory(v1::RegisterMemoryRequest request);
  // OK: the daemon has closed it, and it may be freed. FAILED_PRECONDITION: operations use it.
  // NOT_FOUND when it is not this session's, also where an earlier call ended with
  // DEADLINE_EXCEEDED: then only the session's end tells when it is closed.
  absl::Status UnregisterMemory(uint64_t region_id);
  // Hands over a VMM allocation, exported as a POSIX descriptor; it stays the caller's. Returns the
  // handoff_memory_id, for any number of RegisterMemory: attach each allocation once.
  absl::StatusOr<uint64_t> AttachDeviceMemory(int fd, const std::string& gpu_uuid,
                                              uint64_t allocation_bytes);
  // From now on landing events are the handler's. REQUIRES: none was set, and no operation names
  // a region with has_landing() yet.
  void SetLandingHandler(std::shared_ptr<LandingHandler> handler);

  // Fills in the session's number, which a lease needs. See AddPrefixHash.
  absl::StatusOr<v1::LookupReply> Lookup(v1::LookupRequest request);

  // Begin an operation; its id is filled in, the rest is the caller's, deadline_ms included. What
  // the daemon refuses ends with the reason. RESOURCE_EXHAUSTED when too many messages wait.
  absl::StatusOr<std::shared_ptr<ReadOperation>> ReadStep(v1::ReadStep step,
                                                          ReadCallbacks callbacks = {});
  absl::StatusOr<std::shared_ptr<StoreOperation>> Store(v1::Store store);

  // Ends an operation early: it still ends by itself, with CANCELLED for what was not done.
  absl::Status Cancel(const Operation& operation);
  // Gives back a lease of a lookup.
  absl::Status Release(uint64_t lease_id);
  // The forward pass of this step has begun; 0 means none in particular.
  absl::Status ForwardBegan(uint64_t step_id);

  // For the landing handler: what it was asked for is done. Never block.
  absl::Status SendScattered(const v1::Scattered& scattered);
  absl::Status SendGathered(const v1::Gathered& gathered);
  // Begins the session's end without waiting for it, because of `cause`, which is not OK.
  void Abandon(const absl::Status& cause);

  absl::StatusOr<v1::Status> GetStatus();

  // OK while the session lives, otherwise why it was lost.
  absl::Status session_status() const { return operations_.session_status(); }
  // The daemon's boot, 16 bytes.
  const std::string& boot_id() const { return handoff_->welcome().boot_id(); }
  uint64_t session_id() const { return opened_.session_id(); }
  const v1::Limits& limits() const { return opened_.limits(); }
  const std::string& daemon_version() const { return opened_.daemon_version(); }

 private:
  Client(const ClientOptions& options, std::unique_ptr<HandoffConnection> handoff);
  absl::Status Open(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  void OnMessage(const v1::ServerMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  // Keeps the operation and sends the message that begins it.
  absl::Status Begin(std::shared_ptr<Operation> operation, v1::ClientMessage message);
  absl::StatusOr<HostBuffer> MapAnswer(const absl::StatusOr<HandoffConnection::Answer>& answer,
                                       int fd);

  const ClientOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::KvCache::Stub> stub_;
  OperationTable operations_;
  std::atomic<uint64_t> last_operation_id_{0};

  absl::Mutex mu_;
  MonotonicCondition changed_;
  bool is_open_ ABSL_GUARDED_BY(mu_) = false;
  // Written once before is_open_, constant after Connect.
  v1::SessionOpened opened_;

  // In this order: the stream's end half-closes the handoff connection.
  std::unique_ptr<HandoffConnection> handoff_;
  std::unique_ptr<SessionStream> stream_;
};

// Adds the hash of the next chunk to those that are looked up. REQUIRES: as long as those before.
void AddPrefixHash(std::string_view prefix_hash, v1::LookupRequest* request);

// The status of the daemon at `grpc_socket`, without a session.
absl::StatusOr<v1::Status> FetchStatus(const std::string& grpc_socket, absl::Duration timeout);

}  // namespace kvstream
