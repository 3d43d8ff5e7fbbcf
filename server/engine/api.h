// What the rpc room says to the engine and hears from it, as plain structs: protobuf stops at rpc.
//
// The rpc room has validated every value that needs no state: enums, lengths, ranges against the
// limits, groups and shards against the namespace. The engine validates what needs its state:
// sessions, operation ids, buffers and their ranges, leases.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/types.h"
#include "server/gpu/gpu.h"
#include "server/memory/sealed_memory.h"
#include "server/store/chunk_key.h"
#include "server/store/namespace.h"

namespace kvstream::engine {

// ------------------------------------------------------------------ to the client, on its session

struct ChunkResults {
  uint64_t client_op = 0;
  struct Result {
    uint32_t request_index = 0;
    uint32_t chunk_index = 0;
    absl::StatusCode code = absl::StatusCode::kOk;
  };
  std::vector<Result> results;
};

struct RequestDone {
  uint64_t client_op = 0;
  uint64_t request_id = 0;
  uint32_t leading_valid = 0;
  std::vector<uint32_t> other_valid;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string message;
};

struct StoreReleased {
  uint64_t client_op = 0;
  struct Result {
    uint32_t chunk_index = 0;
    absl::StatusCode code = absl::StatusCode::kOk;
    bool existed = false;
  };
  std::vector<Result> results;
  bool all_released = false;
};

struct StoreDurable {
  uint64_t client_op = 0;
  struct Result {
    uint32_t chunk_index = 0;
    absl::StatusCode code = absl::StatusCode::kOk;
  };
  std::vector<Result> results;
};

struct Quiesced {
  uint64_t client_op = 0;
  absl::Status status;
};

struct SessionOpened {
  SessionId session;
};

struct HeartbeatReply {
  uint64_t sequence = 0;
};

// A piece of a chunk in a part of a landing buffer.
struct Piece {
  // Index into the step's requests (0 for a Store), and into its chunks.
  uint32_t request_index = 0;
  uint32_t chunk_index = 0;
  uint64_t chunk_offset = 0;
  uint64_t part_offset = 0;
  uint64_t bytes = 0;
};

// Asks the worker to scatter pieces that have landed in a part, or to gather them into it.
struct PartMoved {
  bool gather = false;
  uint64_t client_op = 0;
  uint64_t region_id = 0;
  uint32_t part = 0;
  uint64_t sequence = 0;
  std::vector<Piece> pieces;
};

using SessionEvent = std::variant<SessionOpened, HeartbeatReply, ChunkResults, RequestDone,
                                  StoreReleased, StoreDurable, Quiesced, PartMoved>;

// A session's stream, as the engine sees it; the rpc room implements it. Called on the engine loop;
// nothing blocks. After End, or after the rpc room posted StreamClosed, the engine calls nothing.
class SessionSink {
 public:
  virtual ~SessionSink() = default;
  // Queues an event.
  virtual void Send(SessionEvent event) = 0;
  // Called once at the end of each turn of the loop that sent events: they may go out now.
  virtual void Flush() = 0;
  // Ends the stream with this status, after the events sent so far.
  virtual void End(absl::Status status) = 0;
};

// A session's handoff connection; the rpc room implements it.
class HandoffPeer {
 public:
  virtual ~HandoffPeer() = default;
  // The engine has stopped touching the session's memory, and has it mapped no more but for host
  // buffers: close the connection. Called once, on any thread, never blocks.
  virtual void Close(SessionId session) = 0;
};

// ------------------------------------------------------------------ operations

struct HostRange {
  uint64_t buffer_id = 0;
  uint64_t offset = 0;
};

struct DeviceBlocks {
  uint64_t region_id = 0;
  std::vector<uint32_t> blocks;
};

using Placement = std::variant<HostRange, DeviceBlocks>;

struct ReadChunk {
  KeyDigest key;
  uint32_t group = 0;
  Placement place;
};

struct ReadRequest {
  uint64_t request_id = 0;
  store::NamespaceRef name_space;
  uint64_t lease_id = 0;
  std::vector<ReadChunk> chunks;
};

struct ReadStep {
  uint64_t client_op = 0;
  bool joint = false;
  // 0: a step of its own.
  uint64_t step_id = 0;
  uint32_t ranks = 1;
  // Absolute; routing of a joint step begins then at the latest.
  TimeNs join_deadline = 0;
  TimeNs deadline = kNever;
  std::vector<ReadRequest> requests;
};

struct StoreChunk {
  store::ChunkKey key;
  KeyDigest digest;
  Placement place;
};

struct Store {
  uint64_t client_op = 0;
  store::NamespaceRef name_space;
  std::vector<StoreChunk> chunks;
  // What comes right before the first of them in its prefix.
  std::optional<SiblingsId> after;
  // Absolute; chunks without room by then are dropped.
  TimeNs admission_deadline = 0;
  bool want_durable = false;
  TimeNs deadline = kNever;
};

struct Cancel {
  uint64_t client_op = 0;
};

// An operation that the rpc room refused: only the engine knows whether its id is in use.
struct Refused {
  uint64_t client_op = 0;
  absl::Status status;
};

struct ForwardBegan {
  uint64_t step_id = 0;
};

struct Release {
  uint64_t lease_id = 0;
};

struct Heartbeat {
  uint64_t sequence = 0;
};

// The worker has scattered what landed in a part, or gathered what was asked for into it.
struct PartAcknowledged {
  bool gathered = false;
  uint64_t region_id = 0;
  uint32_t part = 0;
  uint64_t sequence = 0;
};

// What travels on a session's stream after Hello.
using SessionMessage = std::variant<ReadStep, Store, Refused, Cancel, ForwardBegan, Release,
                                    PartAcknowledged, Heartbeat>;

struct LookupResult {
  uint32_t leading_run = 0;
  // Per-key mode: one byte a key.
  std::string present;
  uint64_t lease_id = 0;
  // Chunks of the leading run (all members) by tier, indexed by TierId, and in the staging pool.
  std::vector<uint32_t> tier_chunks;
  uint32_t staged = 0;
};

struct Lookup {
  // members digests a key, key after key: the asked groups' local shards.
  std::vector<KeyDigest> digests;
  uint32_t members = 1;
  bool per_key = false;
  // Duration; 0: no lease.
  TimeNs lease_for = 0;
  // The lease's owner; must be open when lease_for is not 0, else FAILED_PRECONDITION.
  SessionId session;
  // Called once, on the engine loop.
  absl::AnyInvocable<void(absl::StatusOr<LookupResult>)> reply;
};

// ------------------------------------------------------------------ events posted to the engine

// A handoff connection was accepted; the session exists from here on, without a stream yet.
struct SessionConnected {
  SessionId session;
};

struct BufferAttached {
  SessionId session;
  uint64_t buffer_id = 0;
  std::unique_ptr<memory::SealedMemory> memory;
};

// FAILED_PRECONDITION while operations use the buffer, NOT_FOUND when unknown. The reply is called
// on the engine loop, or once the buffer is unmapped, on the thread that did it.
struct DropBuffer {
  SessionId session;
  uint64_t buffer_id = 0;
  absl::AnyInvocable<void(absl::Status)> reply;
};

// The handoff connection reached end of file: the peer is gone.
struct HandoffClosed {
  SessionId session;
};

// A stream presented the session's token. The engine answers SessionOpened, or End with
// FAILED_PRECONDITION when the session is gone or has a stream already.
struct StreamOpened {
  SessionId session;
  std::string client_name;
  std::shared_ptr<SessionSink> sink;
};

// The stream is over: broken, half-closed by the client, or ended by the rpc room. `sink` tells
// which stream, so that a refused second stream cannot end the first one's session.
struct StreamClosed {
  SessionId session;
  const SessionSink* sink = nullptr;
};

// Room that a message takes up in what its stream may leave unhandled. It goes back when the credit
// is destroyed: the message was handled, or dropped. Move-only.
class Credit {
 public:
  class Source {
   public:
    virtual ~Source() = default;
    // Any thread, but never from within Post.
    virtual void TakeBack(uint64_t bytes) = 0;
  };

