// What a tier is tried with before it serves: a small file is written, linked, read back, compared
// and unlinked through the same lanes that will do the work.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tier/io_loop.h"
#include "server/tier/tier.h"

namespace kvstream::tier {

struct ProbeResult {
  // The file system takes direct I/O in blocks of kBlockBytes.
  bool direct = false;
  // What it asks direct I/O to be aligned to, bytes; kBlockBytes where it does not tell.
  uint32_t alignment = 0;
  // Why it is not direct.
  std::string buffered_reason;
};

// Tries direct I/O with an engine, and where the file system refuses it, buffered. Errors name the
// tier's root and what failed; DEADLINE_EXCEEDED when the file system did not answer in half a
// minute, and DATA_LOSS when it gave other bytes back. Where the engine could not be started,
// `refused` is that error too. `wrap`, if any, wraps the queues. Blocks.
absl::StatusOr<ProbeResult> Probe(const TierOptions& options, IoEngine engine, int root_fd,
                                  absl::Status* refused, const QueueWrapper& wrap = {});

}  // namespace kvstream::tier
