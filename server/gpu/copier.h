// The copy thread of one GPU, with a stream for each direction: turns copies into batches of
// fragments, keeps a few batches queued on each stream, and answers as they complete.
//
// A batch has at most 256 fragments and 16 MiB or one fragment, and at most four wait on a stream.
// Measured on an H200 (PCIe 5 x16): of 64 to 1,024 fragments a call none is better at all sizes,
// and from 64 KiB a fragment all of them are at 0.99 of the link with four calls queued; smaller
// batches answer sooner.
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

  Copier(Device* device, DeviceStats* stats, Sink sink);
  ~Copier() { Stop(); }
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  void Submit(Copy copy);
  // Finishes what was submitted and ends the thread. Idempotent; nothing may be submitted after it.
  void Stop();

 private:
  // A copy that is queued on a stream, as a whole or up to `done`.
  struct Running {
    Copy copy;
    uint64_t last_batch = 0;  // That carries bytes of it; once all of it is queued.
  };
  struct Lane {
    Direction direction = Direction::kToDevice;
    std::deque<Copy> waiting;     // The first may be queued in part.
    uint64_t offset = 0;          // Bytes of the first that are queued.
    std::deque<Running> running;  // In order.
    uint64_t queued = 0;          // Batches, since the start.
    uint64_t completed = 0;
  };

  void Run();
  // Both return whether there was something to do.
  bool Queue(Lane& lane);
  bool Collect(Lane& lane);
  // The next batch, and which copies end with it.
  void Gather(Lane& lane);
  void Lose(const absl::Status& status);
  void Answer(const Copy& copy, absl::StatusCode code);
  bool Idle() const;

  Device* const device_;
  DeviceStats* const stats_;
  const Sink sink_;

  Mutex mu_;
  CondVar changed_;
  std::vector<Copy> submitted_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // The thread's.
  std::array<Lane, 2> lanes_;
  bool lost_ = false;
  std::vector<DeviceRange> ranges_;
  std::vector<Fragment> fragments_;
  std::vector<CopyDone> answers_;

  std::thread thread_;
};

}  // namespace kvstream::gpu
