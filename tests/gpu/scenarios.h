// What the mini-engine does: round trips that are compared byte by byte, loops that run until they
// are killed, memory that must be refused. They print what they do, one line each.
//
// Thread rule: one thread. Ownership: none. Errors: the first thing that was not as it should be.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/gpu/mini_engine.h"

namespace kvstream {

struct ScenarioOptions {
  MiniEngineOptions engine;
  // Requests of a step.
  uint32_t requests = 2;
  // Chunks of a step or a store; 0 means as many as half of the blocks make.
  uint32_t chunks = 0;
  // Rounds of a round trip or a loop; 0 means one round trip, or a loop without end.
  uint64_t rounds = 0;
  // Compare every round of a loop too.
  bool verify = false;
  // Multiply matrices meanwhile, and say how fast.
  bool gemm = false;
};

// Stores random bytes, overwrites the pool, loads into other blocks, and compares the whole pool:
// the chunks are there, and no other byte has changed.
absl::Status RunRoundTrip(const ScenarioOptions& options);

// Registers, prints "holding", and waits until the session is lost, which is the error.
absl::Status RunHold(const ScenarioOptions& options);

// Stores once and reads without end; stores new chunks without end.
absl::Status RunReadLoop(const ScenarioOptions& options);
absl::Status RunStoreLoop(const ScenarioOptions& options);

// Registers a pool made of several allocations: OK when that is refused with the setting's name.
absl::Status RunExpandable(const ScenarioOptions& options);

}  // namespace kvstream
