// A discrete-event simulation of everything around the router: tiers, the copy stage, staged
// chunks, and a writer that competes for slots, in virtual time, from a seed. The router and the
// slot allocator are the real ones. Every promise is checked after every event; the first broken
// one ends the run.
//
// Thread rule: one thread. A run is a function of its options and its script alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/sched/router.h"
#include "server/sched/slot_allocator.h"
#include "tests/support/sim_checker.h"
#include "tests/support/sim_random.h"
#include "tests/support/sim_tier.h"

namespace kvstream::sched {

struct SimOptions {
  RouterOptions router;
  std::vector<SimTierOptions> tiers;
  uint64_t pool_bytes = 64 * kMiB;
  uint64_t reserved_bytes = 64 * kMiB;
  // Of verifying and copying; each copy takes up to `copy_jitter` more.
  double copy_bytes_per_second = 10e9;
  TimeNs copy_jitter = 0;
  // Of a copy to some of its items that takes up to a second more.
  double late_copy_chance = 0;
  double staged_damage_chance = 0;
  // Off: the parts are compared with each other at the end alone, not after every event.
  bool deep_checks = true;
  uint64_t seed = 1;
};

class SimWorld {
 public:
  // A read that the router asked for.
  struct ReadRecord {
    TimeNs at = 0;
    ReadSegment command;
  };
  struct TierChange {
    TimeNs at = 0;
    TierId tier;
    bool out = false;
  };

  explicit SimWorld(const SimOptions& options);
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  // The script. Times are not in the past.
  void AdmitAt(TimeNs at, BatchSpec spec);
  void CancelAt(TimeNs at, OperationId batch);
  void SetTierInServiceAt(TimeNs at, TierId tier, bool in_service);
  // A writer takes a slot if it gets one, for so long.
  void WriteAt(TimeNs at, uint64_t bytes, TimeNs hold);

  // Runs until nothing more can happen, then lets what is stuck fail and runs to the end. All that
  // is left must then be free.
  void Run();
  // The first broken promise; empty when all were kept.
  const std::string& violation() const { return checker_.violation(); }

  TimeNs now() const { return now_; }
  const Router& router() const { return router_; }
  const BatchModel& batch(OperationId id) const { return checker_.batch(id); }
  const std::vector<ReadRecord>& reads() const { return reads_; }
  const std::vector<TierChange>& tier_changes() const { return tier_changes_; }

 private:
  void At(TimeNs at, std::function<void()> happen);
  void RunUntilQuiet();
  void ReleaseStuck();
  void CheckEnd();
  // What the router commanded, and all checks.
  void Settle();
  void Execute(const ReadSegment& command);
  void Execute(const CopySegment& command);
  void Execute(const CopyStaged& command);
  void EndRead(Ticket ticket, const SimTier::Fate& fate);
  void EndCopyAt(TimeNs at, Ticket ticket, std::vector<ItemRef> items, std::vector<ItemRef> late);
  void EndStagedCopy(const ItemRef& item);
  TimeNs CopyTime(uint64_t bytes);

  const SimOptions options_;
  SimRandom random_;
  SlotAllocator slots_;
  Router router_;
  SimChecker checker_;
  std::vector<SimTier> tiers_;
  // By time, and in order of arrival at one time.
  std::map<std::pair<TimeNs, uint64_t>, std::function<void()>> events_;
  uint64_t next_order_ = 0;
  TimeNs now_ = 0;
  TimeNs last_deadline_ = 0;  // Timers matter until here.
  uint64_t segment_bytes_max_ = 0;
  std::vector<Ticket> stuck_;
  std::vector<ReadRecord> reads_;
  std::vector<TierChange> tier_changes_;
};

}  // namespace kvstream::sched
