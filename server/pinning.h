// The staging pool, pinned for the GPUs: slice after slice from its start, so that a long start
// shows how far it is, and that what the system refuses leaves a smaller pool.
//
// CUDA refuses a copy that reaches from one slice into the next (error 1, invalid value, seen on an
// H200 with driver 580). Slots do not reach across, since slices are multiples of the largest slot
// and so are the parts of a pool with several slices (config::ReservedBytes).
//
// Thread rule: one thread at a time. Ownership: owns nothing it is given; driver and memory outlive
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/types.h"
#include "server/config/options.h"
#include "server/gpu/driver.h"

namespace kvstream {

inline constexpr uint64_t kPinSliceBytes = 4096 * kMiB;

class Pinning {
 public:
  explicit Pinning(gpu::Driver* driver) : driver_(driver) {}
  // Unpins.
  ~Pinning() { Unpin(); }
  Pinning(const Pinning&) = delete;
  Pinning& operator=(const Pinning&) = delete;

  // Pins `memory` until a slice fails: then the driver's error, and which bytes it is about. Pins
  // nothing, with success, where there is no GPU. Takes about half a second for each GiB of memory
  // that has no pages yet, and logs how far it is. Call once.
  absl::Status Pin(std::span<std::byte> memory, uint64_t slice_bytes = kPinSliceBytes);

  // Bytes from the start of the memory that are pinned.
  uint64_t bytes() const { return bytes_; }

  // Idempotent. REQUIRES: no copy of the memory is running, and none will.
  void Unpin();

 private:
  gpu::Driver* const driver_;
  std::vector<std::span<std::byte>> slices_;
  uint64_t bytes_ = 0;
};

// What is configured, with a pool of the first `pinned_bytes` alone, after `cause` kept the rest
// from being pinned. By pool.pin RESOURCE_EXHAUSTED instead: always, or when less than half of the
// pool would be left, or in what only reads may use no room for two of the largest segments.
absl::StatusOr<config::Options> WithPoolPinned(config::Options options, uint64_t pinned_bytes,
                                               const absl::Status& cause);

// A sentence about a pool that WithPoolPinned has made smaller.
std::string PoolIsSmaller(uint64_t configured_bytes, uint64_t bytes, const absl::Status& cause);

}  // namespace kvstream
