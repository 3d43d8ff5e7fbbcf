// A mutex and a condition variable whose use the compiler checks (clang -Wthread-safety) and the
// thread sanitizer sees into. Debian's Abseil is built without the sanitizer, so absl::Mutex shows
// races there that are none: the rooms that the sanitizer runs over use these.
//
// Thread rule: any thread. Not recursive.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "server/base/types.h"

namespace kvstream {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(*mu) { mu_.Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

class CondVar {
 public:
  void NotifyOne() { changed_.notify_one(); }
  void NotifyAll() { changed_.notify_all(); }

  // Waits for a notification, with the mutex released meanwhile. May return without one.
  void Wait(Mutex* mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { (void)WaitUntil(mu, kNever); }

  // The same, until the monotonic clock reaches `deadline`: then false.
  bool WaitUntil(Mutex* mu, TimeNs deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock lock(mu->mu_, std::adopt_lock);
    bool in_time = true;
    if (deadline == kNever) {
      changed_.wait(lock);
    } else {
      const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(deadline)};
      in_time = changed_.wait_until(lock, until) == std::cv_status::no_timeout;
    }
    lock.release();
    return in_time;
  }

 private:
  std::condition_variable changed_;
};

}  // namespace kvstream
