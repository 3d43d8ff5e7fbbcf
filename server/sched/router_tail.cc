// The tail of a list: what a tier leaves to others, and what it reads again.
#include <algorithm>

#include "server/sched/router.h"

namespace kvstream::sched {

using Stage = SegmentState::Stage;

namespace {

// How often an idle tier looks whether a read of another has become worth reading again.
constexpr TimeNs kTailCheck = 5 * kMillisecond;
// A tier that gives nothing back for so long may hang. Stragglers seldom last as long.
constexpr TimeNs kSilence = kSecond;

}  // namespace

TimeNs Router::HedgeAge(const TierLane& lane) const { return HedgeAge(lane, lane.in_flight()); }

TimeNs Router::HedgeAge(const TierLane& lane, uint64_t queued_bytes) const {
  // A window's worth of queueing is not lateness.
  const double rate = lane.RateSoFar();
  if (rate <= 0) return options_.hedge_after;
  const double queue_ns = static_cast<double>(queued_bytes) / rate * 1e9;
  return std::max(options_.hedge_after, static_cast<TimeNs>(2 * queue_ns));
}

bool Router::Late(const TierLane& lane, TimeNs now) const {
  const uint32_t oldest = lane.reads().oldest;
  return oldest != kNoRead && now - reads_[oldest].began >= HedgeAge(lane);
}

bool Router::MayHang(const Read& read, TimeNs now) const {
  return now - read.began >= std::max(HedgeAge(lanes_[read.tier.value]), kSilence);
}

bool Router::Silent(const TierLane& lane, TimeNs now) const {
  if (!Late(lane, now)) return false;
  const TimeNs since = std::max(lane.last_end(), reads_[lane.reads().oldest].began);
  return now - since >= std::max(HedgeAge(lane), kSilence);
}

bool Router::RoundIsOver(const TierLane& lane, TimeNs now) const {
  const uint32_t newest = lane.reads().newest;
  if (newest == kNoRead) return true;
  // Its age is compared with what stood before it when it began: what is in flight now shrinks.
  const Read& read = reads_[newest];
  return now - read.began >= std::max(HedgeAge(lane, read.ahead + read.slot.bytes), kSilence);
}

bool Router::LeaveToOthers(const TierLane& lane, const Step& step, uint64_t queued_up_to,
                           TierSet holders, uint64_t bytes, TimeNs now) const {
  if (!options_.policy.narrows() || !lane.rate_is_current(now)) return false;
  const TimeNs mine = lane.ExpectedTime(bytes, now);
  double rates = lane.RateAt(now);
  double work = static_cast<double>(queued_up_to + lane.in_flight());
  bool sooner = false;
  for (const TierLane& other : lanes_) {
    if (other.id() == lane.id() || !holders.Has(other.id()) || !other.usable()) continue;
    if (!other.rate_is_current(now) || Late(other, now)) continue;
    // Two idle tiers never wait for each other.
    if (lane.in_flight() == 0 && other.in_flight() == 0) continue;
    rates += other.RateAt(now);
    work += static_cast<double>(other.in_flight());
    sooner = sooner || other.ExpectedTime(bytes, now) < mine;
  }
  if (!sooner) return false;
  // Other steps take turns with this one; what is small of them is less than that.
  const double others = static_cast<double>(steps_.size() - 1) * static_cast<double>(queued_up_to);
  work += std::min(others, static_cast<double>(queued_bytes_ - step.queued_bytes));
  // All of that would end then if nobody had to wait for anybody.
  return static_cast<double>(mine) > work / rates * 1e9;
}

TimeNs Router::Remaining(const Read& read, uint64_t bytes_up_to_it, TimeNs now) const {
  if (read.expected == 0) return 0;
  const double rate = lanes_[read.tier.value].RateAt(now);
  const auto turn = static_cast<TimeNs>(static_cast<double>(bytes_up_to_it) / rate * 1e9);
  // One that is overdue may take as long again as it is late: latencies have long tails.
  const TimeNs age = now - read.began;
  return std::max(turn, age < read.expected ? read.expected - age : age - read.expected);
}

bool Router::NothingElseFor(const TierLane& lane, const Fetch& fetch, uint32_t segment) {
  if (queued_[lane.id().value] == 0) return true;
  return std::any_of(fetch.waiters.begin(), fetch.waiters.end(), [&](const Waiter& w) {
    if (w.leaving || w.needs[segment] != Need::kWanted) return false;
    Step& step = *w.batch->step;
    MoveCursor(step, lane.id());
    const Step::Cursor& cursor = step.cursors[lane.id().value];
    return cursor.found_nothing || cursor.list > ListOf(step, w.ref.request);
  });
}

uint32_t Router::WorstRead(const TierLane& lane, TimeNs now) {
  uint32_t worst = kNoRead;
  TimeNs worst_remaining = 0;
  for (const TierLane& other : lanes_) {
    if (other.id() == lane.id()) continue;
    const TimeNs late = HedgeAge(other);
    uint64_t bytes = 0;
    for (uint32_t r = other.reads().oldest; r != kNoRead; r = reads_[r].newer) {
      const Read& read = reads_[r];
      bytes += read.slot.bytes;
      const Fetch& fetch = fetches_[read.fetch];
      const SegmentState& segment = fetch.segments[read.segment];
      if (read.orphan || segment.stage != Stage::kReading || !fetch.tiers.Has(lane.id())) continue;
      TimeNs remaining = Remaining(read, bytes, now);
      if (now - read.began >= late) {
        remaining = kNever;
      } else if (!options_.policy.hedges() || lane.rate() <= 0) {
        continue;
      }
      const TimeNs mine = lane.rate() > 0 ? lane.ExpectedTime(read.slot.bytes, now) : 0;
      // It should win clearly, or the bytes are for nothing.
      if (remaining <= worst_remaining || remaining <= mine + mine / 4 + kMillisecond) continue;
      if (segment.reads.size() > 1 && !LateEverywhere(segment, lane.id(), now)) continue;
      if (!NothingElseFor(lane, fetch, read.segment)) continue;
      worst = r;
      worst_remaining = remaining;
    }
  }
  return worst;
}

bool Router::LateEverywhere(const SegmentState& segment, TierId except, TimeNs now) const {
  return std::all_of(segment.reads.begin(), segment.reads.end(), [&](uint32_t i) {
    const Read& read = reads_[i];
    return read.tier != except && now - read.began >= HedgeAge(lanes_[read.tier.value]);
  });
}

bool Router::Hedge(TierLane& lane, bool* no_room, TimeNs now) {
  // Looking through all reads after each event would cost more than it brings.
  TimeNs& not_before = hedge_not_before_[lane.id().value];
  if (now < not_before) return false;
  const uint32_t index = WorstRead(lane, now);
  if (index == kNoRead) {
    not_before = now + kMillisecond;
    return false;
  }
  const Read& read = reads_[index];
  *no_room = !HasRoom(lane, read.slot.bytes, now);
  if (*no_room) return false;
  const auto slot = SlotFor(lane, read.slot.bytes, now);
  if (!slot) return false;
  hedges_[lane.id().value] += 1;
  StartRead(lane, read.fetch, read.segment, *slot, now);
  return true;
}

void Router::ScheduleHedges(TimeNs now) {
  next_hedge_check_ = kNever;
  for (const TierLane& lane : lanes_) {
    const TimeNs age = HedgeAge(lane);
    uint32_t next = lane.reads().oldest;
    TimeNs late_for = kNever;  // The latest of those that are.
    while (next != kNoRead && now - reads_[next].began >= age) {
      late_for = now - reads_[next].began - age;
      next = reads_[next].newer;
    }
    if (late_for != kNever) {
      // What can be done about them changes with time as well, and ever less.
      const TimeNs pause = std::max(options_.hedge_after, late_for) / 4;
      next_hedge_check_ = std::min(next_hedge_check_, now + pause);
      const TimeNs silent =
          std::max(lane.last_end(), reads_[lane.reads().oldest].began) + std::max(age, kSilence);
      if (silent > now) next_hedge_check_ = std::min(next_hedge_check_, silent);
    }
    if (next == kNoRead) continue;
    next_hedge_check_ = std::min(next_hedge_check_, reads_[next].began + age);
    // Of reads that nobody waits for there is nothing to win.
    if (!options_.policy.hedges() || batches_.empty()) continue;
    for (const TierLane& other : lanes_) {
      if (other.usable() && other.in_flight() == 0 && other.rate() > 0) {
        next_hedge_check_ = std::min(next_hedge_check_, now + kTailCheck);
      }
    }
  }
}

}  // namespace kvstream::sched
