// The monotonic clock. Only the engine loop and threads that wait read it; deciding code is told
// the time.
#pragma once

#include <chrono>

#include "server/base/types.h"

namespace kvstream {

inline TimeNs Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace kvstream
