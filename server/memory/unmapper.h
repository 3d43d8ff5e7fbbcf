// The thread that unmaps host buffers: giving gigabytes of pages back to the kernel takes the time
// that a loop does not have.
//
// Thread rule: Give from any thread; `done` runs on the unmapper's. Ownership: owns what it is
// given; the gauge outlives it.
#pragma once

#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "server/base/mutex.h"
#include "server/base/stats.h"
#include "server/memory/sealed_memory.h"

namespace kvstream::memory {

class Unmapper {
 public:
  // `waiting_bytes` shows what was given and is not unmapped yet.
  explicit Unmapper(Gauge* waiting_bytes);
  ~Unmapper() { Stop(); }
  Unmapper(const Unmapper&) = delete;
  Unmapper& operator=(const Unmapper&) = delete;

  // Unmaps in turn, then calls `done` unless it is null.
  void Give(std::unique_ptr<SealedMemory> memory, absl::AnyInvocable<void()> done = nullptr);
  // Finishes what was given. Idempotent; nothing may be given after it.
  void Stop();

 private:
  struct Job {
    std::unique_ptr<SealedMemory> memory;
    absl::AnyInvocable<void()> done;
  };

  void Run();

  Gauge* const waiting_bytes_;
  Mutex mu_;
  CondVar changed_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace kvstream::memory
