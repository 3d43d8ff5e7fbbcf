// Store operations: chunks come out of the client's buffers into the staging pool, whole chunks at
// a time and in order; what finds no room by its admission deadline is dropped. Nothing ever holds
// part of a chunk's room while it waits for the rest.
//
// Thread rule: the engine loop.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/base/types.h"
#include "server/engine/api.h"
#include "server/engine/copy_pool.h"
#include "server/engine/device_copies.h"
#include "server/engine/sessions.h"
#include "server/engine/staging.h"
#include "server/engine/stats.h"
#include "server/sched/router.h"
#include "server/sched/slot_allocator.h"
#include "server/store/chunk_index.h"

namespace kvstream::engine {

class StoreOps {
 public:
  struct Parts {
    sched::SlotAllocator* slots = nullptr;
    std::byte* pool = nullptr;
    store::ChunkIndex* index = nullptr;
    const sched::Router* router = nullptr;
    Staging* staging = nullptr;
    CopyPool* copies = nullptr;
    DeviceCopies* device = nullptr;
    Sessions* sessions = nullptr;
    EngineStats* stats = nullptr;
  };
  explicit StoreOps(const Parts& parts) : parts_(parts) {}

  // As ReadOps::Begin.
  absl::Status Begin(Session& session, OperationId id, Store store, TimeNs now);
  // No-op for an id that is not a running Store. What is staged already stays.
  void Cancel(OperationId id, TimeNs now);

  void OnCopied(const CopyResult& result, TimeNs now);
  // A segment has come out of GPU memory, or never will.
  void OnDeviceCopied(const DeviceResult& result, TimeNs now);
  void OnDurable(const DurableNotice& notice, TimeNs now);

  // Admits what has room now, in the order of arrival.
  void Admit(TimeNs now);
  // Deadlines. Call at NextDeadline at the latest.
  void Tick(TimeNs now);
  TimeNs NextDeadline() const { return timers_.empty() ? kNever : timers_.begin()->first; }
  // At the end of a turn: sends what was released and published during it.
  void SendResults();

  // Some chunk found no room at the last Admit.
  bool waiting() const { return no_room_; }
  size_t running() const { return operations_.size(); }

 private:
  struct Chunk {
    std::string encoded_key;
    KeyDigest key;
    SiblingsId siblings;
    std::optional<SiblingsId> before;  // Right before it in its prefix, as far as is known.
    uint64_t bytes = 0;
    Place source;
    bool durable_open = false;  // Its durable outcome is still awaited.
  };
  struct Operation {
    SessionId session;
    uint64_t client_op = 0;
    store::NamespaceRef name_space;
    std::vector<Chunk> chunks;
    MemoryInUse memory;  // Until all is released.
    TimeNs began = 0;
    TimeNs admission_deadline = 0;
    TimeNs deadline = kNever;
    TimeNs timer = kNever;  // As it stands in timers_.
    bool want_durable = false;
    uint32_t next = 0;        // The first chunk that is not admitted yet.
    uint32_t unreleased = 0;  // Chunks without a released outcome.
    uint32_t durable_open = 0;
    absl::StatusCode first_failure = absl::StatusCode::kOk;
    uint32_t first_failed_chunk = UINT32_MAX;
    StoreReleased released;  // Not sent yet.
    StoreDurable durable;
  };
  // A chunk on its way into its slots.
  struct Arriving {
    OperationId operation;
    uint32_t chunk_index = 0;
    NewChunk chunk;
    uint32_t parts_left = 0;
    absl::StatusCode code =
        absl::StatusCode::kOk;  // Else it is dropped once its copies have ended.
    // Stores of the same key that came meanwhile: they hear what became of this one.
    std::vector<DurableWaiter> followers;
  };
  enum class Admission { kDone, kNoRoom };

  Admission AdmitChunk(OperationId id, Operation& operation, TimeNs now);
  std::optional<std::vector<sched::Slot>> TakeSlots(const ChunkShape& shape);
  bool CanEverFit(const ChunkShape& shape) const;
  void Copy(OperationId id, const Operation& operation, std::vector<sched::Slot> slots,
            const ChunkShape& shape, TimeNs now);
  void CopyFromDevice(uint64_t arriving_id, const Operation& operation, TimeNs now);
  void EndPart(uint64_t arriving_id, TimeNs now);
  void Existing(OperationId id, Operation& operation, uint32_t chunk_index);
  void Release(OperationId id, Operation& operation, uint32_t chunk_index, absl::StatusCode code,
               bool existed);
  void Durable(OperationId id, Operation& operation, uint32_t chunk_index, absl::StatusCode code);
  void ReleaseFollowers(const std::vector<DurableWaiter>& followers, absl::StatusCode code,
                        TimeNs now);
  void DropUnadmitted(OperationId id, Operation& operation, absl::StatusCode code);
  // What waits for another's store of the same key.
  void DropFollowing(OperationId id, Operation& operation, absl::StatusCode code);
  void EndEarly(OperationId id, absl::StatusCode code, TimeNs now);
  void Fail(Operation& operation, uint32_t chunk_index, absl::StatusCode code);
  void SetTimer(OperationId id, Operation& operation);
  void MaybeEnd(OperationId id, TimeNs now);
  void Send(Operation& operation);

  const Parts parts_;
  absl::flat_hash_map<OperationId, Operation> operations_;
  bool no_room_ = false;
  std::deque<OperationId> waiting_;  // With chunks to admit, in the order of arrival.
  std::set<std::pair<TimeNs, OperationId>> timers_;
  absl::flat_hash_map<uint64_t, Arriving> arriving_;
  absl::flat_hash_map<KeyDigest, uint64_t> arriving_by_key_;
  uint64_t next_arriving_ = 1;
  std::vector<OperationId> with_unsent_;
};

}  // namespace kvstream::engine
