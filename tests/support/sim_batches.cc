#include "tests/support/sim_batches.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvstream::sched {
namespace {

constexpr TimeNs kHorizon = 2 * kSecond;
constexpr uint64_t kSegmentBytes = 256 * kKiB;

TimeNs RandomTime(SimRandom& random, TimeNs low, TimeNs high) {
  return static_cast<TimeNs>(
      random.Between(static_cast<uint64_t>(low), static_cast<uint64_t>(high)));
}

SimTierOptions RandomTier(SimRandom& random) {
  SimTierOptions tier;
  tier.bytes_per_second = static_cast<double>(random.Between(1, 200)) * 1e6;
  tier.latency = RandomTime(random, 10 * kMicrosecond, 10 * kMillisecond);
  tier.jitter = RandomTime(random, 0, 10 * kMillisecond);
  if (random.Chance(0.5)) {
    tier.tail_chance = 0.05;
    tier.tail = RandomTime(random, 10 * kMillisecond, 800 * kMillisecond);
  }
  TimeNs at = 0;
  for (uint64_t n = random.Chance(0.4) ? random.Below(12) : 0; n > 0; --n) {
    at += RandomTime(random, 1, kHorizon / 5);
    const bool hangs = random.Chance(0.2);
    const double rate = hangs ? 0 : static_cast<double>(random.Between(1, 200)) * 1e6;
    tier.changes.push_back({at, rate});
  }
  if (random.Chance(0.5)) return tier;
  if (random.Chance(0.3)) tier.error_chance = 0.2 * random.Real();
  if (random.Chance(0.3)) tier.damage_chance = 0.2 * random.Real();
  if (random.Chance(0.3)) tier.stuck_chance = 0.1 * random.Real();
  if (random.Chance(0.3)) tier.missing_replica_chance = 0.4 * random.Real();
  if (random.Chance(0.3)) tier.damaged_replica_chance = 0.4 * random.Real();
  if (random.Chance(0.2)) tier.dies_at = RandomTime(random, 0, kHorizon);
  return tier;
}

SimOptions RandomOptions(SimRandom& random) {
  SimOptions options;
  options.seed = random.Next();
  const uint64_t tiers = random.Between(1, 4);
  for (uint64_t t = 0; t < tiers; ++t) {
    options.tiers.push_back(RandomTier(random));
    LaneOptions lane;
    lane.window_bytes = random.Between(1, 16) * kSegmentBytes - random.Below(2);
    lane.quarantine_bytes = lane.window_bytes / random.Between(1, 4);
    lane.ahead = random.Chance(0.5) ? RandomTime(random, kMillisecond, 100 * kMillisecond) : 0;
    options.router.lanes.push_back(lane);
  }
  options.router.hedge_after = RandomTime(random, 5 * kMillisecond, 250 * kMillisecond);
  options.router.policy.narrowing = random.Chance(0.8);
  options.router.policy.hedging = random.Chance(0.8);
  if (random.Chance(0.4)) {
    PolicyOptions& policy = options.router.policy;
    policy.policy = static_cast<Policy>(random.Below(5));
    policy.single = TierId{static_cast<uint32_t>(random.Below(tiers))};
    policy.fixed_percent = static_cast<uint32_t>(random.Below(101));
    policy.chunks_at_a_time = static_cast<uint32_t>(random.Between(1, 4));
  }
  options.router.turn_bytes = random.Between(1, 8) * kSegmentBytes;
  options.router.staged_copies_max = static_cast<uint32_t>(random.Between(1, 8));
  options.reserved_bytes = random.Between(1, 6) * kSegmentBytes;
  options.pool_bytes = options.reserved_bytes + random.Below(24) * kSegmentBytes / 2;
  const bool slow_copies = random.Chance(0.3);
  options.copy_bytes_per_second = static_cast<double>(random.Between(50, 5000)) * 1e6;
  options.copy_jitter = RandomTime(random, 0, (slow_copies ? 100 : 5) * kMillisecond);
  options.staged_damage_chance = random.Chance(0.2) ? 0.3 : 0;
  options.late_copy_chance = random.Chance(0.2) ? 0.3 : 0;
  return options;
}

// What is stored: for each key one or two contents, and where each of them is.
struct Stored {
  ChunkShape shape;
  std::vector<Source> sources;
};

std::vector<Stored> RandomStore(SimRandom& random, size_t tiers) {
  std::vector<Stored> store(random.Between(1, random.Chance(0.5) ? 4 : 24));
  const double staged_chance = random.Chance(0.5) ? 0.2 : 0;
  for (size_t key = 0; key < store.size(); ++key) {
    store[key].shape.segment_bytes = kSegmentBytes >> random.Below(3);
    store[key].shape.payload_bytes = random.Between(1, 5 * store[key].shape.segment_bytes);
    const uint64_t contents = random.Chance(0.2) ? 2 : random.Chance(0.05) ? 0 : 1;
    for (uint64_t c = 0; c < contents; ++c) {
      const bool everywhere = random.Chance(0.4);
      const uint64_t bits = everywhere ? ~uint64_t{0} : random.Next();
      Source source;
      source.content = ContentOf(1 + key * 2 + c);
      source.tiers = TierSet::FromBits(static_cast<uint32_t>(bits & ((1u << tiers) - 1)));
      source.staged = c == 0 && random.Chance(staged_chance);
      store[key].sources.push_back(source);
    }
  }
  return store;
}

Item RandomItem(SimRandom& random, const std::vector<Stored>& store) {
  const Stored& stored = store[random.Below(store.size())];
  Item item;
  item.shape = stored.shape;
  for (Source source : stored.sources) {
    if (random.Chance(0.1)) {  // Not all replicas are known to everyone.
      source.tiers = source.tiers & TierSet::FromBits(static_cast<uint32_t>(random.Next()));
    }
    item.sources.push_back(source);
  }
  return item;
}

void AddRandomBatches(SimRandom& random, const std::vector<Stored>& store, SimWorld* world) {
  const uint64_t batches = random.Between(1, 14);
  const double cancel_chance = random.Chance(0.5) ? 0.3 : 0;
  const TimeNs arrivals = random.Chance(0.5) ? kHorizon : kHorizon / 10;
  for (uint64_t b = 1; b <= batches; ++b) {
    const TimeNs at = RandomTime(random, 0, arrivals);
    BatchSpec spec;
    spec.id = OperationId{b};
    spec.joint = random.Chance(0.5);
    if (spec.joint && random.Chance(0.6)) {  // A few keys for many batches: ranks meet, or do not.
      spec.step_key = random.Between(1, 3);
      spec.ranks = static_cast<uint32_t>(random.Between(1, 4));
    }
    spec.join_deadline = at + RandomTime(random, 0, 300 * kMillisecond);
    if (random.Chance(0.6)) spec.deadline = at + RandomTime(random, 0, 3 * kSecond);
    spec.requests.resize(spec.joint ? random.Between(1, 2) : random.Between(1, 6));
    for (auto& items : spec.requests) {
      for (uint64_t n = random.Between(1, 6); n > 0; --n)
        items.push_back(RandomItem(random, store));
    }
    world->AdmitAt(at, std::move(spec));
    if (random.Chance(cancel_chance)) {
      world->CancelAt(at + RandomTime(random, 0, 500 * kMillisecond), OperationId{b});
    }
  }
}

}  // namespace

