// What a seed chooses: how large everything is, how fast, and what goes wrong. Most seeds leave
// most faults out, so that each has worlds in which it is alone.
//
// Stateless.
#pragma once

#include <cstdint>
#include <vector>

#include "server/base/types.h"
#include "server/engine/engine.h"
#include "tests/support/fake_tier.h"
#include "tests/support/fault_plan.h"
#include "tests/support/sim_random.h"

namespace kvstream::sim {

struct SimTier {
  test::FakeTier::Options options;
  test::FaultPlan::Rates reads;
  test::FaultPlan::Rates writes;
};

// Chances of each step of the script.
struct SimScript {
  // Lives of the daemon; each but the last may end in a crash.
  uint32_t lives = 1;
  uint32_t steps = 0;  // Of a life.
  TimeNs horizon = 0;  // Of a life.
  double crash = 0;
  double cancel = 0;
  double die = 0;
  double reuse_id = 0;
  double tier_out = 0;
  double hang = 0;
  double full = 0;
  double damage = 0;
  double remove = 0;
  double drain = 0;
  // Every operation has a deadline, as the protocol demands; else some wait for ever, which shows
  // what nobody serves.
  bool deadlines = false;
};

struct SimOptions {
  uint32_t keys = 0;
  uint32_t sessions = 0;
  uint64_t segment_bytes = 0;
  std::vector<uint64_t> payload_bytes;
  uint64_t pool_bytes = 0;
  // A copy takes up to so long, and a turn comes so much later than it could.
  TimeNs copy_max = 0;
  TimeNs turn_jitter = 0;
  engine::EngineOptions engine;
  std::vector<SimTier> tiers;
  SimScript script;
};

SimOptions RandomOptions(SimRandom& random);

}  // namespace kvstream::sim
