// Claims: who reads what next.
#include <algorithm>
#include <utility>

#include "server/base/check.h"
#include "server/sched/router.h"

namespace kvstream::sched {

using Stage = SegmentState::Stage;

namespace {

// How often an idle tier looks whether a read of another has become worth reading again.
constexpr TimeNs kTailCheck = 5 * kMillisecond;

}  // namespace

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
  // The fastest first: it may take the last segment from under the others.
  absl::InlinedVector<TierLane*, kTiersMax> lanes;
  for (TierLane& lane : lanes_) lanes.push_back(&lane);
  std::sort(lanes.begin(), lanes.end(), [](const auto* a, const auto* b) {
    return a->rate() != b->rate() ? a->rate() > b->rate() : a->id() < b->id();
  });
  bool claimed = true;
  while (claimed) {
    claimed = false;
    for (TierLane* next : lanes) {  // One claim each in turn: a small pool is shared fairly.
      TierLane& lane = *next;
      if (lane.usable() && (ClaimNext(lane, now) || Hedge(lane, now))) claimed = true;
    }
  }
  ScheduleHedges(now);
}

void Router::ScheduleHedges(TimeNs now) {
  next_hedge_check_ = kNever;
  for (const TierLane& lane : lanes_) {
    if (lane.reads().oldest == kNoRead) continue;
    const TimeNs due = reads_[lane.reads().oldest].began + HedgeAge(lane);
    next_hedge_check_ = std::min(next_hedge_check_, std::max(due, now + options_.hedge_after / 4));
    for (const TierLane& other : lanes_) {
      if (options_.policy.hedges() && other.usable() && other.in_flight() == 0 &&
          other.rate() > 0) {
        next_hedge_check_ = std::min(next_hedge_check_, now + kTailCheck);
      }
    }
  }
}

bool Router::ClaimNext(TierLane& lane, TimeNs now) {
  if (queued_[lane.id().value] == 0) return false;
  if (options_.policy.policy == Policy::kPublished) {
    if (lane.in_flight() == 0) chunks_left_[lane.id().value] = options_.policy.chunks_at_a_time;
    if (chunks_left_[lane.id().value] == 0) return false;
  } else if (!lane.HasRoom(1)) {
    lane.NoteLimited();
    return false;
  }
  // Deficit round robin. Rounds go on while some step has only to pay back what a segment larger
  // than its turn took in advance.
  size_t& turn = turns_[lane.id().value];
  bool in_debt = true;
  while (in_debt) {
    in_debt = false;
    for (size_t k = 0; k < steps_.size(); ++k) {
      Step& step = *steps_[turn];
      int64_t& credit = step.credits[lane.id().value];
      if (credit > 0) {
        const uint64_t bytes = ClaimFrom(step, lane, now);
        credit = bytes > 0 ? credit - static_cast<int64_t>(bytes) : 0;
        if (credit <= 0) NextTurn(lane.id());
        if (bytes > 0) return true;
      } else {
        in_debt = true;
        NextTurn(lane.id());
      }
    }
  }
  return false;
}

void Router::NextTurn(TierId tier) {
  size_t& turn = turns_[tier.value];
  turn = (turn + 1) % steps_.size();
  steps_[turn]->credits[tier.value] += static_cast<int64_t>(options_.turn_bytes);
}

// Bytes claimed; 0 when the step has nothing for this tier now.
uint64_t Router::ClaimFrom(Step& step, TierLane& lane, TimeNs now) {
  if (step.joining) return 0;
  Slot slot;
  const ReadList* list = nullptr;
  const bool published = options_.policy.policy == Policy::kPublished;
  const auto waits = [&](const SegmentRef& ref, TierSet holders) {
    const Fetch& fetch = fetches_[ref.fetch];
    if (!fetch.live || fetch.generation != ref.generation || !fetch.tiers.Has(lane.id()) ||
        fetch.segments[ref.segment].stage != Stage::kQueued) {
      return ReadList::Verdict::kDrop;
    }
    const uint64_t bytes = fetch.shape.PaddedBytesOf(ref.segment);
    if (!published && !lane.HasRoom(bytes)) {
      lane.NoteLimited();
      return ReadList::Verdict::kSkip;
    }
    if (LeaveToOthers(lane, *list, holders, bytes, now)) return ReadList::Verdict::kSkip;
    const auto free = slots_->AllocateRead(bytes);
    if (!free) return ReadList::Verdict::kSkip;
    slot = *free;
    return ReadList::Verdict::kTake;
  };
  const auto fastest = [this](TierSet holders) { return FastestOf(holders); };
  SegmentRef taken;
  const bool in_turn = options_.policy.policy == Policy::kRequestAtATime;
  while (step.first_list < step.lists.size() && step.lists[step.first_list].empty() &&
         (!in_turn || ListEnded(step, step.first_list))) {
    step.first_list += 1;
  }
  for (size_t i = step.first_list; i < step.lists.size(); ++i) {
    list = &step.lists[i];
    if (step.lists[i].Take(lane.id(), waits, fastest, &taken)) {
      StartRead(lane, taken.fetch, taken.segment, slot, now);
      return slot.bytes + (published ? ClaimRest(taken.fetch, lane, now) : 0);
    }
    if (in_turn && !ListEnded(step, i)) return 0;
  }
  return 0;
}

