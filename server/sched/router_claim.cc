// Claims: who reads what next.
#include <algorithm>
#include <utility>

#include "server/base/check.h"
#include "server/sched/router.h"

namespace kvstream::sched {

using Stage = SegmentState::Stage;

TierId Router::FastestOf(TierSet tiers) const {
  // Config order until rates are known, and among equals.
  TierId best{kTiersMax};
  double best_rate = -1;
  for (const TierLane& lane : lanes_) {
    if (!tiers.Has(lane.id()) || !lane.usable()) continue;
    if (lane.rate() > best_rate) {
      best = lane.id();
      best_rate = lane.rate();
    }
  }
  return best;
}

void Router::Claim(TimeNs now) {
  bool claimed = true;
  while (claimed) {
    claimed = false;
    for (TierLane& lane : lanes_) {  // One claim each in turn: a small pool is shared fairly.
      if (lane.usable() && (ClaimNext(lane, now) || Hedge(lane, now))) claimed = true;
    }
  }
  next_hedge_check_ = kNever;
  for (const TierLane& lane : lanes_) {
    if (lane.reads().empty()) continue;
    const TimeNs due = reads_[lane.reads().front()].began + HedgeAge(lane);
    next_hedge_check_ = std::min(next_hedge_check_, std::max(due, now + options_.hedge_after / 4));
  }
}

bool Router::ClaimNext(TierLane& lane, TimeNs now) {
  if (queued_[lane.id().value] == 0 || !lane.HasRoom(1)) return false;
  Turn& turn = turns_[lane.id().value];
  const size_t steps = steps_.size();
  for (size_t k = 0; k < steps; ++k) {
    const size_t at = (turn.step + k) % steps;
    const uint64_t bytes = ClaimFrom(*steps_[at], lane, now);
    if (bytes == 0) continue;
    turn = Turn{at, (k == 0 ? turn.bytes : 0) + bytes};
    if (turn.bytes >= options_.turn_bytes) turn = Turn{(at + 1) % steps, 0};
    return true;
  }
  return false;
}

// Bytes claimed; 0 when the step has nothing for this tier now.
uint64_t Router::ClaimFrom(Step& step, TierLane& lane, TimeNs now) {
  if (step.joining) return 0;
  Slot slot;
  const auto waits = [&](const SegmentRef& ref) {
    const Fetch& fetch = fetches_[ref.fetch];
    if (!fetch.live || fetch.generation != ref.generation || !fetch.tiers.Has(lane.id()) ||
        fetch.segments[ref.segment].stage != Stage::kQueued) {
      return ReadList::Verdict::kDrop;
    }
    const uint64_t bytes = fetch.shape.PaddedBytesOf(ref.segment);
    if (!lane.HasRoom(bytes)) return ReadList::Verdict::kSkip;
    const auto free = slots_->AllocateRead(bytes);
    if (!free) return ReadList::Verdict::kSkip;
    slot = *free;
    return ReadList::Verdict::kTake;
  };
  const auto fastest = [this](TierSet holders) { return FastestOf(holders); };
  SegmentRef taken;
  while (step.first_list < step.lists.size() && step.lists[step.first_list].empty()) {
    step.first_list += 1;
  }
  for (size_t i = step.first_list; i < step.lists.size(); ++i) {
    if (!step.lists[i].Take(lane.id(), waits, fastest, &taken)) continue;
    StartRead(lane, taken.fetch, taken.segment, slot, now);
    return slot.bytes;
  }
  return 0;
}

TimeNs Router::HedgeAge(const TierLane& lane) const {
  // A window's worth of queueing is not lateness.
  if (lane.rate() <= 0) return options_.hedge_after;
  const double queue_ns = static_cast<double>(lane.in_flight()) / lane.rate() * 1e9;
  return std::max(options_.hedge_after, static_cast<TimeNs>(2 * queue_ns));
}

bool Router::Late(const TierLane& lane, TimeNs now) const {
  return !lane.reads().empty() && now - reads_[lane.reads().front()].began >= HedgeAge(lane);
}

bool Router::Hedge(TierLane& lane, TimeNs now) {
  for (const TierLane& other : lanes_) {
    if (other.id() == lane.id()) continue;
    const TimeNs age = HedgeAge(other);
    for (const uint32_t r : other.reads()) {
      const Read& read = reads_[r];
      if (now - read.began < age) break;
      const Fetch& fetch = fetches_[read.fetch];
      const SegmentState& segment = fetch.segments[read.segment];
      if (read.orphan || segment.stage != Stage::kReading || !fetch.tiers.Has(lane.id())) continue;
      const bool late_everywhere =
          std::all_of(segment.reads.begin(), segment.reads.end(), [&](uint32_t i) {
            const Read& o = reads_[i];
            return o.tier != lane.id() && now - o.began >= HedgeAge(lanes_[o.tier.value]);
          });
      if (!late_everywhere || !lane.HasRoom(read.slot.bytes)) continue;
      const auto slot = slots_->AllocateRead(read.slot.bytes);
      if (!slot) return false;
      hedges_[lane.id().value] += 1;
      StartRead(lane, read.fetch, read.segment, *slot, now);
      return true;
    }
  }
  return false;
}

void Router::StartRead(TierLane& lane, uint32_t fetch_index, uint32_t segment, const Slot& slot,
                       TimeNs now) {
  if (free_reads_.empty()) {
    free_reads_.push_back(static_cast<uint32_t>(reads_.size()));
    reads_.emplace_back();
  }
  const uint32_t index = free_reads_.back();
  free_reads_.pop_back();
  Fetch& fetch = fetches_[fetch_index];
  const Ticket ticket{next_ticket_++};
  lane.reads().push_back(index);
  Read& read = reads_[index];
  read.ticket = ticket;
  read.fetch = fetch_index;
  read.segment = segment;
  read.tier = lane.id();
  read.slot = slot;
  read.began = now;
  read.in_lane = std::prev(lane.reads().end());
  read_of_[ticket] = index;
  fetch.reads += 1;
  fetch.segments[segment].reads.push_back(index);
  SetStage(fetch, segment, Stage::kReading);
  lane.Began(slot.bytes, now);
  commands_.push_back(ReadSegment{ticket, lane.id(), fetch.content, segment, slot});
}

}  // namespace kvstream::sched
