// Copies between the staging pool and workers' GPU memory, straight into the blocks or through a
// landing buffer. Every job is answered once, when no DMA of it runs any more.
//
// Thread rule: the engine loop.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "server/base/types.h"
#include "server/engine/api.h"
#include "server/engine/copy_pool.h"
#include "server/engine/landing.h"
#include "server/engine/sessions.h"
#include "server/engine/stats.h"
#include "server/gpu/gpu.h"

namespace kvstream::engine {

struct DeviceJob {
  // Whose job it is; with `id` and `part` the submitter's, as in CopyJob.
  CopyKind kind = CopyKind::kSegment;
  uint64_t id = 0;
  uint32_t part = 0;
  gpu::Direction direction = gpu::Direction::kToDevice;
  SessionId session;
  OperationId operation;
  uint64_t client_op = 0;
  uint32_t request_index = 0;
  uint32_t chunk_index = 0;
  // The operation's; stays until the answer.
  const Place* place = nullptr;
  // Which bytes of the chunk.
  uint64_t offset = 0;
  uint64_t bytes = 0;
  // In the staging pool.
  std::byte* host = nullptr;
};

struct DeviceResult {
  CopyKind kind = CopyKind::kSegment;
  uint64_t id = 0;
  uint32_t part = 0;
  OperationId operation;
  // UNAVAILABLE: the GPU is lost or hangs. DEADLINE_EXCEEDED: the worker takes too long with what
  // it was given before. Else what EndOperation said.
  absl::StatusCode code = absl::StatusCode::kOk;
};

class DeviceCopies {
 public:
  struct Parts {
    gpu::Gpus* gpus = nullptr;
    Sessions* sessions = nullptr;
    EngineStats* stats = nullptr;
    // How long a worker may have a part.
    TimeNs landing_ack = 0;
  };
  explicit DeviceCopies(const Parts& parts) : parts_(parts) {}

  void Submit(const DeviceJob& job, TimeNs now);
  // OK, also for host memory, or why a job for this place would fail at once: UNAVAILABLE, the GPU
  // is lost or hangs; DEADLINE_EXCEEDED, the worker has had a part of the landing buffer for too
  // long.
  absl::StatusCode WhyNot(SessionId session, const Place& place) const;
  // The operation has ended early: its jobs end with `code`, at once but for DMA that runs.
  void EndOperation(SessionId session, OperationId operation, absl::StatusCode code, TimeNs now);

  void OnCopied(const gpu::CopyDone& done, TimeNs now);
  // A wrong acknowledgement: NOT_FOUND or INVALID_ARGUMENT; whose session must end, since bytes
  // were not where it says.
  absl::Status OnAcknowledged(Session& session, const PartAcknowledged& acknowledged, TimeNs now);
  // Workers that have had a part for too long: what waits for them ends.
  void Tick(TimeNs now);
  TimeNs NextDeadline() const { return due_.empty() ? kNever : due_.front().deadline; }

  bool has_results() const { return !results_.empty(); }
  // Replaces `results` by those since the last call.
  void TakeResults(std::vector<DeviceResult>* results);

 private:
  struct Running {
    DeviceJob job;
    uint64_t left = 0;    // Bytes that have not arrived.
    uint32_t copies = 0;  // DMA that runs.
    absl::StatusCode code = absl::StatusCode::kOk;
  };
  // What a copy of the GPU room is: all of a direct job, or a piece in a part.
  struct DeviceCopy {
    uint64_t job = 0;
    uint64_t region = 0;  // The landing buffer's; 0: direct.
    uint32_t part = 0;
    Landing::Piece piece;
    SessionId session;
  };
  struct Due {
    TimeNs deadline = 0;
    SessionId session;
    uint64_t region = 0;
    uint32_t part = 0;
    uint64_t sequence = 0;
  };
  class LandingActions;

  // Ends what goes by landing buffers of a GPU that hangs.
  void EndAllOn(uint32_t device, TimeNs now);
  // Null when it is gone with its session.
  Landing* FindLanding(SessionId session, uint64_t region);
  void CopyToGpu(uint64_t job, const DeviceCopy& copy, gpu::Copy request);
  void Moved(uint64_t job, uint64_t bytes);
  void Fail(uint64_t job, absl::StatusCode code);
  // Answers the job if it has ended.
  void MaybeAnswer(uint64_t job);

  const Parts parts_;
  absl::flat_hash_map<uint64_t, Running> jobs_;
  std::set<std::pair<OperationId, uint64_t>> jobs_of_;
  absl::flat_hash_map<uint64_t, DeviceCopy> copies_;
  uint64_t next_job_ = 1;
  uint64_t next_copy_ = 1;
  absl::flat_hash_set<uint32_t> hung_;  // GPUs, as of the last tick.
  std::deque<Due> due_;                 // In order, since all have the same time.
  std::vector<DeviceResult> results_;
};

}  // namespace kvstream::engine
