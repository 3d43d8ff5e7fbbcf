#include "server/sched/write_queue.h"

#include <algorithm>
#include <utility>

#include "server/base/check.h"

namespace kvstream::sched {

WriteQueue::WriteQueue(const WriteQueueOptions& options) : options_(options) {
  for (uint32_t i = 0; i < options.lanes.size(); ++i) {
    LaneOptions lane{.window_bytes = options.lanes[i].window_bytes, .quarantine_bytes = UINT64_MAX};
    tiers_.push_back(WriteTier{TierLane(TierId{i}, lane), options.lanes[i].backlog_bytes, 0, {}});
  }
}

TierSet WriteQueue::InService() const {
  TierSet in_service;
  for (const WriteTier& tier : tiers_) {
    if (tier.lane.usable()) in_service.Add(tier.lane.id());
  }
  return in_service;
}

TierId WriteQueue::HomeOf(uint64_t key_hash, TierSet candidates) const {
  const bool all_known = std::all_of(tiers_.begin(), tiers_.end(), [&](const WriteTier& t) {
    return !candidates.Has(t.lane.id()) || t.lane.rate() > 0;
  });
  const auto weight = [&](const WriteTier& t) { return all_known ? t.lane.rate() : 1.0; };
  double total = 0;
  for (const WriteTier& t : tiers_) total += candidates.Has(t.lane.id()) ? weight(t) : 0;
  double at = static_cast<double>(key_hash >> 11) * 0x1p-53 * total;
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
  tiers_[tier.value].owed.push_back(id);
}

void WriteQueue::Forgive(Chunk& chunk, TierId tier) {
  chunk.owed.Remove(tier);
  tiers_[tier.value].backlog -= chunk.bytes;
}

void WriteQueue::Add(StagedId id, uint64_t bytes, uint64_t key_hash, TimeNs now) {
  KV_CHECK(id > last_added_);
  last_added_ = id;
  Chunk& chunk = chunks_[id];
  chunk.bytes = bytes;
  chunk.staged_at = now;
  staged_bytes_ += bytes;
  const TierSet candidates = InService();
  if (!candidates.empty()) {
    const TierId home = HomeOf(key_hash, candidates);
    for (const WriteTier& t : tiers_) {
      const TierId tier = t.lane.id();
      if (tier == home || (options_.replicate_all && candidates.Has(tier))) Owe(id, chunk, tier);
    }
  }
  Conclude(id);
}

void WriteQueue::OnWritten(StagedId id, TierId tier, bool ok, TimeNs now) {
  const auto it = chunks_.find(id);
  KV_CHECK(it != chunks_.end() && it->second.writing.Has(tier));
  Chunk& chunk = it->second;
  tiers_[tier.value].lane.Ended(chunk.bytes, ok, now);
  chunk.writing.Remove(tier);
  (ok ? chunk.written : chunk.failed).Add(tier);
  Conclude(id);
}

void WriteQueue::Conclude(StagedId id) {
  Chunk& chunk = chunks_.at(id);
  if (!chunk.owed.empty() || !chunk.writing.empty()) return;
  if (chunk.written.empty()) {
    const TierSet untried = TierSet::FromBits(InService().bits() & ~chunk.failed.bits());
    for (const WriteTier& t : tiers_) {
      if (!untried.Has(t.lane.id())) continue;
      Owe(id, chunk, t.lane.id());
      return;
    }
  }
  commands_.push_back(ChunkFinished{id, chunk.written});
  staged_bytes_ -= chunk.bytes;
  chunks_.erase(id);
}

void WriteQueue::SetTierInService(TierId tier, bool in_service) {
  tiers_[tier.value].lane.set_held_out(!in_service);
  if (in_service) return;
  std::vector<StagedId> owed;
  for (auto& [id, chunk] : chunks_) {
    if (!chunk.owed.Has(tier)) continue;
    Forgive(chunk, tier);
    owed.push_back(id);
  }
  tiers_[tier.value].owed.clear();
  std::sort(owed.begin(), owed.end());  // The map's order is not deterministic.
  for (const StagedId id : owed) Conclude(id);
}

std::vector<WriteCommand> WriteQueue::Poll(TierSet demand, bool stores_wait, TimeNs now) {
  next_deadline_ = kNever;
  for (WriteTier& tier : tiers_) {
    DropSecondCopies(tier, stores_wait, now);
    if (tier.lane.usable()) StartWrites(tier, demand.Has(tier.lane.id()), now);
  }
  return std::exchange(commands_, {});
}

void WriteQueue::StartWrites(WriteTier& tier, bool demand, TimeNs now) {
  const TierId id = tier.lane.id();
  const bool pressed = staged_bytes_ > options_.watermark_bytes;
  while (!tier.owed.empty()) {
    const StagedId head = tier.owed.front();
    const auto it = chunks_.find(head);
    if (it == chunks_.end() || !it->second.owed.Has(id)) {
      tier.owed.pop_front();
      continue;
    }
    Chunk& chunk = it->second;
    const TimeNs old_at = chunk.staged_at + options_.max_defer;
    if (demand && !pressed && head > gate_ && !gate_for_good_ && now < old_at) {
      next_deadline_ = std::min(next_deadline_, old_at);
      return;
    }
    if (!tier.lane.HasRoom(chunk.bytes)) return;
    tier.owed.pop_front();
    Forgive(chunk, id);
    chunk.writing.Add(id);
    tier.lane.Began(chunk.bytes, now);
    commands_.push_back(StartWrite{head, id});
  }
}

void WriteQueue::DropSecondCopies(WriteTier& tier, bool stores_wait, TimeNs now) {
  const TierId id = tier.lane.id();
  for (auto at = tier.owed.begin(); at != tier.owed.end();) {
    const auto it = chunks_.find(*at);
    if (it == chunks_.end() || !it->second.owed.Has(id)) {
      at = tier.owed.erase(at);
      continue;
    }
    const TimeNs old_at = it->second.staged_at + options_.max_defer;
    const bool full = tier.backlog > tier.backlog_max;
    if (!full && !(stores_wait && old_at <= now)) {
      if (stores_wait) next_deadline_ = std::min(next_deadline_, old_at);
      return;  // Oldest first: the rest is younger.
    }
    if (it->second.written.empty()) {
      ++at;  // A first copy is never dropped.
      continue;
    }
    const StagedId chunk = *at;
    at = tier.owed.erase(at);
    Forgive(it->second, id);
    commands_.push_back(CopyDropped{chunk, id});
    Conclude(chunk);
  }
}

}  // namespace kvstream::sched
