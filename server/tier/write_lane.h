// Writes of a tier: one loop. A file is written under a temporary name, several device
// requests at a time, closed, linked to its name, and the temporary unlinked. It is closed before
// it is linked, because network file systems report failed writes at close, and keep a name that is
// unlinked while open.
//
// Thread rule: Write from the tier's caller; the work is on the lane's own thread.
// Ownership: must not be destroyed before Stop has returned true or Start has failed.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "server/base/mutex.h"
#include "server/base/quiet_period.h"
#include "server/tier/io_loop.h"
#include "server/tier/lane_parts.h"
#include "server/tier/outbox.h"
#include "server/tier/tier.h"

namespace kvstream::tier {

class WriteLane final : private IoLoop::User {
 public:
  explicit WriteLane(LaneParts parts);

  absl::Status Start();
  bool registered_buffers() const { return loop_.registered_buffers(); }
  int registration_error() const { return loop_.registration_error(); }

  void Write(WriteRequest request);
  // Tier::Stop. After false the sink is not called any more.
  [[nodiscard]] bool Stop(TimeNs deadline);

 private:
  struct PendingWrite {
    WriteRequest request;
    std::string temporary;
    // Of the temporary, later of the file that already exists.
    int fd = -1;
    // Where the next device request begins: the header is part 0, pieces follow.
    size_t part = 0;
    uint64_t part_offset = 0;
    uint64_t file_offset = 0;
    uint32_t in_flight = 0;
    // In ready_.
    bool queued = false;
    // The folder of the temporary that is being made, from the topmost on; then all were.
    std::string folder;
    bool made_folders = false;
    // The name is taken.
    bool exists = false;
    // What went wrong first.
    int error = 0;
    struct statx existing_stat {};
    std::vector<std::byte> existing_header;
    std::list<PendingWrite>::iterator self;

    std::span<const std::byte> Part(size_t i) const {
      return i == 0 ? request.header : request.pieces[i - 1];
    }
    bool issued_all() const { return part > request.pieces.size(); }
    // Keeps the first failure only.
    void Fail(int e) {
      if (error == 0) error = e;
    }
  };

  // Most files being written at a time; what exceeds it waits in order.
  static constexpr uint32_t kFilesMax = 16;

  void Advance() override;
  void Begin(WriteRequest request);
  void OpenTemporary(PendingWrite* write);
  void OnOpened(PendingWrite* write, int32_t result);
  // The next of the temporary's folders, and after the last the temporary again.
  void MakeNextFolder(PendingWrite* write);
  // Gives device requests to the loop.
  void IssueParts();
  void IssuePart(PendingWrite* write);
  void OnPart(PendingWrite* write, uint32_t length, int32_t result);
  // REQUIRES: all data is written, or the write has failed and nothing of it is in flight.
  void Settle(PendingWrite* write);
  void CloseTemporary(PendingWrite* write);
  void Link(PendingWrite* write);
  void RemoveTemporary(PendingWrite* write);
  // The steps that tell the caller what lies at the name already. What of it cannot be read is
  // left out: the caller verifies, so it will not take it for a good file.
  void OpenExisting(PendingWrite* write);
  void StatExisting(PendingWrite* write);
  void ReadExisting(PendingWrite* write);
  void CloseExisting(PendingWrite* write);
  void Complete(PendingWrite* write);

  const LaneParts parts_;
  Outbox outbox_;
  IoLoop loop_;

  Mutex mu_;
  std::vector<WriteRequest> inbox_ ABSL_GUARDED_BY(mu_);

  // Of the lane's thread.
  std::deque<WriteRequest> waiting_;
  std::list<PendingWrite> writes_;
  // Writes whose next part may be issued, oldest first.
  std::deque<PendingWrite*> ready_;
  uint32_t parts_in_flight_ = 0;
  QuietPeriod left_quiet_;
};

}  // namespace kvstream::tier
