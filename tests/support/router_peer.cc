#include "tests/support/router_peer.h"

#include <algorithm>

namespace kvstream::sched {

using Stage = SegmentState::Stage;

std::string RouterPeer::Check(const Router& router, uint64_t segment_bytes, TimeNs now) {
  for (const Fetch& fetch : router.fetches_) {
    if (!fetch.live) continue;
    if (auto wrong = CheckFetch(router, fetch); !wrong.empty()) return wrong;
    if (auto wrong = CheckWaiters(router, fetch); !wrong.empty()) return wrong;
  }
  if (auto wrong = CheckBatches(router); !wrong.empty()) return wrong;
  return CheckLanes(router, segment_bytes, now);
}

std::string RouterPeer::CheckFetch(const Router& router, const Fetch& fetch) {
  uint32_t reads = 0;
  uint32_t copies = 0;
  for (uint32_t s = 0; s < fetch.segments.size(); ++s) {
    reads += static_cast<uint32_t>(fetch.segments[s].reads.size());
    copies += fetch.segments[s].stage == Stage::kCopying ? 1 : 0;
    if (auto wrong = CheckSegment(router, fetch, s); !wrong.empty()) return wrong;
  }
  if (reads != fetch.reads) return "a fetch miscounts its reads";
  if (copies != fetch.copies) return "a fetch miscounts its copies";
  if (reads == 0 && copies == 0 && fetch.waiters.empty()) return "an idle fetch was not freed";
  const auto at = router.fetch_of_.find(fetch.content);
  if (at == router.fetch_of_.end() || at->second != fetch.index) return "a fetch is not findable";
  return "";
}

std::string RouterPeer::CheckSegment(const Router& router, const Fetch& fetch, uint32_t segment) {
  const SegmentState& state = fetch.segments[segment];
  const bool wanted = Router::Wanted(fetch, segment);
  for (const uint32_t r : state.reads) {
    const Read& read = router.reads_[r];
    if (&router.fetches_[read.fetch] != &fetch || read.segment != segment) {
      return "a segment names the read of another";
    }
    if (read.orphan != (state.stage == Stage::kCopying || !wanted || read.overdue)) {
      return read.orphan ? "a read that is wanted is quarantined" : "an orphan is not quarantined";
    }
  }
  switch (state.stage) {
    case Stage::kIdle:
      if (wanted) return "a wanted segment is idle";
      return state.reads.empty() ? "" : "a segment with reads is idle";
    case Stage::kQueued:
      if (!wanted) return "a segment is queued that nobody wants";
      if (router.Usable(fetch.tiers).empty()) return "a segment is queued that no tier can serve";
      return "";
    case Stage::kReading:
      if (state.reads.empty()) return "a segment is said to be read and is not";
      if (wanted && std::none_of(state.reads.begin(), state.reads.end(), [&](uint32_t r) {
            const Read& read = router.reads_[r];
            return !read.overdue && router.lanes_[read.tier.value].usable();
          })) {
        return "a wanted segment is being read by tiers alone that are out of service or overdue";
      }
      return "";
    case Stage::kCopying:
      return "";
  }
  return "";
}

std::string RouterPeer::CheckWaiters(const Router& router, const Fetch& fetch) {
  for (const Waiter& w : fetch.waiters) {
    const auto batch = router.batches_.find(w.ref.batch);
    if (batch == router.batches_.end() || batch->second.get() != w.batch) {
      return "a waiter outlives its batch";
    }
    const ItemState& item = w.batch->requests[w.ref.request].items[w.ref.item];
    const auto count = [&w](Need need) {
      return static_cast<uint32_t>(std::count(w.needs.begin(), w.needs.end(), need));
    };
    if (count(Need::kCopying) != w.copying) return "a waiter miscounts its copies";
    if (w.leaving && w.copying == 0) return "a waiter that left is still there";
    if (w.leaving) continue;
    if (item.decided) return "a decided item waits";
    if (item.spec.sources[item.source].content != fetch.content) return "an item waits twice";
    if (item.segments_left != w.needs.size() - count(Need::kDelivered)) {
      return "an item miscounts its segments";
    }
  }
  return "";
}

std::string RouterPeer::CheckLanes(const Router& router, uint64_t segment_bytes, TimeNs now) {
  for (const TierLane& lane : router.lanes_) {
    uint64_t queued = 0;
    for (const Fetch& fetch : router.fetches_) {
      if (!fetch.live || !fetch.tiers.Has(lane.id())) continue;
      queued += static_cast<uint64_t>(
          std::count_if(fetch.segments.begin(), fetch.segments.end(),
                        [](const SegmentState& s) { return s.stage == Stage::kQueued; }));
    }
    uint64_t in_flight = 0;
    uint64_t quarantined = 0;
    for (uint32_t r = lane.reads().oldest; r != kNoRead; r = router.reads_[r].newer) {
      in_flight += router.reads_[r].slot.bytes;
      quarantined += router.reads_[r].orphan ? router.reads_[r].slot.bytes : 0;
    }
    if (queued != router.queued_[lane.id().value]) return "a tier miscounts what waits for it";
    if (in_flight != lane.in_flight()) return "a tier miscounts its bytes in flight";
    if (quarantined != lane.quarantined()) return "a tier miscounts its quarantine";
    if (queued == 0 || !lane.usable() || !lane.HasRoom(segment_bytes)) continue;
    // The other policies let tiers idle, each by its own rule.
    if (router.options_.policy.policy != Policy::kCompletion) continue;
    if (router.options_.policy.narrows() && LeftToOthers(router, lane, now)) continue;
    if (const auto slot = router.slots_->AllocateRead(segment_bytes)) {
      router.slots_->Free(*slot);
      return "a segment waits though tier " + std::to_string(lane.id().value) + " could read it";
    }
  }
  return "";
}

bool RouterPeer::LeftToOthers(const Router& router, const TierLane& lane, TimeNs now) {
  if (!lane.rate_is_current(now)) return false;
  return std::all_of(router.fetches_.begin(), router.fetches_.end(), [&](const Fetch& fetch) {
    const bool queued = std::any_of(fetch.segments.begin(), fetch.segments.end(),
                                    [](const auto& s) { return s.stage == Stage::kQueued; });
    if (!fetch.live || !queued || !fetch.tiers.Has(lane.id())) return true;
    return std::any_of(router.lanes_.begin(), router.lanes_.end(), [&](const TierLane& other) {
      return other.id() != lane.id() && fetch.tiers.Has(other.id()) && other.usable() &&
             (lane.in_flight() > 0 || other.in_flight() > 0);
    });
  });
}

std::string RouterPeer::CheckBatches(const Router& router) {
  for (const auto& [id, batch] : router.batches_) {
    if (!batch->began) continue;
    for (uint32_t r = 0; r < batch->requests.size(); ++r) {
      const auto& items = batch->requests[r].items;
      for (uint32_t i = 0; i < items.size(); ++i) {
        if (items[i].decided) continue;
        if (items[i].source >= items[i].spec.sources.size()) return "an open item has no source";
        const Source& source = items[i].spec.sources[items[i].source];
        if (source.staged && !items[i].tried_staged) continue;
        const auto at = router.fetch_of_.find(source.content);
        if (at == router.fetch_of_.end()) return "an open item waits for nothing";
        const auto& waiters = router.fetches_[at->second].waiters;
        if (std::none_of(waiters.begin(), waiters.end(),
                         [ref = ItemRef{id, r, i}](const auto& w) { return w.ref == ref; })) {
          return "an open item does not wait for its content";
        }
      }
    }
  }
  for (const auto& step : router.steps_) {
    if (step->batches.empty()) return "a step outlives its batches";
    for (const TierLane& lane : router.lanes_) {
      const Step::Cursor& cursor = step->cursors[lane.id().value];
      uint64_t bytes = 0;
      for (size_t i = 0; i < cursor.list; ++i) {
        bytes += step->lists[i].bytes();
        if (!step->lists[i].EmptyFor(lane.id())) return "a list that has something is skipped";
      }
      if (bytes != cursor.bytes_before) return "a cursor miscounts what it has passed";
    }
  }
  return "";
}

}  // namespace kvstream::sched
