// How a degraded mode that may last is warned of: the first time, and then once a minute at most.
// Each time is counted besides, by whoever has the counter.
//
// Thread rule: any thread.
#pragma once

#include <atomic>

#include "server/base/types.h"

namespace kvstream {

class QuietPeriod {
 public:
  // Whether to warn now; of those who ask at once, one is told so.
  bool IsOver(TimeNs now) {
    TimeNs until = until_.load(std::memory_order_relaxed);
    return now >= until &&
           until_.compare_exchange_strong(until, now + kLength, std::memory_order_relaxed);
  }

 private:
  static constexpr TimeNs kLength = 60 * kSecond;

  std::atomic<TimeNs> until_{0};
};

}  // namespace kvstream
