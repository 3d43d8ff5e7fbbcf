// Waiting on a condition variable up to a time of the project's clock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "server/base/types.h"

namespace kvstream::tier {

// Waits until `ready()` holds or the monotonic clock reaches `deadline`; returns ready().
template <typename Ready>
bool WaitUntil(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
               TimeNs deadline, Ready ready) {
  if (deadline == kNever) {
    changed.wait(lock, ready);
    return true;
  }
  const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(deadline)};
  return changed.wait_until(lock, until, ready);
}

}  // namespace kvstream::tier