  Credit() = default;
  Credit(std::shared_ptr<Source> source, uint64_t bytes)
      : source_(std::move(source)), bytes_(bytes) {}
  Credit(Credit&& other) noexcept = default;
  Credit& operator=(Credit&&) = delete;
  ~Credit() {
    if (source_ != nullptr) source_->TakeBack(bytes_);
  }

 private:
  std::shared_ptr<Source> source_;
  uint64_t bytes_ = 0;
};

struct MessageArrived {
  SessionId session;
  const SessionSink* sink = nullptr;
  SessionMessage message;
  Credit credit{};
};

// A VMM allocation came by the handoff socket.
struct DeviceMemoryAttached {
  SessionId session;
  uint64_t handoff_memory_id = 0;
  std::shared_ptr<const gpu::HandoffMemory> memory;
};

struct RegisteredRegion {
  uint64_t region_id = 0;
  // Through the session's landing buffer, rather than straight to or from the blocks.
  bool load_landing = false;
  bool store_landing = false;
};

struct RegisterMemory {
  SessionId session;
  // Not in the spec yet: the engine knows the session's. 0: the spec has an IPC handle.
  uint64_t handoff_memory_id = 0;
  gpu::RegionSpec spec;
  absl::AnyInvocable<void(absl::StatusOr<RegisteredRegion>)> reply;
};

// From which mean length of a region's runs copies go straight, by direction.
struct DirectBytesMin {
  uint64_t loads = 64 * kKiB;
  uint64_t stores = 256 * kKiB;
};

// The answer to a RegisterMemory came from the GPU room.
struct RegionOpened {
  SessionId session;
  uint64_t handoff_memory_id = 0;
  uint64_t request = 0;
  absl::StatusOr<gpu::RegionRef> region;
};

// The memory of a region that was unregistered is closed.
struct RegionClosed {
  uint64_t request = 0;
};

// FAILED_PRECONDITION while operations use the region, or regions this landing buffer; NOT_FOUND
// when unknown. The reply comes once the memory is closed, or the session is over.
struct UnregisterMemory {
  SessionId session;
  uint64_t region_id = 0;
  absl::AnyInvocable<void(absl::Status)> reply;
};

// An operator takes a tier out of service or brings it back. Idempotent; forgotten at a restart.
// Replies whether the tier is in service now: a full quarantine keeps it out too.
struct SetTierInService {
  TierId tier;
  bool in_service = true;
  absl::AnyInvocable<void(bool in_service)> reply;
};

struct DrainResult {
  // Staged bytes that are still owed to a tier.
  uint64_t unwritten_bytes = 0;
  uint64_t running_operations = 0;
};

// As Engine::BeginDrain. Replies once nothing runs and nothing is staged, or when the time is up,
// or the daemon stops. RESOURCE_EXHAUSTED when too many wait for that already.
struct Drain {
  // 0 means the configured time.
  TimeNs timeout = 0;
  absl::AnyInvocable<void(absl::StatusOr<DrainResult>)> reply;
};

}  // namespace kvstream::engine
