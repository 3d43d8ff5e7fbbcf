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
  // The fastest first: it may take the last segment from under the others.
  absl::InlinedVector<TierLane*, kTiersMax> lanes;
  for (TierLane& lane : lanes_) lanes.push_back(&lane);
  std::sort(lanes.begin(), lanes.end(), [](const auto* a, const auto* b) {
    return a->rate() != b->rate() ? a->rate() > b->rate() : a->id() < b->id();
  });
  starved_ = false;
  bool claimed = true;
  while (claimed) {
    claimed = false;
    for (TierLane* next : lanes) {  // One claim each in turn: a small pool is shared fairly.
      TierLane& lane = *next;
      if (!lane.usable()) continue;
      // The end of one step goes before the beginning of others, or it might wait for as long as
      // there are others. It keeps its place while it finds no room, since others' smaller segments
      // would take the room for good. The second look is for what the claim has just left to
      // others.
      bool no_room = false;
      claimed |= Hedge(lane, &no_room, now) ||
                 (!no_room && (ClaimNext(lane, now) || Hedge(lane, &no_room, now)));
    }
  }
  ScheduleHedges(now);
}

bool Router::ClaimNext(TierLane& lane, TimeNs now) {
  if (queued_[lane.id().value] == 0) return false;
  if (options_.policy.policy == Policy::kPublished) {
    uint32_t& left = chunks_left_[lane.id().value];
    if (RoundIsOver(lane, now)) left = options_.policy.chunks_at_a_time;
    if (left == 0) return false;
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
        bool blocked = false;
        const uint64_t bytes = ClaimFrom(step, lane, &blocked, now);
        // It keeps its turn: others' smaller segments would take the room for good.
        if (blocked) return false;
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

bool Router::HasRoom(const TierLane& lane, uint64_t bytes, TimeNs now) const {
  const auto [oldest, newest] = lane.reads();
  const bool few = oldest == newest || lane.in_flight() <= lane.quarantine_limit();
  if (newest != kNoRead && few && MayHang(reads_[newest], now)) return true;
  // Rounds of whole chunks take what the config allows; a window that shrinks would cut them.
  if (options_.policy.policy == Policy::kPublished) return lane.HasRoomAtMost(bytes);
  return lane.HasRoom(bytes);
}

uint64_t Router::ClaimFrom(Step& step, TierLane& lane, bool* blocked, TimeNs now) {
  if (step.joining) return 0;
  Slot slot;
  uint64_t queued_up_to = 0;
  const auto waits = [&](const SegmentRef& ref, TierSet holders) {
    const Fetch& fetch = fetches_[ref.fetch];
    if (!fetch.live || fetch.generation != ref.generation || !fetch.tiers.Has(lane.id()) ||
        fetch.segments[ref.segment].stage != Stage::kQueued) {
      return ReadList::Verdict::kDrop;
    }
    const uint64_t bytes = fetch.shape.PaddedBytesOf(ref.segment);
    if (!HasRoom(lane, bytes, now)) {
      lane.NoteLimited();
      *blocked = true;
      return ReadList::Verdict::kSkip;
    }
    if (LeaveToOthers(lane, step, queued_up_to, holders, bytes, now)) {
      return ReadList::Verdict::kSkip;
    }
    const auto free = SlotFor(lane, bytes, now);
    *blocked = !free;
    if (!free) return ReadList::Verdict::kSkip;
    slot = *free;
    return ReadList::Verdict::kTake;
  };
  const auto end = [&](TierSet holders, TierSet assigned) {
    return EndOf(lane, holders, assigned, now);
  };
  const bool in_turn = options_.policy.policy == Policy::kRequestAtATime;
  MoveCursor(step, lane.id());
  const Step::Cursor cursor = step.cursors[lane.id().value];
  queued_up_to = cursor.bytes_before;
  for (size_t i = cursor.list; i < step.lists.size() && !*blocked; ++i) {
    ReadList& list = step.lists[i];
    const uint64_t before = list.bytes();
    queued_up_to += before;
    SegmentRef taken;
    const bool took = list.Take(lane.id(), end, waits, &taken);
    NoteUnlisted(step, i, before - list.bytes());
    if (took) {
      step.cursors[lane.id().value].found_nothing = false;
      StartRead(lane, taken.fetch, taken.segment, slot, now);
      const bool whole = options_.policy.policy == Policy::kPublished;
      return slot.bytes + (whole ? ClaimRest(taken.fetch, lane, now) : 0);
    }
    if (in_turn && !ListEnded(step, i)) break;
  }
  if (!*blocked && !step.cursors[lane.id().value].found_nothing) {
    step.cursors[lane.id().value].found_nothing = true;
    hedge_not_before_[lane.id().value] = now;
  }
  return 0;
}

std::optional<Slot> Router::SlotFor(const TierLane& lane, uint64_t bytes, TimeNs now) {
  auto slot = slots_->AllocateRead(bytes);
  if (!slot.has_value() && (lane.in_flight() == 0 || Silent(lane, now))) starved_ = true;
  return slot;
}

ReadList::End Router::EndOf(const TierLane& lane, TierSet holders, TierSet assigned,
                            TimeNs now) const {
  if (!assigned.empty()) {
    TierSet serving;  // Of those that it is meant for.
    for (const TierLane& other : lanes_) {
      const bool meant = (assigned & holders).Has(other.id());
      if (meant && other.usable() && !Silent(other, now)) serving.Add(other.id());
    }
    if (!serving.empty() && !serving.Has(lane.id())) return ReadList::End::kNone;
    if (!serving.empty()) holders = serving;
  }
  return FastestOf(holders) == lane.id() ? ReadList::End::kFront : ReadList::End::kBack;
}

void Router::MoveCursor(Step& step, TierId tier) {
  const bool in_turn = options_.policy.policy == Policy::kRequestAtATime;
  Step::Cursor& cursor = step.cursors[tier.value];
  while (cursor.list < step.lists.size() && step.lists[cursor.list].EmptyFor(tier) &&
         (!in_turn || ListEnded(step, cursor.list))) {
    cursor.bytes_before += step.lists[cursor.list].bytes();
    cursor.list += 1;
  }
}

void Router::NoteUnlisted(Step& step, size_t list, uint64_t bytes) {
  step.queued_bytes -= bytes;
  queued_bytes_ -= bytes;
  for (Step::Cursor& cursor : step.cursors) {
    if (cursor.list > list) cursor.bytes_before -= bytes;
  }
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
    const uint64_t segment_bytes = fetch.shape.PaddedBytesOf(s);
    if (!HasRoom(lane, segment_bytes, now)) break;  // The rest counts as a chunk of its own.
    const auto slot = SlotFor(lane, segment_bytes, now);
    if (!slot) break;
    StartRead(lane, index, s, *slot, now);
    bytes += slot->bytes;
  }
  return bytes;
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
  // Generation 0 is left out: ticket 0 is nobody's.
  const auto generation = static_cast<uint32_t>((read.ticket.value >> 32) + 1);
  const Ticket ticket{uint64_t{std::max(generation, 1u)} << 32 | index};
  read.ticket = ticket;
  read.live = true;
  read.landed = false;
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
