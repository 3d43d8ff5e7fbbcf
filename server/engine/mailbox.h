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
#include "server/base/mutex.h"
#include "server/engine/copy_pool.h"
#include "server/engine/events.h"
#include "server/gpu/gpu.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

struct Letters {
  std::vector<Event> events;
  std::vector<tier::Completion> completions;
  std::vector<CopyResult> copies;
  std::vector<gpu::CopyDone> device_copies;
};

class Mailbox {
 public:
  void Post(Event event) {
    MutexLock lock(&mu_);
    letters_.events.push_back(std::move(event));
    changed_.NotifyOne();
  }
  void Post(std::span<tier::Completion> completions) {
    MutexLock lock(&mu_);
    for (auto& c : completions) letters_.completions.push_back(std::move(c));
    changed_.NotifyOne();
  }
  void Post(const CopyResult& result) {
    MutexLock lock(&mu_);
    letters_.copies.push_back(result);
    changed_.NotifyOne();
  }
  void Post(std::span<const gpu::CopyDone> copies) {
    MutexLock lock(&mu_);
    letters_.device_copies.insert(letters_.device_copies.end(), copies.begin(), copies.end());
    changed_.NotifyOne();
  }
  // Makes Take return.
  void Wake() {
    MutexLock lock(&mu_);
    woken_ = true;
    changed_.NotifyOne();
  }

  // Waits for letters, a wake or `until`, and swaps them into `letters`, which must be empty (its
  // capacity is kept).
  void Take(TimeNs until, Letters* letters) {
    MutexLock lock(&mu_);
    while (!woken_ && letters_.events.empty() && letters_.completions.empty() &&
           letters_.copies.empty() && letters_.device_copies.empty() &&
           changed_.WaitUntil(&mu_, until)) {
    }
    woken_ = false;
    std::swap(*letters, letters_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  Letters letters_ ABSL_GUARDED_BY(mu_);
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace kvstream::engine
