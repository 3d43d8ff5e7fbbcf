#include "tests/support/route_scenario.h"

#include <algorithm>
#include <cmath>

#include "server/base/check.h"
#include "tests/support/sim_batches.h"

namespace kvstream::sched {
namespace {

// Longer than any step here takes.
constexpr TimeNs kScenarioTime = 60 * kSecond;

void Pulses(TimeNs period, TimeNs phase, double normal, double pressed, SimTierOptions* tier) {
  for (TimeNs at = phase - period; at < kScenarioTime; at += period) {
    if (at > 0) tier->changes.push_back({at, pressed});
    if (at + period / 2 > 0) tier->changes.push_back({at + period / 2, normal});
  }
}

void Bursts(SimRandom& random, double normal, SimTierOptions* tier) {
  const auto exponential = [&random](TimeNs mean) {
    return static_cast<TimeNs>(-std::log(1 - random.Real()) * static_cast<double>(mean)) + 1;
  };
  for (TimeNs at = exponential(700 * kMillisecond); at < kScenarioTime;) {
    tier->changes.push_back({at, normal * (0.1 + 0.5 * random.Real())});
    at += exponential(300 * kMillisecond);
    tier->changes.push_back({at, normal});
    at += exponential(700 * kMillisecond);
  }
}

}  // namespace

const char* NameOf(Load load) {
  switch (load) {
    case Load::kQuiet:
      return "quiet";
    case Load::kPfsPeriodic:
      return "pfs-periodic";
    case Load::kPfsBursty:
      return "pfs-bursty";
    case Load::kPfsSteady:
      return "pfs-steady";
    case Load::kNvmeWrites:
      return "nvme-writes";
  }
  return "";
}

SimOptions OptionsOf(const RouteScenario& scenario) {
  SimRandom random(scenario.seed);
  SimTierOptions fast;
  fast.bytes_per_second = scenario.fast_rate;
  fast.latency = 200 * kMicrosecond;
  fast.jitter = 100 * kMicrosecond;
  SimTierOptions slow;
  slow.bytes_per_second = scenario.slow_rate;
  slow.latency = 0;
  slow.lognormal_latency = scenario.slow_latency;
  slow.lognormal_p99 = 30;
  const auto phase = static_cast<TimeNs>(random.Below(kSecond));
  switch (scenario.load) {
    case Load::kQuiet:
      break;
    case Load::kPfsPeriodic:
      Pulses(kSecond, phase, scenario.slow_rate, 0.4 * scenario.slow_rate, &slow);
      break;
    case Load::kPfsBursty:
      Bursts(random, scenario.slow_rate, &slow);
      break;
    case Load::kPfsSteady:
      slow.bytes_per_second *= 0.5;
      break;
    case Load::kNvmeWrites:
      Pulses(kSecond, phase, scenario.fast_rate, 0.5 * scenario.fast_rate, &fast);
      break;
  }
  SimOptions options;
  options.tiers = {fast, slow};
  // Windows have to cover bandwidth times latency, whose mean is near three times its median here.
  const double latency = 3 * static_cast<double>(scenario.slow_latency) / 1e9;
  const auto covers = static_cast<uint64_t>(2 * scenario.slow_rate * latency);
  options.router.lanes.resize(
      2, LaneOptions{std::max(128 * kMiB, covers), 64 * kMiB, 100 * kMillisecond});
  options.pool_bytes = options.reserved_bytes = 4 * kGiB;
  options.copy_bytes_per_second = 20e9;
  options.seed = scenario.seed;
  options.deep_checks = false;
  return options;
}

double BoundSeconds(const std::vector<SimTierOptions>& tiers, TimeNs begin, double bytes) {
  // Bisection over time, since each tier knows when it has moved so much.
  TimeNs low = begin;
  TimeNs high = begin + 10 * kScenarioTime;
  const auto moved = [&](const SimTierOptions& tier, TimeNs end) {
    double sum = 0;
    double rate = tier.bytes_per_second;
    TimeNs at = begin;
    for (const auto& change : tier.changes) {
      if (change.at >= end) break;
      if (change.at > at) sum += rate * static_cast<double>(change.at - at) / 1e9;
      at = std::max(at, change.at);
      rate = change.bytes_per_second;
    }
    return sum + rate * static_cast<double>(end - at) / 1e9;
  };
  while (high - low > 1) {
    const TimeNs middle = low + (high - low) / 2;
    double sum = 0;
    for (const SimTierOptions& tier : tiers) sum += moved(tier, middle);
    (sum < bytes ? low : high) = middle;
  }
  return static_cast<double>(high - begin) / 1e9;
}

double PercentAboveBound(const RouteScenario& scenario, const SimOptions& options, uint64_t bytes,
                         double* read_share) {
  const ChunkShape shape{scenario.segments_per_chunk * scenario.segment_bytes,
                         scenario.segment_bytes};
  const uint64_t chunks = (bytes + shape.payload_bytes - 1) / shape.payload_bytes;
  SimRandom placement(scenario.seed);
  const double fast_share = scenario.fast_rate / (scenario.fast_rate + scenario.slow_rate);
  BatchSpec spec = BatchOf(1, {});
  spec.requests.assign(scenario.requests, {});
  for (uint64_t c = 0; c < chunks; ++c) {
    const TierSet one = placement.Chance(fast_share) ? Tiers({0}) : Tiers({1});
    spec.requests[c * scenario.requests / chunks].push_back(
        ItemOn(1 + c, scenario.replicated ? Tiers({0, 1}) : one, shape));
  }
  SimWorld world(options);
  world.AdmitAt(0, std::move(spec));
  world.Run();
  KV_CHECK(world.violation().empty());
  const BatchModel& batch = world.batch(OperationId{1});
  for (const RequestModel& request : batch.requests) {
    for (const ItemModel& item : request.items) KV_CHECK(item.code == absl::StatusCode::kOk);
  }
  const auto total = static_cast<double>(chunks * shape.payload_bytes);
  if (read_share != nullptr) {
    *read_share = static_cast<double>(world.reads().size() * scenario.segment_bytes) / total;
  }
  const double took = static_cast<double>(batch.done_at - batch.admitted_at) / 1e9;
  return (took / BoundSeconds(options.tiers, batch.admitted_at, total) - 1) * 100;
}

}  // namespace kvstream::sched
