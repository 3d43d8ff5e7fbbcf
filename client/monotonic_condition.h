// Waits that a wall clock which is set back does not lengthen: Abseil's own are on that clock.
//
// Thread rule: as a condition variable.
#pragma once

#include <chrono>
#include <condition_variable>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace kvstream {

class MonotonicCondition {
 public:
  void NotifyAll() { changed_.notify_all(); }

  // Waits for NotifyAll until `done`, for at most `timeout`, and returns what `done` says. `mu` is
  // held whenever `done` is asked, and released in between.
  template <typename Done>
  bool Wait(absl::Mutex* mu, absl::Duration timeout, Done done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Lockable lock{mu};
    // Longer is for ever, and would not fit.
    if (timeout > absl::Hours(24 * 365)) {
      changed_.wait(lock, done);
      return true;
    }
    return changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout), done);
  }

 private:
  struct Lockable {
    absl::Mutex* mu;
    void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu->Lock(); }
    void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu->Unlock(); }
  };

  std::condition_variable_any changed_;
};

}  // namespace kvstream
