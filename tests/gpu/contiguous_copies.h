// Copies of 16 MiB between pinned host memory and the GPU, without a daemon: what the link can do.
//
// Thread rule: one thread. Ownership: owns its memory and stream. Errors: INTERNAL, from CUDA.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace kvstream {

class ContiguousCopies {
 public:
  static absl::StatusOr<std::unique_ptr<ContiguousCopies>> Create();
  ~ContiguousCopies();
  ContiguousCopies(const ContiguousCopies&) = delete;
  ContiguousCopies& operator=(const ContiguousCopies&) = delete;

  // GB/s over at least `time`, to the GPU (`in`) or from it; 0 when a copy failed.
  double Measure(bool in, absl::Duration time) const;

 private:
  struct Memory;

  explicit ContiguousCopies(std::unique_ptr<Memory> memory);

  const std::unique_ptr<Memory> memory_;
};

}  // namespace kvstream
