// The one door into the engine loop: other threads post, the loop takes everything at once. Order
// is kept within each kind of letter.
//
// Thread rule: Post from any thread, never blocking on more than the short lock; Take from the
// loop.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/engine/copy_pool.h"
#include "server/engine/events.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

struct Letters {
  std::vector<Event> events;
  std::vector<tier::Completion> completions;
  std::vector<CopyResult> copies;
};

class Mailbox {
 public:
  void Post(Event event) {
    absl::MutexLock lock(&mu_);
    letters_.events.push_back(std::move(event));
  }
  void Post(std::span<tier::Completion> completions) {
    absl::MutexLock lock(&mu_);
    for (auto& c : completions) letters_.completions.push_back(std::move(c));
  }
  void Post(const CopyResult& result) {
    absl::MutexLock lock(&mu_);
    letters_.copies.push_back(result);
  }
  // Makes Take return.
  void Wake() {
    absl::MutexLock lock(&mu_);
    woken_ = true;
  }

  // Waits for letters, a wake or `until`, and swaps them into `letters`, which must be empty (its
  // capacity is kept).
  void Take(TimeNs until, Letters* letters) {
    absl::MutexLock lock(&mu_);
    const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return woken_ || !letters_.events.empty() || !letters_.completions.empty() ||
             !letters_.copies.empty();
    };
    const TimeNs wait = until == kNever ? kNever : until - Now();
    mu_.AwaitWithTimeout(absl::Condition(&ready),
                         wait == kNever ? absl::InfiniteDuration() : absl::Nanoseconds(wait));
    woken_ = false;
    std::swap(*letters, letters_);
  }

 private:
  absl::Mutex mu_;
  Letters letters_ ABSL_GUARDED_BY(mu_);
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace kvstream::engine
