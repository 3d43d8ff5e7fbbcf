// How a loop gives operations to the kernel and learns of their ends. io_uring does it (Uring), and
// a pool of threads with plain system calls (ThreadQueue). What an operation means, retries and
// short results are IoLoop's, so that both engines are the same to everything above.
//
// Thread rule: every call belongs to the loop's thread, but Wake, which any thread may call.
// Ownership: borrows what operations point to until their completion. Destroyed only once no
// operation is in flight: a queue whose operations never end is leaked with all that they touch.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <span>

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
    kMakeFolder,
    kStatx
  };

  Kind kind = Kind::kRead;
  // The file; for what has paths the folder that they are relative to.
  int fd = -1;
  // kOpen, kUnlink, kMakeFolder; for kLink the existing name.
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

class IoQueue {
 public:
  struct Event {
    uint64_t user_data = 0;
    // At least 0, or a negated errno.
    int32_t result = 0;
  };

  // How long an operation waits before it is tried again.
  static constexpr int64_t kRetryDelayNs = 5'000'000;
  // Of files that kOpen makes.
  static constexpr mode_t kFileMode = 0644;
  static constexpr mode_t kFolderMode = 0755;

  IoQueue() = default;
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;
  virtual ~IoQueue() = default;

  // Queues an operation for the next Submit; false when there is no room before that.
  // REQUIRES: user_data is not the largest value.
  [[nodiscard]] virtual bool Queue(const Operation& operation, uint64_t user_data) = 0;
  // Queues a pause, which completes after kRetryDelayNs.
  [[nodiscard]] virtual bool QueueDelay(uint64_t user_data) = 0;

  // Starts what is queued and, if `wait`, blocks until a completion or a Wake. May return early.
  virtual void Submit(bool wait) = 0;
  // Takes up to events.size() completions; returns how many.
  virtual size_t Take(std::span<Event> events) = 0;

  // Ends the wait of the running Submit, or of the next one.
  virtual void Wake() = 0;
};

}  // namespace kvstream::tier
