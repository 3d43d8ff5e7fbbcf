// Who owes which tier which chunk: deferred, replicated writes of staged chunks. Pure.
//
// A chunk is added once it is complete in the staging pool, and is finished when no write of it is
// owed or running; only then may its slots be freed. Writes of a tier wait while reads want that
// tier, until the chunk is older than max_defer, staged bytes pass the watermark, or the engine's
// forward pass has begun. The first copy goes to the key's home tier; where every owed write
// failed, the other tiers are tried before the chunk is given up.
//
// Second copies are dropped, never first ones: when a tier's backlog is full, and when stores wait
// for room and the copy is older than max_defer. A slow tier loses copies; it does not hold the
// pool.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/base/types.h"
#include "server/sched/tier_lane.h"

namespace kvstream::sched {

// Numbers staged chunks, ascending, never reused.
using StagedId = StrongId<struct StagedTag, uint64_t>;

struct WriteLaneOptions {
  // Bytes of writes in flight.
  uint64_t window_bytes = 32 * kMiB;
  // Bytes owed before second copies are dropped.
  uint64_t backlog_bytes = 4 * kGiB;
};

struct WriteQueueOptions {
  std::vector<WriteLaneOptions> lanes;  // By TierId.
  // A copy on every tier; otherwise one.
  bool replicate_all = true;
  TimeNs max_defer = 2 * kSecond;
  // Staged bytes above which writes no longer wait for reads.
  uint64_t watermark_bytes = 0;
};

// Write the chunk to the tier; answer with OnWritten.
struct StartWrite {
  StagedId chunk;
  TierId tier;
};
// A second copy was given up.
struct CopyDropped {
  StagedId chunk;
  TierId tier;
};
// Nothing is owed or running. An empty `written` means that every write failed: the chunk is lost
// unless someone else holds it.
struct ChunkFinished {
  StagedId chunk;
  TierSet written;
};
using WriteCommand = std::variant<StartWrite, CopyDropped, ChunkFinished>;

class WriteQueue {
 public:
  explicit WriteQueue(const WriteQueueOptions& options);

  // `key_hash` picks the home tier, weighted by the tiers' measured write rates. With no tier in
  // service the chunk finishes at once, unwritten.
  void Add(StagedId chunk, uint64_t bytes, uint64_t key_hash, TimeNs now);
  void OnWritten(StagedId chunk, TierId tier, bool ok, TimeNs now);
  // Chunks added so far need no longer wait for reads.
  void OpenGate() { gate_ = last_added_; }
  // For a stop: nothing waits for reads any more.
  void OpenGateForGood() { gate_for_good_ = true; }
  void SetTierInService(TierId tier, bool in_service);

  // Commands due now. `demand`: tiers that reads want. `stores_wait`: some store has no room.
  std::vector<WriteCommand> Poll(TierSet demand, bool stores_wait, TimeNs now);
  // When Poll may have more to say without an event.
  TimeNs NextDeadline() const { return next_deadline_; }

  bool empty() const { return chunks_.empty(); }
  uint64_t staged_bytes() const { return staged_bytes_; }
  uint64_t backlog(TierId tier) const { return tiers_[tier.value].backlog; }
  double rate(TierId tier) const { return tiers_[tier.value].lane.rate(); }

 private:
  struct Chunk {
    uint64_t bytes = 0;
    TimeNs staged_at = 0;
    TierSet owed;
    TierSet writing;
    TierSet written;
    TierSet failed;
  };
  struct WriteTier {
    TierLane lane;
    uint64_t backlog_max;
    uint64_t backlog = 0;
    std::deque<StagedId> owed;  // May hold ids that are no longer owed.
  };

  TierSet InService() const;
  TierId HomeOf(uint64_t key_hash, TierSet candidates) const;
  void Owe(StagedId id, Chunk& chunk, TierId tier);
  void Forgive(Chunk& chunk, TierId tier);
  // Finishes the chunk, or falls back to tiers not tried yet.
  void Conclude(StagedId id);
  void StartWrites(WriteTier& tier, bool demand, TimeNs now);
  void DropSecondCopies(WriteTier& tier, bool stores_wait, TimeNs now);

  const WriteQueueOptions options_;
  std::vector<WriteTier> tiers_;
  absl::flat_hash_map<StagedId, Chunk> chunks_;
  uint64_t staged_bytes_ = 0;
  StagedId last_added_;
  StagedId gate_;
  bool gate_for_good_ = false;
  TimeNs next_deadline_ = kNever;
  std::vector<WriteCommand> commands_;
};

}  // namespace kvstream::sched
