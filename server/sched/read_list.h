// An ordered list of segments that wait to be claimed, cut by the set of tiers that hold them and
// by those that the policy means them for. Each tier takes from its own end: the fastest holder of
// a set from the front, the others from the back. Segments that fewer tiers hold go first, since
// shared work is what can still be balanced.
//
// Entries are hints: a segment may have been served through another list, or lost a replica. The
// caller says, for each entry, whether it still waits; those that do not are dropped.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "server/base/types.h"

namespace kvstream::sched {

// A segment of a fetch. `generation` tells a reused table entry from the one that was meant.
struct SegmentRef {
  uint32_t fetch = 0;
  uint32_t generation = 0;
  uint32_t segment = 0;
  uint32_t bytes = 0;
};

class ReadList {
 public:
  // `assigned`: the tiers that are to read it, if they can; empty: all.
  void PushBack(TierSet holders, SegmentRef segment, TierSet assigned = {}) {
    Class(holders, assigned).push_back(segment);
    bytes_ += segment.bytes;
  }
  // For segments that must be read again: they are the oldest.
  void PushFront(TierSet holders, SegmentRef segment, TierSet assigned = {}) {
    Class(holders, assigned).push_front(segment);
    bytes_ += segment.bytes;
  }

  // Takes the next segment for `tier`; false when there is none. `end(holders, assigned)` tells
  // from which end of such segments the tier takes, if it may. `waits(ref, holders)` tells whether
  // an entry may be claimed by this tier now, must go (drop), or must stay for others (skip).
  enum class End { kNone, kFront, kBack };
  enum class Verdict { kTake, kDrop, kSkip };
  template <typename EndOf, typename Waits>
  bool Take(TierId tier, EndOf&& end, Waits&& waits, SegmentRef* taken) {
    for (auto& [holders, assigned, entries] : classes_) {
      if (!holders.Has(tier) || entries.empty()) continue;
      const End from = end(holders, assigned);
      if (from == End::kNone) continue;
      const bool front = from == End::kFront;
      while (!entries.empty()) {
        const SegmentRef ref = front ? entries.front() : entries.back();
        const Verdict verdict = waits(ref, holders);
        if (verdict == Verdict::kSkip) break;
        bytes_ -= ref.bytes;
        front ? entries.pop_front() : entries.pop_back();
        if (verdict == Verdict::kTake) {
          *taken = ref;
          return true;
        }
      }
    }
    return false;
  }

  // Of all entries: at least what waits.
  uint64_t bytes() const { return bytes_; }

  // Whether no segment that the tier holds is in it.
  bool EmptyFor(TierId tier) const {
    return std::all_of(classes_.begin(), classes_.end(), [tier](const HolderClass& c) {
      return !c.holders.Has(tier) || c.entries.empty();
    });
  }

 private:
  struct HolderClass {
    TierSet holders;
    TierSet assigned;
    std::deque<SegmentRef> entries;
  };

  std::deque<SegmentRef>& Class(TierSet holders, TierSet assigned) {
    auto at = classes_.begin();
    for (; at != classes_.end(); ++at) {
      if (at->holders == holders && at->assigned == assigned) return at->entries;
      if (at->holders.size() > holders.size()) break;
    }
    return classes_.insert(at, HolderClass{holders, assigned, {}})->entries;
  }

  uint64_t bytes_ = 0;
  std::vector<HolderClass> classes_;  // By ascending number of holders.
};

}  // namespace kvstream::sched
