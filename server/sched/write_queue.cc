#include "server/sched/write_queue.h"

#include <algorithm>
#include <utility>

#include "server/base/check.h"

namespace kvstream::sched {
namespace {

// A hash as a number in [0, 1).
double Unit(uint64_t hash) { return static_cast<double>(hash >> 11) * 0x1p-53; }

// Another hash of the same, so that two choices by one key do not hang together.
uint64_t Again(uint64_t hash) {
  hash = (hash ^ (hash >> 32)) * 0x9e3779b97f4a7c15;
  return (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9;
}

}  // namespace

WriteQueue::WriteQueue(const WriteQueueOptions& options)
    : options_(options), replicated_(options.replicate_all ? 1 : 0) {
  for (uint32_t i = 0; i < options.lanes.size(); ++i) {
    LaneOptions lane{.window_bytes = options.lanes[i].window_bytes, .quarantine_bytes = UINT64_MAX};
    tiers_.push_back(
        WriteTier{TierLane(TierId{i}, lane), options.lanes[i].backlog_bytes, 0, 0, {}});
  }
}

TierSet WriteQueue::InService() const {
  TierSet in_service;
  for (const WriteTier& tier : tiers_) {
    if (tier.lane.usable()) in_service.Add(tier.lane.id());
  }
  return in_service;
}

TierSet WriteQueue::All() const {
  TierSet all;
  for (const WriteTier& tier : tiers_) all.Add(tier.lane.id());
  return all;
}

TierId WriteQueue::HomeOf(uint64_t key_hash, TierSet candidates) const {
  const bool all_known = std::all_of(tiers_.begin(), tiers_.end(), [&](const WriteTier& t) {
    return !candidates.Has(t.lane.id()) || t.lane.rate() > 0;
  });
  const auto weight = [&](const WriteTier& t) { return all_known ? t.lane.rate() : 1.0; };
  double total = 0;
  for (const WriteTier& t : tiers_) total += candidates.Has(t.lane.id()) ? weight(t) : 0;
  double at = options_.home_first ? 0 : Unit(key_hash) * total;
  TierId home{0};
  for (const WriteTier& t : tiers_) {
    if (!candidates.Has(t.lane.id())) continue;
    home = t.lane.id();
    at -= weight(t);
    if (at < 0) break;
  }
  return home;
}

void WriteQueue::Owe(StagedId id, Chunk& chunk, TierId tier) {
  chunk.owed.Add(tier);
  tiers_[tier.value].backlog += chunk.bytes;
  tiers_[tier.value].owed.insert(id);
}

void WriteQueue::Forgive(StagedId id, Chunk& chunk, TierId tier) {
  chunk.owed.Remove(tier);
  tiers_[tier.value].owed.erase(id);
  tiers_[tier.value].backlog -= chunk.bytes;
  if (!chunk.written.empty()) tiers_[tier.value].second_copies -= 1;
}

void WriteQueue::Add(StagedId id, uint64_t bytes, uint64_t key_hash, TimeNs now) {
  KV_CHECK(id > last_added_);
  last_added_ = id;
  Chunk& chunk = chunks_[id];
  chunk.bytes = bytes;
  chunk.staged_at = now;
  staged_bytes_ += bytes;
  const TierSet in_service = InService();
  const TierId home = HomeOf(key_hash, in_service.empty() ? All() : in_service);
  const bool everywhere = Unit(Again(key_hash)) < replicated_;
  for (const WriteTier& t : tiers_) {
    const TierId tier = t.lane.id();
    if (tier == home || everywhere) Owe(id, chunk, tier);
  }
}

void WriteQueue::OnWritten(StagedId id, TierId tier, bool ok, TimeNs now) {
  const auto it = chunks_.find(id);
  KV_CHECK(it != chunks_.end() && it->second.writing.Has(tier));
  Chunk& chunk = it->second;
  tiers_[tier.value].lane.Ended(chunk.bytes, ok, now);
  chunk.writing.Remove(tier);
  if (ok && chunk.written.empty()) {
    for (WriteTier& t : tiers_) t.second_copies += chunk.owed.Has(t.lane.id()) ? 1 : 0;
  }
  (ok ? chunk.written : chunk.failed).Add(tier);
  Conclude(id);
}

void WriteQueue::PlaceFirstCopy(StagedId id, Chunk& chunk) {
  if (!chunk.written.empty() || !chunk.writing.empty()) return;
  const TierSet in_service = InService();
  if (!(chunk.owed & in_service).empty()) return;
  TierSet untried = in_service.Without(chunk.failed);
  if (untried.empty()) {
    if (!chunk.owed.empty()) return;  // It waits for the tiers that it is owed to.
    untried = All().Without(chunk.failed);
  }
  if (untried.empty()) return;
  for (const WriteTier& t : tiers_) {
    if (chunk.owed.Has(t.lane.id())) Forgive(id, chunk, t.lane.id());
  }
  for (const WriteTier& t : tiers_) {
    if (!untried.Has(t.lane.id())) continue;
    Owe(id, chunk, t.lane.id());
    return;
  }
}

void WriteQueue::Conclude(StagedId id) {
  Chunk& chunk = chunks_.at(id);
  PlaceFirstCopy(id, chunk);
  Park(chunk);
  if (!chunk.owed.empty() || !chunk.writing.empty()) return;
  commands_.push_back(ChunkFinished{id, chunk.written});
  staged_bytes_ -= chunk.bytes;
  chunks_.erase(id);
}

void WriteQueue::Park(Chunk& chunk) {
  const bool parked = !chunk.written.empty() && chunk.writing.empty() && !chunk.owed.empty() &&
                      (chunk.owed & InService()).empty();
  if (parked == chunk.parked) return;
  chunk.parked = parked;
  parked ? parked_bytes_ += chunk.bytes : parked_bytes_ -= chunk.bytes;
}

void WriteQueue::SetTierInService(TierId tier, bool in_service) {
  TierLane& lane = tiers_[tier.value].lane;
  if (lane.usable() == in_service) return;
  lane.set_held_out(!in_service);
  for (auto& [id, chunk] : chunks_) {
    PlaceFirstCopy(id, chunk);
    Park(chunk);
  }
}

void WriteQueue::SetRoom(TierId tier, uint64_t bytes, bool more_comes) {
  tiers_[tier.value].room = bytes;
  tiers_[tier.value].more_room_comes = more_comes;
}

std::vector<WriteCommand> WriteQueue::Poll(TierSet demand, bool room_wanted, TimeNs now) {
  next_deadline_ = kNever;
  for (WriteTier& tier : tiers_) {
    DropSecondCopies(tier, room_wanted, now);
    if (tier.lane.usable()) StartWrites(tier, demand.Has(tier.lane.id()), now);
  }
  return std::exchange(commands_, {});
}

void WriteQueue::StartWrites(WriteTier& tier, bool demand, TimeNs now) {
  const TierId id = tier.lane.id();
  const bool pressed = staged_bytes_ - parked_bytes_ > options_.watermark_bytes;
  while (!tier.owed.empty()) {
    const StagedId head = *tier.owed.begin();
    Chunk& chunk = chunks_.at(head);
    const TimeNs old_at = chunk.staged_at + options_.max_defer;
    if (demand && !pressed && head > gate_ && !gate_for_good_ && now < old_at) {
      next_deadline_ = std::min(next_deadline_, old_at);
      return;
    }
    if (!tier.lane.HasRoom(chunk.bytes)) return;
    const uint64_t in_flight = tier.lane.in_flight();
    const bool fits = in_flight <= tier.room && chunk.bytes <= tier.room - in_flight;
    if (!fits && (in_flight > 0 || tier.more_room_comes)) return;
    Forgive(head, chunk, id);
    chunk.writing.Add(id);
    tier.lane.Began(chunk.bytes, now);
    commands_.push_back(StartWrite{head, id});
  }
}

void WriteQueue::DropSecondCopies(WriteTier& tier, bool room_wanted, TimeNs now) {
  const TierId id = tier.lane.id();
  const bool hopeless = gate_for_good_ && !tier.lane.usable();
  // What a tier out of service is owed makes room for stores at once, a window of it at a time.
  uint64_t yields = room_wanted && !tier.lane.usable() ? tier.lane.window_bytes() : 0;
  for (auto at = tier.owed.begin(); at != tier.owed.end() && tier.second_copies > 0;) {
    const StagedId owed = *at++;
    Chunk& chunk = chunks_.at(owed);
    const TimeNs old_at = chunk.staged_at + options_.max_defer;
    const bool full = tier.backlog > tier.backlog_max;
    if (!full && !hopeless && yields == 0 && !(room_wanted && old_at <= now)) {
      if (room_wanted) next_deadline_ = std::min(next_deadline_, old_at);
      return;  // Oldest first: the rest is younger.
    }
    if (chunk.written.empty()) continue;  // A first copy is never dropped.
    yields -= std::min(yields, chunk.bytes);
    Forgive(owed, chunk, id);
    commands_.push_back(CopyDropped{owed, id});
    Conclude(owed);
  }
}

}  // namespace kvstream::sched
