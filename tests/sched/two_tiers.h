// Worlds of a fast and a slow tier, for tests of how well the router routes.
#pragma once

#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/sim_batches.h"
#include "tests/support/sim_world.h"

namespace kvstream::sched {

inline constexpr uint64_t kSegment = 4 * kMiB;
inline constexpr ChunkShape kChunk{4 * kSegment, kSegment};
inline constexpr double kFastRate = 3e9;
inline constexpr double kSlowRate = 1e9;

inline SimTierOptions Tier(double bytes_per_second) {
  SimTierOptions tier;
  tier.bytes_per_second = bytes_per_second;
  tier.latency = 200 * kMicrosecond;
  tier.jitter = 100 * kMicrosecond;
  return tier;
}

inline SimOptions WorldOf(std::vector<SimTierOptions> tiers) {
  SimOptions options;
  options.tiers = std::move(tiers);
  options.router.lanes.resize(options.tiers.size(), LaneOptions{32 * kMiB, 16 * kMiB});
  options.pool_bytes = options.reserved_bytes = 256 * kMiB;
  options.copy_bytes_per_second = 20e9;
  return options;
}

// A joint batch of `chunks` chunks that these tiers hold; contents numbered from `first`.
inline BatchSpec Chunks(uint64_t id, uint64_t chunks, TierSet tiers, uint64_t first = 1) {
  std::vector<Item> items;
  for (uint64_t c = 0; c < chunks; ++c) items.push_back(ItemOn(first + c, tiers, kChunk));
  return BatchOf(id, std::move(items));
}

inline void ExpectAllOk(const SimWorld& world, uint64_t id) {
  for (const RequestModel& request : world.batch(OperationId{id}).requests) {
    for (const ItemModel& item : request.items) EXPECT_EQ(item.code, absl::StatusCode::kOk);
  }
}

// Runs and returns how long the batch took, in seconds.
inline double SecondsFor(SimWorld& world, uint64_t id) {
  world.Run();
  EXPECT_EQ(world.violation(), "");
  ExpectAllOk(world, id);
  const BatchModel& batch = world.batch(OperationId{id});
  return static_cast<double>(batch.done_at - batch.admitted_at) / 1e9;
}

inline double Bytes(uint64_t chunks) { return static_cast<double>(chunks * kChunk.payload_bytes); }

}  // namespace kvstream::sched
