// One io_uring instance, and the only user of liburing.
//
// Thread rule: IoQueue's. Create on the loop's thread; the destructor may run on another once that
// thread is done with the ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "server/base/unique_fd.h"
#include "server/tier/io_queue.h"

struct io_uring;

namespace kvstream::tier {

class Uring final : public IoQueue {
 public:
  // A ring with room for `entries` submissions at a time, with the cheapest completion mode that
  // the kernel has. PERMISSION_DENIED or UNAVAILABLE where the kernel or a sandbox refuses
  // io_uring, or lacks an operation that we need; RESOURCE_EXHAUSTED under a tight memory limit.
  static absl::StatusOr<std::unique_ptr<Uring>> Create(uint32_t entries);

  ~Uring() override;

  // Pins `memory` so that transfers inside it skip the per-request page walk. Returns 0 or an
  // errno (ENOMEM: the locked-memory limit); without it everything works, slower.
  int RegisterBuffers(std::span<std::byte> memory);

  [[nodiscard]] bool Queue(const Operation& operation, uint64_t user_data) override;
  [[nodiscard]] bool QueueDelay(uint64_t user_data) override;
  void Submit(bool wait) override;
  size_t Take(std::span<Event> events) override;
  void Wake() override;

 private:
  Uring(std::unique_ptr<io_uring> ring, UniqueFd wake);
  // Has a poll for the next wake in flight, if there is room for it.
  void WatchWake();
  // The registered buffer that holds all of the bytes, or -1.
  int BufferOf(const std::byte* data, uint32_t length) const;

  std::unique_ptr<io_uring> ring_;
  const UniqueFd wake_;
  bool watching_wake_ = false;
  // Registered in slices of kSliceBytes; empty if it is not.
  std::span<std::byte> registered_;
};

}  // namespace kvstream::tier
