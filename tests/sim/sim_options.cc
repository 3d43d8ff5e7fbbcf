#include "tests/sim/sim_options.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <string>

namespace kvstream::sim {
namespace {

TimeNs Upto(SimRandom& random, TimeNs most) {
  return static_cast<TimeNs>(random.Below(static_cast<uint64_t>(most) + 1));
}

// `rate` in so many worlds, else 0.
double Sometimes(SimRandom& random, double worlds, double rate) {
  return random.Chance(worlds) ? rate * random.Real() : 0;
}

SimTier RandomTier(SimRandom& random, uint32_t number) {
  SimTier tier;
  test::FakeTier::Options& options = tier.options;
  options.tier.id = TierId{number};
  options.tier.name = std::to_string(number);
  options.read_rate = random.Between(1, 400) * kMiB / 2;
  options.write_rate = random.Between(1, 200) * kMiB / 2;
  options.latency = Upto(random, random.Chance(0.3) ? 20 * kMillisecond : kMillisecond);
  options.jitter = Upto(random, random.Chance(0.3) ? 100 * kMillisecond : kMillisecond);
  options.seed = random.Next();
  tier.reads.error = Sometimes(random, 0.4, 0.2);
  tier.reads.errors = {EIO, EIO, EACCES, ESTALE, ENOMEM};
  tier.reads.short_count = Sometimes(random, 0.3, 0.2);
  tier.reads.corrupt = Sometimes(random, 0.4, 0.2);
  tier.reads.delay = Sometimes(random, 0.4, 0.3);
  tier.reads.delay_max = random.Chance(0.5) ? kSecond : 20 * kMillisecond;
  tier.reads.never = Sometimes(random, 0.2, 0.05);
  tier.writes.error = Sometimes(random, 0.4, 0.4);
  tier.writes.errors = {EIO, ENOSPC, EROFS};
  tier.writes.short_count = Sometimes(random, 0.2, 0.2);
  tier.writes.corrupt = Sometimes(random, 0.3, 0.2);
  tier.writes.delay = Sometimes(random, 0.3, 0.3);
  tier.writes.delay_max = tier.reads.delay_max;
  tier.writes.never = Sometimes(random, 0.1, 0.05);
  return tier;
}

SimScript RandomScript(SimRandom& random) {
  SimScript script;
  script.lives = static_cast<uint32_t>(random.Chance(0.6) ? 1 : random.Between(2, 3));
  script.steps = static_cast<uint32_t>(random.Between(10, 60));
  script.horizon = (random.Chance(0.5) ? 300 : 2000) * kMillisecond;
  script.crash = 0.6;
  script.cancel = Sometimes(random, 0.5, 0.3);
  script.die = Sometimes(random, 0.4, 0.1);
  script.reuse_id = Sometimes(random, 0.1, 0.1);
  script.tier_out = Sometimes(random, 0.4, 0.2);
  script.hang = Sometimes(random, 0.4, 0.1);
  script.full = Sometimes(random, 0.3, 0.1);
  script.damage = Sometimes(random, 0.3, 0.2);
  script.remove = Sometimes(random, 0.3, 0.2);
  script.drain = Sometimes(random, 0.2, 0.03);
  script.deadlines = random.Chance(0.5);
  return script;
}

void ChooseRouting(SimRandom& random, SimOptions* options) {
  sched::RouterOptions& router = options->engine.router;
  sched::WriteQueueOptions& writes = options->engine.writes;
  const uint64_t chunk =
      *std::max_element(options->payload_bytes.begin(), options->payload_bytes.end());
  for (size_t t = 0; t < options->tiers.size(); ++t) {
    sched::LaneOptions lane;
    lane.window_bytes = random.Between(1, 12) * options->segment_bytes;
    lane.quarantine_bytes = lane.window_bytes / random.Between(1, 4);
    lane.ahead = random.Chance(0.5) ? 0 : Upto(random, 100 * kMillisecond) + 1;
    router.lanes.push_back(lane);
    writes.lanes.push_back({.window_bytes = random.Between(1, 6) * chunk,
                            .backlog_bytes = random.Between(1, 20) * chunk});
  }
  router.hedge_after = Upto(random, 250 * kMillisecond) + kMillisecond;
  router.turn_bytes = random.Between(1, 8) * options->segment_bytes;
  router.staged_copies_max = static_cast<uint32_t>(random.Between(1, 8));
  router.policy.narrowing = random.Chance(0.8);
  router.policy.hedging = random.Chance(0.8);
  if (random.Chance(0.2)) {
    router.policy.policy = static_cast<sched::Policy>(random.Below(5));
    router.policy.single = TierId{static_cast<uint32_t>(random.Below(options->tiers.size()))};
    router.policy.fixed_percent = static_cast<uint32_t>(random.Below(101));
    router.policy.chunks_at_a_time = static_cast<uint32_t>(random.Between(1, 4));
  }
  writes.replicate_all = random.Chance(0.7);
  writes.home_first = random.Chance(0.2);
  writes.max_defer = Upto(random, 500 * kMillisecond);
  writes.watermark_bytes = random.Below(8) * chunk;
}

}  // namespace

SimOptions RandomOptions(SimRandom& random) {
  SimOptions options;
  options.keys = static_cast<uint32_t>(random.Between(1, random.Chance(0.5) ? 4 : 16));
  options.sessions = static_cast<uint32_t>(random.Between(1, 3));
  options.segment_bytes = 4 * kKiB << random.Below(3);
  for (uint64_t groups = random.Between(1, 2); groups > 0; --groups) {
    options.payload_bytes.push_back(random.Between(16, 5 * options.segment_bytes));
  }
  // The shared part of the pool holds two of the largest chunks, whatever their slots round up to.
  const uint64_t chunk_slots = std::bit_ceil(5 * options.segment_bytes);
  const uint64_t reserved = std::bit_ceil(random.Between(1, 8) * options.segment_bytes);
  options.engine.pool_reserved_bytes = reserved;
  options.pool_bytes = reserved + random.Between(2, 8) * chunk_slots;
  options.copy_max = random.Chance(0.3) ? 0 : Upto(random, 5 * kMillisecond);
  options.turn_jitter = random.Chance(0.5) ? 0 : Upto(random, kMillisecond);
  options.engine.operations_per_session_max = random.Chance(0.2) ? 3 : 1024;
  options.engine.drain = 5 * kSecond;
  const uint64_t tiers = random.Chance(0.7) ? 2 : random.Chance(0.5) ? 1 : 3;
  for (uint32_t t = 0; t < tiers; ++t) options.tiers.push_back(RandomTier(random, t));
  ChooseRouting(random, &options);
  options.script = RandomScript(random);
  constexpr sched::CachePolicyKind kPolicies[] = {
      sched::CachePolicyKind::kLru, sched::CachePolicyKind::kS3Fifo, sched::CachePolicyKind::kArc};
  if (random.Chance(0.5)) options.engine.cache = kPolicies[random.Below(3)];
  for (uint64_t t = 0; random.Chance(0.3) && t < tiers; ++t) {
    options.engine.capacities.resize(t + 1);
    options.engine.capacities[t].bytes_max = random.Between(1, options.keys) * chunk_slots;
    if (random.Chance(0.5)) continue;
    options.engine.capacities[t].free_percent_min = static_cast<uint32_t>(random.Between(1, 50));
    options.tiers[t].options.capacity_bytes = random.Between(2, options.keys + 2) * chunk_slots;
  }
  return options;
}

}  // namespace kvstream::sim
