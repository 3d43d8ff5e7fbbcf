// The copy thread of one GPU, with a stream for each direction: turns copies into batches of
// fragments, keeps a few batches queued on each stream, and answers as they complete.
//
// A batch has at most 256 fragments and 16 MiB or one fragment, and at most four wait on a stream.
// Measured on an H200 (PCIe 5 x16): of 64 to 1,024 fragments a call none is better at all sizes,
// and from 64 KiB a fragment all of them are at 0.99 of the link with four calls queued; smaller
// batches answer sooner.
//
// A GPU whose copies do not end for `hung_after` hangs: it takes no more until they do. Their
// memory stays theirs.
//
// Thread rule: Submit from any thread. Ownership: the device outlives it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"
#include "server/gpu/gpu.h"

namespace kvstream::gpu {

class Copier {
 public:
  using Sink = std::function<void(std::span<const CopyDone>)>;

  Copier(Device* device, DeviceStats* stats, TimeNs hung_after, Sink sink);
  ~Copier() { (void)Stop(kNever); }
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  void Submit(Copy copy);
  // Finishes what was submitted and ends the thread. Idempotent; nothing may be submitted after it.
  // False when `deadline` came first: copies may still run.
  bool Stop(TimeNs deadline);

 private:
  // A copy that is queued on a stream as a whole.
  struct Running {
    Copy copy;
    uint64_t last_batch = 0;  // That carries bytes of it.
  };
  struct Lane {
    Direction direction = Direction::kToDevice;
    std::deque<Copy> waiting;     // The first may be queued in part.
    uint64_t offset = 0;          // Bytes of the first that are queued.
    std::deque<Running> running;  // In order.
    uint64_t queued = 0;          // Batches, since the start.
    uint64_t completed = 0;
    TimeNs progressed = 0;  // When a batch was last completed, or queued on an empty stream.
    bool hung = false;
  };

  void Run();
  // Both return whether there was something to do.
  bool Queue(Lane& lane);
  bool Collect(Lane& lane);
  // The next batch, and which copies end with it.
  void Gather(Lane& lane);
  // Asks the device for an error, for want of anything else to do.
  void Look();
  void Lose(const absl::Status& status);
  // A lane has not moved for too long: what it has not begun fails, until it goes on.
  void SetHung(Lane& lane, bool hung);
  void RefuseWaiting(Lane& lane);
  void Answer(const Copy& copy, absl::StatusCode code);
  bool Idle() const;

  Device* const device_;
  DeviceStats* const stats_;
  const TimeNs hung_after_;
  const Sink sink_;

  Mutex mu_;
  CondVar changed_;
  std::vector<Copy> submitted_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  TimeNs stop_by_ ABSL_GUARDED_BY(mu_) = kNever;

  // The thread's.
  std::array<Lane, 2> lanes_;
  bool lost_ = false;
  std::vector<DeviceRange> ranges_;
  std::vector<Fragment> fragments_;
  std::vector<CopyDone> answers_;

  std::thread thread_;
};

}  // namespace kvstream::gpu
