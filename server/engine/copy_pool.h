// The threads that touch payload: they copy between staging slots and host buffers and compute the
// checksum of what they copied in the same pass. The loop never does.
//
// Thread rule: Submit from the loop; results come to the sink on the thread that does the job.
// Memory of a job is the caller's and must stay until its result has come. Every job gets exactly
// one result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "server/base/mutex.h"
#include "server/base/types.h"

namespace kvstream::engine {

// Whose job it is; the meaning of `id` and `part` is the submitter's.
enum class CopyKind : uint8_t {
  // Slot of a read to destinations: verify.
  kSegment,
  // Slot of a staged chunk to a destination: verify.
  kStaged,
  // A client's buffer to a slot of a chunk being stored.
  kStore,
};

struct CopyJob {
  CopyKind kind = CopyKind::kSegment;
  uint64_t id = 0;
  uint32_t part = 0;
  // What the checksum is seeded with.
  KeyDigest key;
  uint32_t segment = 0;
  std::span<const std::byte> source;
  absl::InlinedVector<std::byte*, 2> destinations;
  // Zeroed after the copy in every destination: the padding of a slot.
  uint64_t pad_bytes = 0;
};

struct CopyResult {
  CopyKind kind = CopyKind::kSegment;
  uint64_t id = 0;
  uint32_t part = 0;
  uint64_t checksum = 0;
};

class CopyPool {
 public:
  // Without threads, jobs wait until somebody takes them, as a simulation's scheduler does.
  CopyPool(uint32_t threads, absl::AnyInvocable<void(const CopyResult&)> sink);
  ~CopyPool() { Stop(); }
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  void Submit(CopyJob job);
  // Takes the job whose turn it is, if there is one.
  std::optional<CopyJob> Take();
  // Does a job that was taken; its result comes before this returns.
  void Do(const CopyJob& job);
  // Finishes what was submitted and ends the threads: no destination is touched afterwards. Nothing
  // may be submitted then. Idempotent.
  void Stop();

 private:
  void Run();
  std::optional<CopyJob> TakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::AnyInvocable<void(const CopyResult&)> sink_;
  Mutex mu_;
  CondVar changed_;
  // Reads go before stores, but a store has its turn after this many reads.
  static constexpr uint32_t kReadsInARow = 8;
  std::deque<CopyJob> reads_ ABSL_GUARDED_BY(mu_);
  std::deque<CopyJob> stores_ ABSL_GUARDED_BY(mu_);
  uint32_t reads_in_a_row_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvstream::engine
