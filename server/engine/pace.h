// When a reader that must not read faster than so many bytes a second may go on. Pure: it is told
// the time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "server/base/types.h"

namespace kvstream::engine {

class Pace {
 public:
  // What was not read in this time is not made up for: after a pause it goes on as before it.
  static constexpr TimeNs kBehindMax = kSecond;

  // REQUIRES: bytes_per_second > 0.
  Pace(uint64_t bytes_per_second, TimeNs now) : rate_(bytes_per_second), due_(now) {}

  // So many bytes were read by now. Returns when the next may be.
  TimeNs Spend(uint64_t bytes, TimeNs now) {
    const TimeNs from = std::max(due_, now - kBehindMax);
    const double cost = static_cast<double>(bytes) / static_cast<double>(rate_) * kSecond;
    const bool never = cost >= static_cast<double>(kNever - from);
    due_ = never ? kNever : from + static_cast<TimeNs>(cost);
    return due_;
  }

 private:
  const uint64_t rate_;
  TimeNs due_;
};

}  // namespace kvstream::engine
