// One io_uring instance, and the only user of liburing: it turns operations into submissions and
// hands completions back as they come. What an operation means, retries and short results are
// RingLoop's.
//
// Thread rule: Create, every call and the destructor belong to one thread.
// Ownership: owns the ring; borrows what operations point to until their completion.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"

struct io_uring;

namespace kvstream::tier {

struct Operation {
  enum class Kind : uint8_t {
    kRead,
    kWrite,
    kFsync,
    kOpen,
    kClose,
    kLink,
    kUnlink,
    kStatx,
    // Completes when `fd` becomes readable, once.
    kPoll,
  };

  Kind kind = Kind::kPoll;
  // The file; for kOpen, kLink and kUnlink the folder that paths are relative to.
  int fd = -1;
  // kOpen, kUnlink; for kLink the existing name.
  const char* path = nullptr;
  // kLink: the new name.
  const char* new_path = nullptr;
  // kOpen: O_ flags.
  int open_flags = 0;
  // kRead and kWrite; a write only reads it.
  std::byte* data = nullptr;
  uint64_t offset = 0;
  uint32_t length = 0;
  // A transfer that ends early goes on at a multiple of this: a power of two.
  uint32_t granule = 1;
  // kStatx, for the size of `fd`.
  struct statx* stat = nullptr;
};

class Uring {
 public:
  struct Event {
    uint64_t user_data = 0;
    // At least 0, or a negated errno.
    int32_t result = 0;
  };

  // A ring with room for `entries` submissions at a time, with the cheapest completion mode that
  // the kernel has. PERMISSION_DENIED or UNAVAILABLE where the kernel or a sandbox refuses
  // io_uring, or lacks an operation that we need; RESOURCE_EXHAUSTED under a tight memory limit.
  static absl::StatusOr<std::unique_ptr<Uring>> Create(uint32_t entries);

  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;
  // Operations still in flight go on until the kernel ends them.
  ~Uring();

  // Pins `memory` so that transfers inside it skip the per-request page walk. Returns 0 or an
  // errno (ENOMEM: the locked-memory limit); without it everything works, slower.
  int RegisterBuffers(std::span<std::byte> memory);

  // Queues an operation for the next Submit; false when the submission queue is full.
  [[nodiscard]] bool Queue(const Operation& operation, uint64_t user_data);
  // Queues a pause, which completes after kRetryDelayNs.
  [[nodiscard]] bool QueueDelay(uint64_t user_data);

  // Submits what is queued and, if `wait`, blocks until a completion is there. May return early.
  void Submit(bool wait);
  // Takes up to events.size() completions; returns how many.
  size_t Take(std::span<Event> events);

  static constexpr int64_t kRetryDelayNs = 5'000'000;

 private:
  explicit Uring(std::unique_ptr<io_uring> ring);
  // The registered buffer that holds all of the bytes, or -1.
  int BufferOf(const std::byte* data, uint32_t length) const;

  std::unique_ptr<io_uring> ring_;
  // Registered in slices of kSliceBytes; empty if it is not.
  std::span<std::byte> registered_;
};

}  // namespace kvstream::tier
