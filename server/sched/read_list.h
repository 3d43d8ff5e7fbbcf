// An ordered list of segments that wait to be claimed, cut by the set of tiers that hold them. Each
// tier takes from its own end: the fastest holder of a set from the front, the others from the
// back. Segments that fewer tiers hold go first, since shared work is what can still be balanced.
//
// Entries are hints: a segment may have been served through another list, or lost a replica. The
// caller says, for each entry, whether it still waits; those that do not are dropped.
#pragma once

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
  void PushBack(TierSet holders, SegmentRef segment) {
    Class(holders).push_back(segment);
    bytes_ += segment.bytes;
  }
  // For segments that must be read again: they are the oldest.
  void PushFront(TierSet holders, SegmentRef segment) {
    Class(holders).push_front(segment);
    bytes_ += segment.bytes;
  }

  // Takes the next segment for `tier`; false when there is none. `waits(ref, holders)`
  // tells whether an entry may be claimed by this tier now, must go (drop), or must stay for others
  // (skip). `fastest(holders)` names the tier that takes from the front.
  enum class Verdict { kTake, kDrop, kSkip };
  template <typename Waits, typename Fastest>
  bool Take(TierId tier, Waits&& waits, Fastest&& fastest, SegmentRef* taken) {
    for (auto& [holders, entries] : classes_) {
      if (!holders.Has(tier)) continue;
      const bool front = fastest(holders) == tier;
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

  bool empty() const {
    for (const auto& c : classes_) {
      if (!c.entries.empty()) return false;
    }
    return true;
  }

 private:
  struct HolderClass {
    TierSet holders;
    std::deque<SegmentRef> entries;
  };

  std::deque<SegmentRef>& Class(TierSet holders) {
    auto at = classes_.begin();
    for (; at != classes_.end(); ++at) {
      if (at->holders == holders) return at->entries;
      if (at->holders.size() > holders.size()) break;
    }
    return classes_.insert(at, HolderClass{holders, {}})->entries;
  }

  uint64_t bytes_ = 0;
  std::vector<HolderClass> classes_;  // By ascending number of holders.
};

}  // namespace kvstream::sched
