// What an engine's GPU does meanwhile: multiplies matrices of bf16 without end, on a thread and a
// stream of its own, and counts. cuBLAS is found at run time; nothing links it.
//
// Thread rule: any thread. Ownership: owns its thread, stream and matrices.
// Errors: FAILED_PRECONDITION without cuBLAS, otherwise those of client/cuda/cuda_status.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace kvstream {

class GemmLoad {
 public:
  // Multiplies matrices of `size` squared until its end.
  static absl::StatusOr<std::unique_ptr<GemmLoad>> Start(int device, int size = 4096);
  GemmLoad(const GemmLoad&) = delete;
  GemmLoad& operator=(const GemmLoad&) = delete;
  // As Stop.
  ~GemmLoad();

  // Waits for what is in flight. Returns the first failure. Idempotent.
  absl::Status Stop();

  // Multiplications that have completed.
  uint64_t finished() const { return finished_.load(std::memory_order_relaxed); }
  // How many a second complete during the next `time`, which this waits.
  double MeasureRate(absl::Duration time) const;

 private:
  struct Gpu;

  GemmLoad(int device, int size);
  void Run();

  const int device_;
  const int size_;
  std::unique_ptr<Gpu> gpu_;
  std::atomic<uint64_t> finished_{0};
  std::atomic<bool> stopping_{false};
  // The thread's until it is joined.
  absl::Status failure_;
  std::thread thread_;
};

}  // namespace kvstream
