// How chunks that are wanted come to be listed: fetches, who waits for them, and where they stand.
#include <algorithm>
#include <utility>

#include "server/base/check.h"
#include "server/sched/router.h"

namespace kvstream::sched {

using Stage = SegmentState::Stage;

uint32_t Router::FetchFor(const ItemState& item) {
  const Source& source = item.spec.sources[item.source];
  const auto [it, added] = fetch_of_.try_emplace(source.content);
  if (added) {
    if (free_fetches_.empty()) {
      free_fetches_.push_back(static_cast<uint32_t>(fetches_.size()));
      fetches_.emplace_back();
    }
    it->second = free_fetches_.back();
    free_fetches_.pop_back();
    Fetch& fetch = fetches_[it->second];
    const uint32_t generation = fetch.generation;
    fetch = Fetch{};
    fetch.live = true;
    fetch.generation = generation;
    fetch.index = it->second;
    fetch.content = source.content;
    fetch.shape = item.spec.shape;
    fetch.tiers = source.tiers;
    fetch.segments.resize(item.spec.shape.segments());
  } else {
    // Replicas published since the fetch began take part; those that have failed it since the item
    // was admitted do not.
    Fetch& fetch = fetches_[it->second];
    KV_CHECK(fetch.shape == item.spec.shape);
    const TierSet fresh =
        TierSet::FromBits(source.tiers.bits() & ~fetch.failed.bits() & ~fetch.tiers.bits());
    if (!fresh.empty()) AddTiers(fetch, fresh);
  }
  return it->second;
}

void Router::Republish(const Source& source) {
  const auto it = fetch_of_.find(source.content);
  if (it == fetch_of_.end()) return;
  Fetch& fetch = fetches_[it->second];
  const TierSet back = source.tiers & fetch.failed;
  if (back.empty()) return;
  fetch.failed = TierSet::FromBits(fetch.failed.bits() & ~back.bits());
  AddTiers(fetch, back);
}

void Router::AddTiers(Fetch& fetch, TierSet fresh) {
  fetch.tiers = fetch.tiers | fresh;
  for (uint32_t s = 0; s < fetch.segments.size(); ++s) {
    if (fetch.segments[s].stage != Stage::kQueued) continue;
    for (const TierLane& lane : lanes_) {
      if (fresh.Has(lane.id())) queued_[lane.id().value] += 1;
    }
    PushToWaiters(fetch, s, /*front=*/false);
  }
}

void Router::Join(Batch* batch, const ItemRef& ref) {
  ItemState& item = batch->requests[ref.request].items[ref.item];
  Fetch& fetch = fetches_[FetchFor(item)];
  item.segments_left = static_cast<uint32_t>(fetch.segments.size());
  Waiter waiter;
  waiter.batch = batch;
  waiter.ref = ref;
  const auto rank = std::find_if(fetch.waiters.begin(), fetch.waiters.end(),
                                 [&](const Waiter& w) { return w.batch->step == batch->step; });
  waiter.assigned = rank != fetch.waiters.end() ? rank->assigned : Assign(*batch->step);
  waiter.needs.resize(fetch.segments.size(), Need::kWanted);
  fetch.waiters.push_back(std::move(waiter));
  for (uint32_t s = 0; s < fetch.segments.size(); ++s) {
    switch (fetch.segments[s].stage) {
      case Stage::kIdle:
        SetStage(fetch, s, Stage::kQueued);
        [[fallthrough]];
      case Stage::kQueued:
        EnqueueOnce(fetch, fetch.waiters.size() - 1, s, /*front=*/false);
        break;
      case Stage::kReading:
        Reconsider(fetch, s);  // Only tiers out of service may be reading it.
        UpdateOrphans(fetch, s);
        break;
      case Stage::kCopying:
        // Once a running copy tells that the bytes are right; at once where one has.
        recopy_.push_back(reads_[fetch.segments[s].copied].ticket);
        break;
    }
  }
}

TierSet Router::Assign(Step& step) const {
  const PolicyOptions& policy = options_.policy;
  if (policy.policy == Policy::kSingle) return TierSet::Of(policy.single);
  if (policy.policy != Policy::kFixed) return {};
  const uint64_t before = step.chunks * policy.fixed_percent / 100;
  const uint64_t with = (step.chunks + 1) * policy.fixed_percent / 100;
  const uint64_t others = lanes_.size() - 1;
  const uint64_t chunk = step.chunks++;
  if (with > before || others == 0) return TierSet::Of(TierId{0});
  // The rest goes round.
  return TierSet::Of(TierId{static_cast<uint32_t>(1 + (chunk - with) % others)});
}

void Router::Enqueue(const Fetch& fetch, const Waiter& waiter, uint32_t segment, bool front) {
  Step& step = *waiter.batch->step;
  const size_t at = ListOf(step, waiter.ref.request);
  const auto bytes = static_cast<uint32_t>(fetch.shape.PaddedBytesOf(segment));
  const SegmentRef ref{fetch.index, fetch.generation, segment, bytes};
  if (front) {
    step.lists[at].PushFront(fetch.tiers, ref, waiter.assigned);
  } else {
    step.lists[at].PushBack(fetch.tiers, ref, waiter.assigned);
  }
  step.queued_bytes += bytes;
  queued_bytes_ += bytes;
  for (const TierLane& lane : lanes_) {
    Step::Cursor& cursor = step.cursors[lane.id().value];
    cursor.found_nothing = false;
    if (cursor.list <= at) continue;
    cursor.bytes_before += bytes;
    // It may have had nothing for the tier before.
    while (fetch.tiers.Has(lane.id()) && cursor.list > at) {
      cursor.list -= 1;
      cursor.bytes_before -= step.lists[cursor.list].bytes();
    }
  }
}

void Router::EnqueueOnce(const Fetch& fetch, size_t waiter, uint32_t segment, bool front) {
  const auto wants = [segment](const Waiter& w) {
    return !w.leaving && w.needs[segment] == Need::kWanted;
  };
  const Waiter& w = fetch.waiters[waiter];
  if (!wants(w)) return;
  // Only the ranks of a joint step share lists.
  for (size_t i = 0; i < waiter && w.batch->step->joint; ++i) {
    const Waiter& other = fetch.waiters[i];
    if (wants(other) && other.batch->step == w.batch->step &&
        ListOf(*w.batch->step, other.ref.request) == ListOf(*w.batch->step, w.ref.request)) {
      return;  // Several ranks of a step want it: one entry is theirs.
    }
  }
  Enqueue(fetch, w, segment, front);
}

void Router::PushToWaiters(const Fetch& fetch, uint32_t segment, bool front) {
  for (size_t w = 0; w < fetch.waiters.size(); ++w) EnqueueOnce(fetch, w, segment, front);
}

size_t Router::ListOf(const Step& step, uint32_t request) const {
  return step.joint && options_.policy.policy != Policy::kRequestAtATime ? 0 : request;
}

}  // namespace kvstream::sched
