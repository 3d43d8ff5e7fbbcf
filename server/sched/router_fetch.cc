// Fetches, reads and copies: how a segment gets from a tier to everyone who waits for it.
#include <algorithm>
#include <array>
#include <utility>

#include "server/base/check.h"
#include "server/sched/router.h"

namespace kvstream::sched {

using Stage = SegmentState::Stage;

TierSet Router::InService() const {
  TierSet in_service;
  for (const TierLane& lane : lanes_) {
    if (lane.usable()) in_service.Add(lane.id());
  }
  return in_service;
}

bool Router::Wanted(const Fetch& fetch, uint32_t segment) {
  return std::any_of(fetch.waiters.begin(), fetch.waiters.end(), [segment](const Waiter& w) {
    return !w.leaving && w.needs[segment] == Need::kWanted;
  });
}

void Router::SetStage(Fetch& fetch, uint32_t segment, Stage stage) {
  Stage& current = fetch.segments[segment].stage;
  if (current == stage) return;
  for (const TierLane& lane : lanes_) {
    if (!fetch.tiers.Has(lane.id())) continue;
    if (current == Stage::kQueued) queued_[lane.id().value] -= 1;
    if (stage == Stage::kQueued) queued_[lane.id().value] += 1;
  }
  current = stage;
}

void Router::OnRead(Ticket ticket, absl::StatusCode code, TimeNs now) {
  const uint32_t index = ReadOf(ticket, /*landed=*/false);
  Read& read = reads_[index];
  read.landed = true;
  Fetch& fetch = fetches_[read.fetch];
  SegmentState& segment = fetch.segments[read.segment];
  TierLane& lane = lanes_[read.tier.value];
  const bool ok = code == absl::StatusCode::kOk;
  lane.Ended(read.slot.bytes, ok, now);
  if (ok) lane.NoteRead(read.ahead, read.slot.bytes, now - read.began);
  RemoveFromLane(lane, read);
  if (read.orphan) lane.Unquarantine(read.slot.bytes);
  fetch.reads -= 1;
  segment.reads.erase(std::find(segment.reads.begin(), segment.reads.end(), index));
  const uint32_t number = read.segment;
  const TierId tier = read.tier;
  if (ok && segment.stage != Stage::kCopying && Wanted(fetch, number)) {
    StartCopy(index);
  } else {
    FreeRead(index);
    if (!ok) FailReplica(fetch, tier, code, ticket);
    Reconsider(fetch, number);
  }
  UpdateOrphans(fetch, number);
  MaybeFree(fetch);
  Settle(now);
}

void Router::StartCopy(uint32_t index) {
  Read& read = reads_[index];
  Fetch& fetch = fetches_[read.fetch];
  SegmentState& segment = fetch.segments[read.segment];
  if (segment.copied != index) {
    segment.copied = index;
    fetch.copies += 1;
    SetStage(fetch, read.segment, Stage::kCopying);
  }
  CopySegment command{read.ticket, read.tier, fetch.content, read.segment, read.slot, {}};
  for (Waiter& w : fetch.waiters) {
    if (w.leaving || w.needs[read.segment] != Need::kWanted) continue;
    w.needs[read.segment] = Need::kCopying;
    w.copying += 1;
    w.batch->requests[w.ref.request].copies += 1;
    command.items.push_back(w.ref);
  }
  read.copies += command.items.size();
  commands_.push_back(std::move(command));
}

void Router::StartLateCopies() {
  for (const Ticket ticket : recopy_) {
    const auto index = static_cast<uint32_t>(ticket.value);
    const Read& read = reads_[index];
    if (!read.live || read.ticket != ticket || !read.verified || read.damaged) continue;
    if (Wanted(fetches_[read.fetch], read.segment)) StartCopy(index);  // For all who came.
  }
  recopy_.clear();
}

void Router::OnCopy(Ticket ticket, std::span<const ItemRef> items, absl::StatusCode code,
                    TimeNs now) {
  const uint32_t index = ReadOf(ticket, /*landed=*/true);
  Read& read = reads_[index];
  Fetch& fetch = fetches_[read.fetch];
  const bool ok = code == absl::StatusCode::kOk;
  const uint32_t segment = read.segment;
  (ok ? read.verified : read.damaged) = true;
  KV_CHECK(read.copies >= items.size());
  read.copies -= items.size();
  // Both are in the order in which the waiters came.
  auto waiter = fetch.waiters.begin();
  for (const ItemRef& ref : items) {
    while (waiter != fetch.waiters.end() && !(waiter->ref == ref)) ++waiter;
    KV_CHECK(waiter != fetch.waiters.end() && waiter->needs[segment] == Need::kCopying);
    EndCopyFor(*waiter, segment, ok);
  }
  if (!read.damaged && Wanted(fetch, segment)) StartCopy(index);  // For those that came meanwhile.
  if (read.copies == 0) EndCopies(index);
  Sweep(fetch);
  UpdateOrphans(fetch, segment);
  MaybeFree(fetch);
  Settle(now);
}

void Router::EndCopies(uint32_t index) {
  const Read& read = reads_[index];
  Fetch& fetch = fetches_[read.fetch];
  const uint32_t segment = read.segment;
  const TierId tier = read.tier;
  const bool damaged = read.damaged;
  const Ticket ticket = read.ticket;
  fetch.copies -= 1;
  fetch.segments[segment].copied = kNoRead;
  SetStage(fetch, segment, Stage::kIdle);
  FreeRead(index);
  if (damaged) FailReplica(fetch, tier, absl::StatusCode::kDataLoss, ticket);
  Reconsider(fetch, segment);
}

void Router::EndCopyFor(Waiter& w, uint32_t segment, bool ok) {
  KV_CHECK(w.copying > 0);
  RequestState& request = w.batch->requests[w.ref.request];
  ItemState& item = request.items[w.ref.item];
  w.copying -= 1;
  request.copies -= 1;
  w.needs[segment] = ok ? Need::kDelivered : Need::kWanted;
  if (w.leaving || !ok) return;
  item.segments_left -= 1;
  if (item.segments_left > 0) return;
  Decide(w.batch, w.ref, absl::StatusCode::kOk);
  w.leaving = true;
}

void Router::FailReplica(Fetch& fetch, TierId tier, absl::StatusCode code, Ticket read) {
  if (!fetch.failed.Has(tier)) {
    fetch.failed.Add(tier);
    if (fetch.worst != absl::StatusCode::kDataLoss) fetch.worst = code;
    commands_.push_back(ReplicaFailed{fetch.content, tier, code, read});
  }
  if (fetch.tiers.Has(tier)) {
    const auto segments = static_cast<uint32_t>(fetch.segments.size());
    for (uint32_t s = 0; s < segments; ++s) {
      if (fetch.segments[s].stage == Stage::kQueued) queued_[tier.value] -= 1;
    }
    fetch.tiers.Remove(tier);
    // Entries under the old set of holders stay as hints; these take their place. The last first,
    // so that they stand in order at the front.
    for (uint32_t s = segments; s-- > 0;) {
      if (fetch.segments[s].stage == Stage::kQueued) PushToWaiters(fetch, s, /*front=*/true);
    }
  }
  FailIfUnservable(fetch);
}

void Router::Reconsider(Fetch& fetch, uint32_t s) {
  SegmentState& segment = fetch.segments[s];
  if (segment.stage == Stage::kCopying) return;
  const bool read_coming = std::any_of(
      segment.reads.begin(), segment.reads.end(),
      [this](uint32_t r) { return !reads_[r].overdue && lanes_[reads_[r].tier.value].usable(); });
  if (!Wanted(fetch, s)) {
    SetStage(fetch, s, segment.reads.empty() ? Stage::kIdle : Stage::kReading);
  } else if (read_coming) {
    SetStage(fetch, s, Stage::kReading);
  } else if (segment.stage != Stage::kQueued) {
    SetStage(fetch, s, Stage::kQueued);
    PushToWaiters(fetch, s, /*front=*/true);
  }
}

void Router::ReconsiderSegments(Fetch& fetch) {
  // The last first: what is listed again stands in order at the front.
  for (auto s = static_cast<uint32_t>(fetch.segments.size()); s-- > 0;) {
    Reconsider(fetch, s);
    UpdateOrphans(fetch, s);
  }
}

void Router::ReconsiderAll() {
  // No iterators: the table may grow meanwhile, by fetches that know what has changed.
  for (size_t next = fetches_.size(); next-- > 0;) {
    Fetch& fetch = fetches_[next];
    if (fetch.live) FailIfUnservable(fetch);
    if (!fetch.live) continue;
    ReconsiderSegments(fetch);
    MaybeFree(fetch);
  }
}

void Router::FailIfUnservable(Fetch& fetch) {
  if (!Usable(fetch.tiers).empty()) return;
  for (Waiter& w : fetch.waiters) {
    // One whose last segments have all landed needs no tier any more.
    for (uint32_t s = 0; s < fetch.segments.size() && !w.leaving; ++s) {
      w.leaving = w.needs[s] == Need::kWanted && fetch.segments[s].stage != Stage::kCopying;
    }
  }
  ReconsiderSegments(fetch);
  Sweep(fetch);
}

void Router::Sweep(Fetch& fetch) {
  absl::InlinedVector<std::pair<Batch*, ItemRef>, 4> gone;
  std::erase_if(fetch.waiters, [&gone](const Waiter& w) {
    if (!w.leaving || w.copying > 0) return false;
    gone.emplace_back(w.batch, w.ref);
    return true;
  });
  const absl::StatusCode failure =
      fetch.tiers.empty() ? fetch.worst : absl::StatusCode::kUnavailable;
  for (const auto& [batch, ref] : gone) {
    if (!batch->requests[ref.request].items[ref.item].decided) AdvanceItem(batch, ref, failure);
  }
  for (const auto& [batch, ref] : gone) {
    // A batch is forgotten with its last request, so each of its requests is asked once.
    if (batches_.contains(ref.batch)) MaybeFinish(batch, ref.request);
  }
}

void Router::Leave(Fetch& fetch, const Batch& batch) {
  std::erase_if(fetch.waiters, [&batch](Waiter& w) {
    if (w.batch != &batch) return false;
    w.leaving = true;
    return w.copying == 0;
  });
  ReconsiderSegments(fetch);
  MaybeFree(fetch);
}

void Router::UpdateOrphans(Fetch& fetch, uint32_t s) {
  const SegmentState& segment = fetch.segments[s];
  if (segment.reads.empty()) return;
  const bool unwanted = segment.stage == Stage::kCopying || !Wanted(fetch, s);
  for (const uint32_t r : segment.reads) {
    Read& read = reads_[r];
    const bool orphan = unwanted || read.overdue;
    if (read.orphan == orphan) continue;
    read.orphan = orphan;
    TierLane& lane = lanes_[read.tier.value];
    orphan ? lane.Quarantine(read.slot.bytes) : lane.Unquarantine(read.slot.bytes);
  }
}

void Router::NoteOverdue(Fetch& fetch, const Batch& batch, TimeNs now) {
  for (const Waiter& w : fetch.waiters) {
    for (uint32_t s = 0; s < fetch.segments.size() && w.batch == &batch && !w.leaving; ++s) {
      if (w.needs[s] != Need::kWanted) continue;
      for (const uint32_t r : fetch.segments[s].reads) {
        reads_[r].overdue = reads_[r].overdue || MayHang(reads_[r], now);
      }
    }
  }
}

void Router::FailOverdue(Fetch& fetch) {
  TierSet failed;
  std::array<Ticket, kTiersMax> reads;
  for (const SegmentState& segment : fetch.segments) {
    TierSet once;
    for (const uint32_t r : segment.reads) {
      if (!reads_[r].overdue) continue;
      if (once.Has(reads_[r].tier)) failed.Add(reads_[r].tier);
      once.Add(reads_[r].tier);
      reads[reads_[r].tier.value] = reads_[r].ticket;
    }
  }
  for (const TierLane& lane : lanes_) {
    if ((failed & fetch.tiers).Has(lane.id())) {
      FailReplica(fetch, lane.id(), absl::StatusCode::kUnavailable, reads[lane.id().value]);
    }
  }
}

uint32_t Router::ReadOf(Ticket ticket, bool landed) const {
  const auto index = static_cast<uint32_t>(ticket.value);
  KV_CHECK(index < reads_.size() && reads_[index].live && reads_[index].ticket == ticket &&
           reads_[index].landed == landed);
  return index;
}

void Router::AddToLane(TierLane& lane, uint32_t index) {
  TierLane::ReadsInFlight& reads = lane.reads();
  reads_[index].older = reads.newest;
  reads_[index].newer = kNoRead;
  (reads.newest == kNoRead ? reads.oldest : reads_[reads.newest].newer) = index;
  reads.newest = index;
}

void Router::RemoveFromLane(TierLane& lane, const Read& read) {
  TierLane::ReadsInFlight& reads = lane.reads();
  (read.older == kNoRead ? reads.oldest : reads_[read.older].newer) = read.newer;
  (read.newer == kNoRead ? reads.newest : reads_[read.newer].older) = read.older;
}

void Router::FreeRead(uint32_t index) {
  Read& read = reads_[index];
  const bool right = read.verified && !read.damaged;
  const ContentId& content = fetches_[read.fetch].content;
  if (!right || keeper_ == nullptr || !keeper_->Keep(content, read.segment, read.slot)) {
    slots_->Free(read.slot);
  }
  read.live = false;
  read.orphan = false;
  read.overdue = false;
  read.verified = false;
  read.damaged = false;
  free_reads_.push_back(index);
}

void Router::MaybeFree(Fetch& fetch) {
  if (!fetch.live || !fetch.waiters.empty() || fetch.reads > 0 || fetch.copies > 0) return;
  fetch_of_.erase(fetch.content);
  const uint32_t index = fetch.index;
  const uint32_t generation = fetch.generation + 1;
  fetch = Fetch{};
  fetch.generation = generation;
  fetch.index = index;
  free_fetches_.push_back(index);
}

}  // namespace kvstream::sched
