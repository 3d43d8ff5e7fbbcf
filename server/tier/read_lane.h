// Reads of a tier: one loop, a cache of descriptors. A request is cut into device
// requests of io_bytes; its completion goes out once all of them have ended, whatever the first
// failure was, because until then the kernel may write to its buffer.
//
// Thread rule: Read from the tier's caller, Forget and ForgetAll from any thread; the rest of the
// work is on the lane's own thread. Ownership: must not be destroyed before Stop has returned true
// or Start has failed.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "server/base/mutex.h"
#include "server/tier/io_loop.h"
#include "server/tier/lane_parts.h"
#include "server/tier/open_files.h"
#include "server/tier/outbox.h"
#include "server/tier/tier.h"

namespace kvstream::tier {

struct PendingRead {
  ReadRequest request;
  OpenFile* file = nullptr;
  // Bytes given to the loop, and device requests of them that have not ended.
  uint64_t issued = 0;
  uint32_t in_flight = 0;
  // In ready_.
  bool queued = false;
  // The file was reopened after ESTALE, which is done once.
  bool reopened = false;
  // What went wrong first.
  int error = 0;
  bool truncated = false;
  std::list<PendingRead>::iterator self;

  bool failed() const { return error != 0 || truncated; }
};

class ReadLane final : private IoLoop::User {
 public:
  explicit ReadLane(LaneParts parts);

  absl::Status Start();
  bool registered_buffers() const { return loop_.registered_buffers(); }
  int registration_error() const { return loop_.registration_error(); }

  void Read(std::span<const ReadRequest> requests);
  // Reads that are asked for later open the path again.
  void Forget(const std::string& path);
  void ForgetAll();
  // Tier::Stop. After false the sink is not called any more.
  [[nodiscard]] bool Stop(TimeNs deadline);

 private:
  // What other threads ask for.
  struct Inbox {
    std::vector<ReadRequest> reads;
    std::vector<std::string> forget;
    bool forget_all = false;
    bool close_all = false;
  };

  // Most opens in flight: what a metadata server is given to do at once.
  static constexpr uint32_t kOpensMax = 64;

  void Advance() override;
  void TakeInbox();
  // Finds or opens the files of waiting reads, as far as there is room.
  void OpenWaiting();
  void StartOpen(OpenFile* file);
  void OnOpened(OpenFile* file, int32_t result);
  // Opens a file again in the place of one that is idle. False where that was done, or none is.
  bool RetryOpen(OpenFile* file);
  // Gives device requests to the loop. True if a read ended on the way.
  bool IssuePieces();
  void IssuePiece(PendingRead* read);
  void OnPiece(PendingRead* read, uint32_t length, int32_t result);
  // REQUIRES: nothing of the read is in flight or queued.
  void Finish(PendingRead* read);
  void Complete(PendingRead* read);
  void ReleaseFile(PendingRead* read);
  void Close(
      std::unique_ptr<OpenFile> file, IoLoop::Done done = [](int32_t) {});

  const LaneParts parts_;
  Outbox outbox_;
  IoLoop loop_;

  Mutex mu_;
  Inbox inbox_ ABSL_GUARDED_BY(mu_);

  // Of the lane's thread.
  OpenFiles files_;
  std::list<PendingRead> reads_;
  // Reads that have no file yet, and those whose next piece may be issued, oldest first.
  std::deque<PendingRead*> unopened_;
  std::deque<PendingRead*> ready_;
  uint32_t opens_in_flight_ = 0;
  uint32_t pieces_in_flight_ = 0;
};

}  // namespace kvstream::tier
