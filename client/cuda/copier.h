// Copies ranges of device memory on a stream and a thread of its own, in order: what a landing
// buffer's parts need. The engine's threads neither launch nor wait for anything.
//
// Each slot has room for one job's list of copies, so that as many jobs as slots are in flight. A
// job whose list is longer than that runs in rounds.
//
// Thread rule: Add and Then from any thread; they never block. Callbacks run on the copier's
// thread, in the order of the calls, and must not block or stop the copier.
// Ownership: owns its thread, stream and lists; not the memory that it copies.
// Errors: those of cuda_status.h. After the first one nothing more is copied: jobs fail with it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/cuda/copy_kernel.h"
#include "client/monotonic_condition.h"

namespace kvstream::cuda {

struct CopierOptions {
  int device = 0;
  // Jobs that may be in flight.
  uint32_t slots = 4;
  CopyGrid grid;
  // Of the stream, as CUDA counts: lower goes first, 0 is the lowest; brought into the device's
  // range. The first one lets the few blocks of a copy in between the waves of a long kernel.
  int stream_priority = -100;
  // Copies in one launch: the length of a slot's list, which has 24 bytes for each on the host and
  // on the device.
  uint32_t copies_per_launch = 64 * 1024;
};

class Copier {
 public:
  // Lists the copies of a job; runs on the copier's thread.
  using List = absl::AnyInvocable<absl::Status(std::vector<Copy>* copies)>;
  using Done = absl::AnyInvocable<void(const absl::Status& status)>;

  static absl::StatusOr<std::unique_ptr<Copier>> Start(const CopierOptions& options);
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;
  // As Stop.
  ~Copier();

  // Runs a job and tells `done` when its copies have completed, or why they have not.
  // REQUIRES: slot < slots, and the job that had it is done.
  void Add(uint32_t slot, List list, Done done) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls `then` after everything that was added before.
  void Then(absl::AnyInvocable<void()> then) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until everything added is done, for as long as the GPU takes; nothing may be added after
  // it. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Slot {
    Copy* host = nullptr;
    Copy* device = nullptr;
    cudaEvent_t event = nullptr;
  };

  // A job, or what is to be called when it is reached.
  struct Item {
    uint32_t slot = 0;
    List list;
    Done done;
    absl::AnyInvocable<void()> then;

    // Those of `copies` from `next` on are not launched.
    std::vector<Copy> copies;
    size_t next = 0;
    bool in_flight = false;
    absl::Status status;
  };

  explicit Copier(const CopierOptions& options);
  absl::Status Open();
  void Close();
  void Push(Item item) ABSL_LOCKS_EXCLUDED(mu_);

  // The rest runs on the thread.
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Moves what was added behind `running`. False when the thread may end.
  bool Take(std::deque<Item>* running) ABSL_LOCKS_EXCLUDED(mu_);
  void Begin(Item* item);
  // Launches the next copies of the item.
  void Launch(Item* item);
  // True when nothing of the item runs any more and nothing is left to launch.
  bool IsDone(Item* item);
  void Fail(Item* item, const absl::Status& status);

  const CopierOptions options_;
  cudaStream_t stream_ = nullptr;
  std::vector<Slot> slots_;
  // The first failure. The thread's.
  absl::Status failure_;

  absl::Mutex mu_;
  MonotonicCondition changed_;
  // At most a job for each slot, and what Then was given.
  std::deque<Item> added_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;
};

}  // namespace kvstream::cuda
