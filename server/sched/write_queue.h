// Who owes which tier which chunk: deferred, replicated writes of staged chunks. Pure.
//
// A chunk is added once it is complete in the staging pool, and is finished when no write of it is
// owed or running; only then may its slots be freed. Writes of a tier wait while reads want that
// tier, until the chunk is older than max_defer, staged bytes pass the watermark, or the engine's
// forward pass has begun. The first copy goes to the key's home tier; where every owed write
// failed, the other tiers are tried before the chunk is given up.
//
// A tier takes no more than it has room for. One out of service starts no writes. First copies go
// to a tier in service, and wait when there is none; second copies that it is owed wait for it. A
// chunk is given up only once every tier has failed to write it.
//
// Second copies are dropped, never first ones: when a tier's backlog is full; when stores or reads
// find no room and the copy is older than max_defer, or its tier is out of service, a window of
// them at a time; and for a stop, when their tier is out of service. A slow tier loses copies; it
// does not hold the pool.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <set>
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
  // A copy on every tier; otherwise one. set_replicated says more.
  bool replicate_all = true;
  // First copies go to the first tier in service, not to each by its measured write rate.
  bool home_first = false;
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

  // `key_hash` picks the home tier among those in service, weighted by their measured write rates,
  // and whether the chunk is among those that get a copy on every tier.
  void Add(StagedId chunk, uint64_t bytes, uint64_t key_hash, TimeNs now);
  void OnWritten(StagedId chunk, TierId tier, bool ok, TimeNs now);
  // The share of the chunks added from now on, 0 to 1, that get a copy on every tier.
  void set_replicated(double share) { replicated_ = share; }
  // Chunks added so far need no longer wait for reads.
  void OpenGate() { gate_ = last_added_; }
  // For a stop: nothing waits for reads any more.
  void OpenGateForGood() { gate_for_good_ = true; }
  // Idempotent. Writes that run go on, and their ends count.
  void SetTierInService(TierId tier, bool in_service);

  // What the tier may take until this is called again: `bytes` of writes in flight, and where that
  // is not enough for one, it waits if `more_comes`, and else goes alone.
  void SetRoom(TierId tier, uint64_t bytes, bool more_comes);

  // Commands due now. `demand`: tiers that reads want. `room_wanted`: some store, or all that
  // reads want of some tier, has no room.
  std::vector<WriteCommand> Poll(TierSet demand, bool room_wanted, TimeNs now);
  // When Poll may have more to say without an event.
  TimeNs NextDeadline() const { return next_deadline_; }

  bool empty() const { return chunks_.empty(); }
  uint64_t staged_bytes() const { return staged_bytes_; }
  uint64_t backlog(TierId tier) const { return tiers_[tier.value].backlog; }
  double rate(TierId tier) const { return tiers_[tier.value].lane.rate(); }
  // Since when a tier has had writes in flight without one that ended; kNever: it has none.
  TimeNs SilentSince(TierId tier) const { return tiers_[tier.value].lane.SilentSince(); }

 private:
  struct Chunk {
    uint64_t bytes = 0;
    TimeNs staged_at = 0;
    TierSet owed;
    TierSet writing;
    TierSet written;
    TierSet failed;
    bool parked = false;
  };
  struct WriteTier {
    TierLane lane;
    uint64_t backlog_max;
    uint64_t backlog = 0;
    uint64_t second_copies = 0;  // How many of what is owed may be dropped.
    std::set<StagedId> owed;
    uint64_t room = UINT64_MAX;
    bool more_room_comes = false;
  };

  TierSet InService() const;
  TierSet All() const;
  TierId HomeOf(uint64_t key_hash, TierSet candidates) const;
  void Owe(StagedId id, Chunk& chunk, TierId tier);
  void Forgive(StagedId id, Chunk& chunk, TierId tier);
  // Owes the first copy to a tier that may yet write it, in service if there is one.
  void PlaceFirstCopy(StagedId id, Chunk& chunk);
  // Finishes the chunk, or falls back to tiers not tried yet.
  void Conclude(StagedId id);
  // Counts the chunk as parked while it has a copy and waits for tiers out of service alone.
  void Park(Chunk& chunk);
  void StartWrites(WriteTier& tier, bool demand, TimeNs now);
  void DropSecondCopies(WriteTier& tier, bool room_wanted, TimeNs now);

  const WriteQueueOptions options_;
  double replicated_;
  std::vector<WriteTier> tiers_;
  absl::flat_hash_map<StagedId, Chunk> chunks_;
  uint64_t staged_bytes_ = 0;
  uint64_t parked_bytes_ = 0;  // Of staged_bytes_: no write can make their room.
  StagedId last_added_;
  StagedId gate_;
  bool gate_for_good_ = false;
  TimeNs next_deadline_ = kNever;
  std::vector<WriteCommand> commands_;
};

}  // namespace kvstream::sched
