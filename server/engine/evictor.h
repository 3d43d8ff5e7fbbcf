// Keeps tiers within their room: chunks that nobody has used for longest are given up, the ends of
// prefixes first, when a tier has more bytes than it may, when its file system has less room left
// than it should, and when a write has found none. What is given up is a miss at once; its files
// are unlinked by the tier's own thread, a few at a time, away from reads and writes. On a shared
// tier only files that this daemon has written are given up.
//
// Where deleting makes no room, since others take it or snapshots keep it, no more is deleted for
// the floor for a while: a cache that is emptied for nothing helps nobody.
//
// Thread rule: the engine loop. Ownership: borrows the parts.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "server/base/quiet_period.h"
#include "server/base/types.h"
#include "server/engine/asides.h"
#include "server/engine/capacity.h"
#include "server/engine/stats.h"
#include "server/store/chunk_index.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

class Evictor {
 public:
  struct Parts {
    std::vector<tier::Tier*> tiers;
    store::ChunkIndex* index = nullptr;
    Asides* asides = nullptr;
    EngineStats* stats = nullptr;
  };
  // `capacities` by TierId; those that are absent have no limit.
  Evictor(const Parts& parts, std::vector<CapacityOptions> capacities);
  Evictor(const Evictor&) = delete;
  Evictor& operator=(const Evictor&) = delete;

  // A write of so many bytes has found no room. True: `done` is called once so much was given up,
  // or no more can be. False: there is nothing to give up.
  bool MakeRoom(TierId tier, uint64_t bytes, absl::AnyInvocable<void()> done, TimeNs now);

  // What writes to the tier may take of its capacity, and whether more comes soon by what is being
  // unlinked: it does not once that has stood still for a second.
  struct Room {
    uint64_t bytes = UINT64_MAX;
    bool more_comes = false;
  };
  Room RoomOf(TierId tier, TimeNs now);
  // An operator wants the tier's own file of the key to go.
  void GiveUpFile(TierId tier, const store::EvictedFile& file, TimeNs now);
  // Whether the tier has enough to unlink for now, and since when it has unlinked nothing.
  struct Unlinking {
    bool busy = false;
    TimeNs still_since = 0;
  };
  Unlinking UnlinkingOf(TierId tier) const {
    return {keeps_[tier.value].unlinks >= kUnlinksMax, keeps_[tier.value].unlinked_at};
  }

  // tier::TierStats::remounts of the file system whose files the index has.
  uint64_t MountOf(TierId tier) const { return keeps_[tier.value].mount; }

  void OnMeasured(const tier::Completion& completion, TimeNs now);
  // Gives up what is due, measures, and forgets what was on a file system that is no longer a
  // tier's.
  void Tick(TimeNs now);
  TimeNs NextDeadline() const;
  void PublishStats();

 private:
  // Sets are begun while fewer files than this are being unlinked.
  static constexpr uint32_t kUnlinksMax = 8;
  static constexpr TimeNs kMeasureEvery = 2 * kSecond;
  static constexpr TimeNs kStuckFor = kSecond;
  // Measurings one after the other that do not show what was deleted, and how long that is taken to
  // heart.
  static constexpr uint32_t kInVainMax = 3;
  static constexpr TimeNs kInVainFor = 60 * kSecond;
  // Of the count of what no prefix reaches: sets looked at in a turn, and how often it begins anew.
  static constexpr size_t kSweep = 256;
  static constexpr TimeNs kSweepEvery = 60 * kSecond;

  struct Waiter {
    uint64_t bytes = 0;  // That are still to be unlinked.
    absl::AnyInvocable<void()> done;
  };
  struct Keep {
    CapacityOptions capacity;
    uint64_t mount = 0;
    bool over_limit = false;  // Until it is well below.
    uint32_t unlinks = 0;     // Under way, and their bytes.
    uint64_t unlinking = 0;
    TimeNs unlinked_at = 0;   // The last one, or when the first of them began.
    TimeNs wake_at = kNever;  // Writes wait for room until then.
    // What has to go for the floor, as measured last.
    uint64_t floor_bytes_left = 0;
    uint64_t floor_files_left = 0;
    bool measuring = false;
    TimeNs measure_at = 0;
    // As measured last, and what was unlinked since.
    uint64_t free_then = 0;
    uint64_t written_then = 0;
    uint64_t unlinked_since = 0;
    uint32_t in_vain = 0;
    TimeNs in_vain_until = 0;
    std::vector<Waiter> waiters;
    TimeNs stuck_until = 0;  // There was nothing to give up: not looked for before. 0: there was.
    QuietPeriod stuck_quiet;
    QuietPeriod in_vain_quiet;
  };

  void CheckMount(TierId tier);
  // Whether what was unlinked since the last time shows.
  void JudgeRoom(TierId tier, const tier::Space& space, TimeNs now);
  bool MustGiveUp(TierId tier, TimeNs now);
  void NoteStuck(TierId tier, TimeNs now);
  // False: nothing may go.
  bool GiveUp(TierId tier, TimeNs now);
  // The index no longer has it.
  void Unlink(TierId tier, const store::EvictedFile& file, TimeNs now);
  void OnUnlinked(TierId tier, uint64_t bytes, bool unlinked, TimeNs now);
  void GiveUpWhatIsDue(TierId tier, TimeNs now);

  const Parts parts_;
  std::deque<Keep> keeps_;  // By TierId.
  uint64_t next_ticket_ = 1;
  TimeNs sweep_at_ = 0;
};

}  // namespace kvstream::engine
