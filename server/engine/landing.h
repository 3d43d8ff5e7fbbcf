// A worker's landing buffer: GPU memory in parts, for regions whose runs are too short for the copy
// engines. A part is filled by contiguous copies, the worker scatters it into the blocks with its
// own kernel and says so, and the part is free again; a store goes the other way. Pieces of one
// operation share a part; while all parts are busy what comes next gathers, so that parts are
// filled the better the busier they are.
//
// The worker may be slow, stopped or dead between: no operation waits for it longer than its
// deadline, and with a part no longer than `landing_ack`. The part stays busy until the worker does
// answer, since only then is its kernel known to have ended; until then the buffer is stalled, and
// takes nothing more.
//
// Pure: what it decides comes out as calls of Actions. Thread rule: the engine loop.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "server/base/stats.h"
#include "server/base/types.h"
#include "server/gpu/driver.h"

namespace kvstream::engine {

// Bytes of a chunk, asked to be copied.
struct LandingJob {
  // The owner's; comes back in Actions::Moved.
  uint64_t id = 0;
  OperationId operation;
  uint64_t bytes = 0;
};

class Landing {
 public:
  // Part of a job in a part of the buffer.
  struct Piece {
    uint64_t job = 0;
    uint64_t job_offset = 0;
    uint64_t part_offset = 0;
    uint64_t bytes = 0;
  };
  class Actions {
   public:
    virtual ~Actions() = default;
    // Begin the copy of a piece; answer with OnCopied of its part.
    virtual void CopyPiece(gpu::Direction direction, uint32_t part, const Piece& piece) = 0;
    // Ask the worker to scatter the part, or to gather into it.
    virtual void AskWorker(gpu::Direction direction, OperationId operation, uint32_t part,
                           uint64_t sequence, const std::vector<Piece>& pieces) = 0;
    // Bytes of a job have arrived where they belong.
    virtual void Moved(uint64_t job, uint64_t bytes) = 0;
  };

  // `overdue` counts parts whose operation has ended while the worker has them.
  Landing(uint32_t parts, uint64_t part_bytes, Gauge* overdue);
  ~Landing();
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;

  // REQUIRES: not stalled.
  void Add(gpu::Direction direction, const LandingJob& job, Actions* actions);
  // A piece's copy has ended. One that failed: after EndOperation for its operation.
  void OnCopied(uint32_t part, const Piece& piece, Actions* actions);
  // INVALID_ARGUMENT when the worker does not have that part, in that direction.
  absl::Status OnAcknowledged(gpu::Direction direction, uint32_t part, uint64_t sequence,
                              Actions* actions);
  // The operation has ended: its jobs are forgotten, but for copies that are running.
  void EndOperation(OperationId operation, Actions* actions);
  // Whether the worker has some part: its kernels may touch the buffer.
  bool WithWorker() const;
  // Whether it still has the part of this sequence.
  bool WithWorker(uint32_t part, uint64_t sequence) const;
  // It has had this part for too long. Returns the operations that wait for it or behind it, which
  // the caller ends.
  std::vector<OperationId> Stall(uint32_t part);
  bool stalled() const { return stalled_parts_ > 0; }

 private:
  enum class State : uint8_t { kFree, kFilling, kWithWorker, kDraining };
  struct Part {
    State state = State::kFree;
    gpu::Direction direction = gpu::Direction::kToDevice;
    OperationId operation;
    bool abandoned = false;  // The operation has ended.
    bool stalled = false;
    uint64_t sequence = 0;
    uint32_t copies = 0;  // Running.
    std::vector<Piece> pieces;
  };
  struct Waiting {
    LandingJob job;
    uint64_t offset = 0;  // Bytes that have a place in a part.
  };

  void Pump(Actions* actions);
  std::deque<Waiting>* NextQueue();
  void Fill(uint32_t part, std::deque<Waiting>* queue);
  void Ask(uint32_t part, Actions* actions);
  void Free(Part& part);

  // Loads go before stores, but a store has its turn after this many.
  static constexpr uint32_t kLoadsInARow = 8;

  const uint64_t part_bytes_;
  Gauge* const overdue_;
  std::vector<Part> parts_;
  std::deque<Waiting> loads_;
  std::deque<Waiting> stores_;
  uint32_t loads_in_a_row_ = 0;
  uint64_t last_sequence_ = 0;
  uint32_t stalled_parts_ = 0;
};

}  // namespace kvstream::engine