bool Router::ListEnded(const Step& step, size_t list) {
  return std::all_of(step.batches.begin(), step.batches.end(), [list](const Batch* batch) {
    return list >= batch->requests.size() || batch->requests[list].done;
  });
}

uint64_t Router::ClaimRest(uint32_t index, TierLane& lane, TimeNs now) {
  Fetch& fetch = fetches_[index];
  chunks_left_[lane.id().value] -= 1;
  uint64_t bytes = 0;
  for (uint32_t s = 0; s < fetch.segments.size(); ++s) {
    if (fetch.segments[s].stage != Stage::kQueued) continue;
    const auto slot = slots_->AllocateRead(fetch.shape.PaddedBytesOf(s));
    if (!slot) break;  // The rest counts as a chunk of its own.
    StartRead(lane, index, s, *slot, now);
    bytes += slot->bytes;
  }
  return bytes;
}

TimeNs Router::HedgeAge(const TierLane& lane) const {
  // A window's worth of queueing is not lateness.
  if (lane.rate() <= 0) return options_.hedge_after;
  const double queue_ns = static_cast<double>(lane.in_flight()) / lane.rate() * 1e9;
  return std::max(options_.hedge_after, static_cast<TimeNs>(2 * queue_ns));
}

bool Router::Late(const TierLane& lane, TimeNs now) const {
  const uint32_t oldest = lane.reads().oldest;
  return oldest != kNoRead && now - reads_[oldest].began >= HedgeAge(lane);
}

bool Router::LeaveToOthers(const TierLane& lane, const ReadList& list, TierSet holders,
                           uint64_t bytes, TimeNs now) const {
  if (!options_.policy.narrows() || !lane.rate_is_current()) return false;
  const TimeNs mine = lane.ExpectedTime(bytes, now);
  double rates = lane.RateAt(now);
  double work = static_cast<double>(list.bytes() + lane.in_flight());
  bool sooner = false;
  for (const TierLane& other : lanes_) {
    if (other.id() == lane.id() || !holders.Has(other.id()) || !other.usable()) continue;
    if (!other.rate_is_current() || Late(other, now)) continue;
    // Two idle tiers never wait for each other.
    if (lane.in_flight() == 0 && other.in_flight() == 0) continue;
    rates += other.RateAt(now);
    work += static_cast<double>(other.in_flight());
    sooner = sooner || other.ExpectedTime(bytes, now) < mine;
  }
  // All of it would end then if nobody had to wait for anybody.
  return sooner && static_cast<double>(mine) > work / rates * 1e9;
}

TimeNs Router::Remaining(const Read& read, uint64_t bytes_up_to_it, TimeNs now) const {
  if (read.expected == 0) return 0;
  const double rate = lanes_[read.tier.value].RateAt(now);
  const auto turn = static_cast<TimeNs>(static_cast<double>(bytes_up_to_it) / rate * 1e9);
  // One that is overdue may take as long again as it is late: latencies have long tails.
  const TimeNs age = now - read.began;
  return std::max(turn, age < read.expected ? read.expected - age : age - read.expected);
}

uint32_t Router::WorstRead(const TierLane& lane, TimeNs now) const {
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
      const TimeNs mine = lane.ExpectedTime(read.slot.bytes, now);
      // It should win clearly, or the bytes are for nothing.
      if (remaining <= worst_remaining || remaining <= mine + mine / 4 + kMillisecond) continue;
      if (segment.reads.size() > 1 && !LateEverywhere(segment, lane.id(), now)) continue;
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

bool Router::Hedge(TierLane& lane, TimeNs now) {
  if (!lane.HasRoom(1)) return false;
  const uint32_t index = WorstRead(lane, now);
  if (index == kNoRead) return false;
  const Read& read = reads_[index];
  if (!lane.HasRoom(read.slot.bytes)) return false;
  const auto slot = slots_->AllocateRead(read.slot.bytes);
  if (!slot) return false;
  hedges_[lane.id().value] += 1;
  StartRead(lane, read.fetch, read.segment, *slot, now);
  return true;
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
  AddToLane(lane, index);
  Read& read = reads_[index];
  const Ticket ticket{((read.ticket.value >> 32) + 1) << 32 | index};
  read.ticket = ticket;
  read.live = true;
  read.fetch = fetch_index;
  read.segment = segment;
  read.tier = lane.id();
  read.slot = slot;
  read.began = now;
  read.ahead = lane.in_flight();
  read.expected = lane.rate() > 0 ? lane.ExpectedTime(slot.bytes, now) : 0;
  fetch.reads += 1;
  fetch.segments[segment].reads.push_back(index);
  SetStage(fetch, segment, Stage::kReading);
  lane.Began(slot.bytes, now);
  commands_.push_back(ReadSegment{ticket, lane.id(), fetch.content, segment, slot});
}

}  // namespace kvstream::sched
