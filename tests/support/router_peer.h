// Looks into a router and checks that its parts agree: counts with what they count, stages with
// what waits, and that nothing waits that could be claimed.
//
// Thread rule: the router's.
#pragma once

#include <cstdint>
#include <string>

#include "server/sched/router.h"

namespace kvstream::sched {

class RouterPeer {
 public:
  // What is wrong; empty when nothing is. `segment_bytes` is the largest segment in use.
  // Call between events, with all commands taken.
  static std::string Check(const Router& router, uint64_t segment_bytes, TimeNs now);

 private:
  static std::string CheckFetch(const Router& router, const Fetch& fetch);
  static std::string CheckSegment(const Router& router, const Fetch& fetch, uint32_t segment);
  static std::string CheckWaiters(const Router& router, const Fetch& fetch);
  static std::string CheckLanes(const Router& router, uint64_t segment_bytes, TimeNs now);
  // Whether whatever waits for this tier may wait: it knows its rate, another tier in service has
  // it too, and one of the two is reading.
  static bool LeftToOthers(const Router& router, const TierLane& lane, TimeNs now);
  static std::string CheckBatches(const Router& router);
};

}  // namespace kvstream::sched
