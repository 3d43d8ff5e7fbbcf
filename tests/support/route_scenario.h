// Worlds of two tiers to measure routing in: a fast, even one, and a slow one with a heavy latency
// tail, whose rates change as other jobs come and go. And the bound: the first time at which the
// integral of the rates reaches a step's bytes.
//
// Thread rule: one thread. A scenario is a function of its name and its seed.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/sim_world.h"

namespace kvstream::sched {

enum class Load {
  kQuiet,
  kPfsPeriodic,
  kPfsBursty,
  kPfsSteady,
  kNvmeWrites,
};
inline constexpr Load kLoads[] = {Load::kQuiet, Load::kPfsPeriodic, Load::kPfsBursty,
                                  Load::kPfsSteady, Load::kNvmeWrites};
const char* NameOf(Load load);

struct RouteScenario {
  Load load = Load::kQuiet;
  uint64_t seed = 1;
  double fast_rate = 3e9;
  double slow_rate = 1e9;
  // Of the slow tier's reads; the 99th percentile is 30 times as long.
  TimeNs slow_latency = 20 * kMillisecond;
  uint64_t segment_bytes = 4 * kMiB;
  uint64_t segments_per_chunk = 4;
  // That the step is made of.
  uint64_t requests = 1;
  // A copy on each tier; otherwise one, on either by the tiers' rates.
  bool replicated = true;
};

// A world of the scenario; its router's options may be changed before it is built.
SimOptions OptionsOf(const RouteScenario& scenario);

// Seconds from `begin` until the tiers together could have moved `bytes`.
double BoundSeconds(const std::vector<SimTierOptions>& tiers, TimeNs begin, double bytes);

// Reads a joint step of at least `bytes` from time zero on both tiers; returns how many percent
// above the bound it took. `read_share`, where given, is bytes read over bytes of the step.
double PercentAboveBound(const RouteScenario& scenario, const SimOptions& options, uint64_t bytes,
                         double* read_share = nullptr);

}  // namespace kvstream::sched
