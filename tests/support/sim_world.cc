#include "tests/support/sim_world.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "tests/support/router_peer.h"

namespace kvstream::sched {
namespace {

// Far above what any script needs: a run that gets here goes round in circles.
constexpr uint64_t kEventsMax = 2'000'000;

}  // namespace

SimWorld::SimWorld(const SimOptions& options)
    : options_(options),
      random_(options.seed),
      slots_(options.pool_bytes, options.reserved_bytes),
      router_(options.router, &slots_),
      checker_(static_cast<uint32_t>(options.tiers.size())) {
  for (const SimTierOptions& tier : options.tiers) tiers_.emplace_back(tier, random_.Next());
}

void SimWorld::At(TimeNs at, std::function<void()> happen) {
  events_.emplace(std::pair(at, next_order_++), std::move(happen));
}

void SimWorld::AdmitAt(TimeNs at, BatchSpec spec) {
  if (spec.deadline != kNever) last_deadline_ = std::max(last_deadline_, spec.deadline);
  last_deadline_ = std::max(last_deadline_, spec.join_deadline);
  for (const auto& items : spec.requests) {
    for (const Item& item : items) {
      segment_bytes_max_ = std::max(segment_bytes_max_, item.shape.PaddedBytesOf(0));
    }
  }
  At(at, [this, spec = std::move(spec)] {
    checker_.Admit(spec, now_);
    router_.Admit(spec, now_);
  });
}

void SimWorld::CancelAt(TimeNs at, OperationId batch) {
  At(at, [this, batch] {
    checker_.Cancel(batch);
    router_.Fail(batch, absl::StatusCode::kCancelled, now_);
  });
}

void SimWorld::SetTierInServiceAt(TimeNs at, TierId tier, bool in_service) {
  At(at, [this, tier, in_service] {
    checker_.SetInService(tier, in_service);
    router_.SetTierInService(tier, in_service, now_);
  });
}

void SimWorld::WriteAt(TimeNs at, uint64_t bytes, TimeNs hold) {
  At(at, [this, bytes, hold] {
    const auto slot = slots_.AllocateWrite(bytes);
    if (!slot) return;
    checker_.WriterTook(*slot);
    At(now_ + hold, [this, slot = *slot] {
      checker_.WriterFreed(slot);
      slots_.Free(slot);
      router_.OnSlotsFreed(now_);
    });
  });
}

void SimWorld::Run() {
  RunUntilQuiet();
  while (!stuck_.empty() && violation().empty()) {
    ReleaseStuck();
    RunUntilQuiet();
  }
  CheckEnd();
}

void SimWorld::RunUntilQuiet() {
  for (uint64_t n = 0; violation().empty(); ++n) {
    if (n == kEventsMax) return checker_.Fail("the run does not end");
    const TimeNs timer = router_.NextDeadline();
    const TimeNs event = events_.empty() ? kNever : events_.begin()->first.first;
    if (event == kNever && (timer == kNever || timer > last_deadline_ + kSecond)) return;
    if (timer < event) {
      const bool passed = timer < now_;
      now_ = std::max(now_, timer);
      router_.Tick(now_);
      if (passed && router_.NextDeadline() <= now_) checker_.Fail("a timer is not served");
    } else {
      now_ = event;
      events_.extract(events_.begin()).mapped()();
    }
    Settle();
  }
}

void SimWorld::Settle() {
  std::vector<Command> commands;
  router_.TakeCommands(&commands);
  for (const Command& command : commands) {
    checker_.OnCommand(command, now_);
    if (!violation().empty()) return;
    if (const auto* read = std::get_if<ReadSegment>(&command)) Execute(*read);
    if (const auto* copy = std::get_if<CopySegment>(&command)) Execute(*copy);
    if (const auto* copy = std::get_if<CopyStaged>(&command)) Execute(*copy);
    if (const auto* out = std::get_if<TierOut>(&command)) {
      tier_changes_.push_back(TierChange{now_, out->tier, true});
    }
    if (const auto* back = std::get_if<TierBack>(&command)) {
      tier_changes_.push_back(TierChange{now_, back->tier, false});
    }
  }
  if (!options_.deep_checks && !events_.empty()) return;
  checker_.CheckNow(now_);
  if (slots_.used() != checker_.held_bytes()) checker_.Fail("free and held slots are not the pool");
  for (uint32_t t = 0; t < tiers_.size(); ++t) {
    const TierLane& lane = router_.lane(TierId{t});
    const uint64_t in_flight = checker_.in_flight(TierId{t});
    if (lane.in_flight() != in_flight) checker_.Fail("a tier's bytes in flight are miscounted");
    // One goes beside a quarantine within its limit.
    const uint64_t most =
        std::max(lane.window_max(),
                 std::max(lane.window_max() / 2, segment_bytes_max_) + segment_bytes_max_);
    if (options_.router.policy.policy != Policy::kPublished && in_flight > most &&
        checker_.reads_in_flight(TierId{t}) > 1) {
      checker_.Fail("a tier has more in flight than its window");
    }
  }
  const std::string wrong = RouterPeer::Check(router_, segment_bytes_max_, now_);
  if (!wrong.empty()) checker_.Fail(wrong);
}

void SimWorld::Execute(const ReadSegment& command) {
  reads_.push_back(ReadRecord{now_, command});
  const SimTier::Fate fate =
      tiers_[command.tier.value].Read(command.content, command.slot.bytes, now_);
  if (fate.at == kNever) {
    stuck_.push_back(command.ticket);
  } else {
    At(fate.at, [this, ticket = command.ticket, fate] { EndRead(ticket, fate); });
  }
}

void SimWorld::EndRead(Ticket ticket, const SimTier::Fate& fate) {
  checker_.ReadEnded(ticket, fate.code, fate.damaged);
  router_.OnRead(ticket, fate.code, now_);
}

void SimWorld::Execute(const CopySegment& command) {
  // As those of a worker that is slow to scatter.
  const size_t late = random_.Chance(options_.late_copy_chance)
                          ? static_cast<size_t>(random_.Between(1, command.items.size()))
                          : 0;
  const auto split = command.items.end() - static_cast<ptrdiff_t>(late);
  const TimeNs took = CopyTime(command.slot.bytes);
  EndCopyAt(now_ + took, command.ticket, {command.items.begin(), split},
            {split, command.items.end()});
}

void SimWorld::EndCopyAt(TimeNs at, Ticket ticket, std::vector<ItemRef> items,
                         std::vector<ItemRef> late) {
  At(at, [this, ticket, items = std::move(items), late = std::move(late)]() mutable {
    if (checker_.IsDamaged(ticket)) {  // That fails all of them at once.
      items.insert(items.end(), late.begin(), late.end());
      late.clear();
    }
    router_.OnCopy(ticket, items, checker_.CopyEnded(ticket, items), now_);
    if (late.empty()) return;
    const auto most = static_cast<uint64_t>(kSecond);
    EndCopyAt(now_ + static_cast<TimeNs>(random_.Below(most)), ticket, std::move(late), {});
  });
}

void SimWorld::Execute(const CopyStaged& command) {
  At(now_ + CopyTime(segment_bytes_max_), [this, item = command.item] { EndStagedCopy(item); });
}

void SimWorld::EndStagedCopy(const ItemRef& item) {
  const bool damaged = random_.Chance(options_.staged_damage_chance);
  router_.OnStagedCopy(item, checker_.StagedCopyEnded(item, damaged), now_);
}

TimeNs SimWorld::CopyTime(uint64_t bytes) {
  const double took = static_cast<double>(bytes) / options_.copy_bytes_per_second * 1e9;
  const auto jitter = static_cast<uint64_t>(options_.copy_jitter);
  return static_cast<TimeNs>(took) + static_cast<TimeNs>(jitter > 0 ? random_.Below(jitter) : 0);
}

void SimWorld::ReleaseStuck() {
  for (const Ticket ticket : std::exchange(stuck_, {})) {
    At(now_, [this, ticket] {
      EndRead(ticket, SimTier::Fate{now_, absl::StatusCode::kUnavailable, false});
    });
  }
}

void SimWorld::CheckEnd() {
  if (!checker_.AllDone() || router_.batches() > 0) checker_.Fail("a batch has not ended");
  if (slots_.used() != 0) checker_.Fail("slots are left over");
  for (uint32_t t = 0; t < tiers_.size(); ++t) {
    const TierLane& lane = router_.lane(TierId{t});
    if (router_.HasDemand(TierId{t})) checker_.Fail("a tier is wanted by nobody and has demand");
    if (lane.quarantined() != 0) checker_.Fail("a quarantine is left over");
    if (lane.choked()) checker_.Fail("a tier with an empty quarantine is out");
  }
}

}  // namespace kvstream::sched
