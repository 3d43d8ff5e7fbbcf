// Sessions: a worker's stream and its handoff connection, its host buffers and its operations.
// A session ends when either of the two ends; it is forgotten once no operation of it can touch
// its memory any more, and its handoff connection is closed last, after its GPU memory. Its buffers
// may be unmapped later.
//
// Thread rule: the engine loop. The operations themselves live in ReadOps and StoreOps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/types.h"
#include "server/engine/api.h"
#include "server/engine/landing.h"
#include "server/engine/stats.h"
#include "server/gpu/gpu.h"
#include "server/memory/unmapper.h"

namespace kvstream::engine {

struct Buffer {
  std::unique_ptr<memory::SealedMemory> memory;
  uint32_t operations = 0;  // Running ones that name it.
};

// GPU memory of the worker's.
struct WorkerRegion {
  gpu::RegionRef memory;
  uint64_t load_landing = 0;       // The landing buffer that loads go through; 0: none.
  uint64_t store_landing = 0;      // And stores.
  uint64_t handoff_memory_id = 0;  // 0: not memory that was handed over.
  std::unique_ptr<Landing> parts;  // Of a landing buffer.
  uint32_t operations = 0;         // Running ones that name it.
};

// Where the bytes of a chunk are: host memory, or blocks of a region.
struct Place {
  std::byte* host = nullptr;
  gpu::RegionRef region;
  uint64_t landing = 0;  // The landing buffer that it goes through; 0: none.
  std::vector<uint32_t> blocks;
};

// What an operation holds in use: each buffer and region once.
struct MemoryInUse {
  std::vector<uint64_t> buffers;
  std::vector<uint64_t> regions;
};

struct Session {
  SessionId id;
  std::string client_name;
  std::shared_ptr<SessionSink> sink;  // Null before StreamOpened and once the stream is over.
  bool had_stream = false;
  bool handoff_open = true;
  bool ending = false;
  bool unflushed = false;
  absl::flat_hash_map<uint64_t, Buffer> buffers;
  absl::node_hash_map<uint64_t, WorkerRegion> regions;
  uint32_t regions_opening = 0;
  absl::flat_hash_set<uint32_t> devices;  // GPUs on which it has had regions.
  // By the client's number.
  absl::flat_hash_map<uint64_t, std::shared_ptr<const gpu::HandoffMemory>> handoff_memory;
  // Running operations by the client's id.
  absl::flat_hash_map<uint64_t, OperationId> operations;
};

class Sessions {
 public:
  Sessions(EngineStats* stats, HandoffPeer* handoff, memory::Unmapper* unmapper, gpu::Gpus* gpus)
      : stats_(stats), handoff_(handoff), unmapper_(unmapper), gpus_(gpus) {}

  // Null when it has ended or never was.
  Session* Find(SessionId id);

  void Connect(SessionId id);
  void Attach(SessionId id, uint64_t buffer_id, std::unique_ptr<memory::SealedMemory> memory);
  void Drop(DropBuffer drop);

  // Where a chunk of `bytes` is, to be copied in a direction. NOT_FOUND or INVALID_ARGUMENT names
  // the field.
  static absl::StatusOr<Place> Locate(Session& session, Placement placement, uint64_t bytes,
                                      gpu::Direction direction);
  // Notes what the placement names, for Hold.
  static void Note(const Placement& placement, MemoryInUse* memory);
  // Keeps what was noted from being dropped, until it is let go.
  static void Hold(Session& session, MemoryInUse* memory);
  static void LetGo(Session& session, const MemoryInUse& memory);

  // Queues an event on the session's stream; nothing when the stream is over.
  void Send(SessionId id, SessionEvent event);
  void Flush();

  // Marks the session as ending and ends its stream with `why` if it still has one. The caller
  // cancels its operations.
  void BeginEnd(Session& session, const absl::Status& why);
  // Forgets the session if it is ending, no operation of it runs and no region is being opened.
  void MaybeForget(SessionId id);

  // In the numbers: one region more, or less.
  void CountRegion(const WorkerRegion& region, bool more);

  std::vector<SessionId> Ids() const;

 private:
  static absl::StatusOr<std::byte*> LocateHost(Session& session, const HostRange& range,
                                               uint64_t bytes);
  static absl::StatusOr<Place> LocateDevice(Session& session, DeviceBlocks device, uint64_t bytes,
                                            gpu::Direction direction);
  // OK when the buffer may go.
  static absl::Status MayDrop(const Session* session, uint64_t buffer_id);
  EngineStats* const stats_;
  HandoffPeer* const handoff_;
  memory::Unmapper* const unmapper_;
  gpu::Gpus* const gpus_;
  absl::flat_hash_map<SessionId, std::unique_ptr<Session>> sessions_;
  std::vector<SessionId> unflushed_;
};

}  // namespace kvstream::engine
