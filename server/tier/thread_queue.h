// The I/O engine for where io_uring is refused: a pool of threads, each of which does one operation
// at a time with a plain system call.
//
// Opens, links and the like go before transfers: behind a full queue of reads an open would wait
// for all of them, and the reads behind it would find an idle device. But they take at most half of
// the threads while transfers wait, and three quarters at any time, because a metadata server that
// is slow or hangs must not stop data that is ready. The lanes bound both, so neither starves.
//
// Thread rule: IoQueue's.
// Ownership: owns its threads; the destructor waits for them, so no operation may be in flight.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/base/mutex.h"
#include "server/base/types.h"
#include "server/tier/io_queue.h"

namespace kvstream::tier {

class ThreadQueue final : public IoQueue {
 public:
  // `thread_name` of at most 15 characters. RESOURCE_EXHAUSTED where so many threads cannot be had.
  static absl::StatusOr<std::unique_ptr<ThreadQueue>> Create(uint32_t threads,
                                                             const std::string& thread_name);
  ~ThreadQueue() override;

  // There is always room.
  [[nodiscard]] bool Queue(const Operation& operation, uint64_t user_data) override;
  [[nodiscard]] bool QueueDelay(uint64_t user_data) override;
  void Submit(bool wait) override;
  size_t Take(std::span<Event> events) override;
  void Wake() override;

 private:
  struct Job {
    Operation operation;
    uint64_t user_data = 0;
  };
  struct Delay {
    TimeNs due = 0;
    uint64_t user_data = 0;
  };

  explicit ThreadQueue(uint32_t threads)
      : name_jobs_max_(threads > 1 ? threads / 2 : 1),
        name_jobs_ever_max_(threads - (threads > 1 ? (threads + 3) / 4 : 0)) {}
  void Work(const std::string& thread_name);
  bool TakeJob(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Most threads for operations on names while transfers wait.
  const uint32_t name_jobs_max_;
  // Most at any time: those that hang must leave some for transfers that come later.
  const uint32_t name_jobs_ever_max_;

  // Of the loop's thread.
  std::vector<Job> queued_;
  std::deque<Delay> delays_;

  Mutex mu_;
  CondVar work_changed_;
  CondVar loop_changed_;
  std::deque<Job> names_ ABSL_GUARDED_BY(mu_);
  std::deque<Job> transfers_ ABSL_GUARDED_BY(mu_);
  uint32_t name_jobs_running_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Event> done_ ABSL_GUARDED_BY(mu_);
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool exit_ ABSL_GUARDED_BY(mu_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace kvstream::tier