ContentId ContentOf(uint64_t number) {
  ContentId id;
  uint64_t spread = SimRandom(number).Next();  // Digests are uniform.
  std::memcpy(id.bytes.data(), &spread, sizeof spread);
  std::memcpy(id.bytes.data() + sizeof spread, &number, sizeof number);
  return id;
}

TierSet Tiers(std::initializer_list<uint32_t> tiers) {
  TierSet set;
  for (const uint32_t t : tiers) set.Add(TierId{t});
  return set;
}

Item ItemOn(uint64_t content, TierSet tiers, ChunkShape shape) {
  Item item;
  item.shape = shape;
  item.sources.push_back(Source{ContentOf(content), tiers, false});
  return item;
}

BatchSpec BatchOf(uint64_t id, std::vector<Item> items) {
  BatchSpec spec;
  spec.id = OperationId{id};
  spec.joint = true;
  spec.requests.push_back(std::move(items));
  return spec;
}

std::unique_ptr<SimWorld> RandomWorld(uint64_t seed) {
  SimRandom random(seed);
  const SimOptions options = RandomOptions(random);
  const std::vector<Stored> store = RandomStore(random, options.tiers.size());
  auto world = std::make_unique<SimWorld>(options);
  AddRandomBatches(random, store, world.get());
  const double flip_chance = random.Chance(0.2) ? 0.9 : random.Chance(0.3) ? 0.5 : 0;
  for (uint32_t t = 0; t < options.tiers.size(); ++t) {
    for (TimeNs at = 0; random.Chance(flip_chance);) {
      at += RandomTime(random, 0, flip_chance > 0.5 ? kHorizon / 10 : kHorizon);
      world->SetTierInServiceAt(at, TierId{t}, false);
      at += RandomTime(random, 0, flip_chance > 0.5 ? kHorizon / 10 : kHorizon / 2);
      world->SetTierInServiceAt(at, TierId{t}, true);
    }
  }
  for (uint64_t n = random.Below(60); n > 0; --n) {
    world->WriteAt(RandomTime(random, 0, kHorizon), random.Between(1, 2 * kSegmentBytes),
                   RandomTime(random, 0, 200 * kMillisecond));
  }
  return world;
}

}  // namespace kvstream::sched
