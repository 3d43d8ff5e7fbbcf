// Drives a daemon with a request trace as an engine would: look a step's requests up, read what
// hits into a host buffer and verify every byte, run a forward pass (a pause), store the rest.
//
// A daemon that goes away is waited for: the replay connects again, registers again and repeats the
// step.
//
// Thread rule: one thread. Errors: what ended the replay early, UNAVAILABLE when the daemon cannot
// be reached; the report is as far as it came.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/replay/content.h"
#include "client/replay/possible_hits.h"
#include "client/replay/trace.h"

namespace kvstream::replay {

struct ReplayOptions {
  ClientOptions client;
  uint64_t chunk_bytes = uint64_t{256} << 10;
  // 0: the daemon's default.
  uint64_t segment_bytes = 0;
  // Requests in a step.
  uint64_t batch = 1;
  absl::Duration forward;
  absl::Duration admission = absl::Seconds(60);
  absl::Duration deadline = absl::Seconds(60);
  // How long to try to reach a daemon that went away.
  absl::Duration reconnect = absl::Seconds(30);
  // Read into memory of this process's own making instead of the daemon's.
  bool own_buffer = false;
  // Tells the chunks of one replay from those of another; equal labels share.
  std::string label;
  uint64_t seed = 0;
};

struct TierBytes {
  std::string name;
  uint64_t read = 0;
  uint64_t written = 0;
};

struct ReplayReport {
  uint64_t requests = 0;
  uint64_t steps = 0;
  uint64_t chunks = 0;         // In all prompts.
  uint64_t possible_hits = 0;  // Leading chunks that an unbounded cache would have had.
  uint64_t hits = 0;           // Leading chunks read and verified.
  uint64_t chunks_failed = 0;  // Looked up as present, and not delivered.
  uint64_t bytes_read = 0;
  uint64_t chunks_stored = 0;
  uint64_t chunks_existed = 0;
  uint64_t chunks_dropped = 0;
  uint64_t wrong_bytes = 0;
  std::string first_wrong;  // Which chunk, where, and what it held.
  uint64_t restarts = 0;    // Times that the daemon went away.
  // Since the last restart, from the daemon's own counters.
  std::vector<TierBytes> tiers;
  uint64_t pool_bytes = 0;
  // From sending a ReadStep to its end, of steps that read something.
  std::vector<absl::Duration> step_times;
  absl::Duration elapsed;
};

class Replay {
 public:
  Replay(ReplayOptions options, std::vector<Request> requests);

  // Called after each step.
  using Progress = std::function<void(const ReplayReport&)>;
  absl::Status Run(const Progress& progress);
  const ReplayReport& report() const { return report_; }

 private:
  using Batch = std::vector<const Request*>;

  absl::Status Connect();
  absl::Status Reconnect();
  absl::Status MakeBuffer();
  // One step, repeated over restarts of the daemon.
  absl::Status Step(const Batch& batch);
  // Whether a step failed because its session is over, so that a new one may do better.
  bool SessionLost(const absl::Status& status) const;
  absl::Status TryStep(const Batch& batch);
  absl::StatusOr<uint32_t> Lookup(const Request& request);
  absl::Status Read(const Batch& batch, const std::vector<uint32_t>& found);
  void Verify(const Request& request, const v1::RequestDone& done, size_t first_slot);
  absl::Status StoreRest(const Batch& batch);
  absl::Status ReadCounters();
  v1::ChunkAt At(uint64_t id, size_t slot) const;
  std::span<std::byte> SlotAt(size_t slot) const;

  const ReplayOptions options_;
  const std::vector<Request> requests_;
  const Content content_;
  size_t slots_ = 0;  // Of the buffer: enough for the largest step.
  std::unique_ptr<Client> client_;
  NamespaceHandle namespace_;
  HostBuffer buffer_;
  v1::Status baseline_;  // The daemon's counters when we connected.
  PossibleHits possible_;
  std::vector<uint32_t> hits_;  // Of the step: leading chunks of each request.
  ReplayReport report_;
};

}  // namespace kvstream::replay
