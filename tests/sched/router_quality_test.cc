// How well the router routes, in virtual time: how near to the tiers' sum, in which order, and what
// slow, hung and dead tiers cost.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sched/two_tiers.h"

namespace kvstream::sched {
namespace {

TEST(RouterQualityTest, ThreeToOneTiersFinishNearTheirSum) {
  SimWorld world(WorldOf({Tier(kFastRate), Tier(kSlowRate)}));
  world.AdmitAt(0, Chunks(1, 200, Tiers({0, 1})));
  const double bound = Bytes(200) / (kFastRate + kSlowRate);
  const double took = SecondsFor(world, 1);
  RecordProperty("percent_above_bound", std::to_string((took / bound - 1) * 100));
  EXPECT_LE(took, 1.01 * bound);
}

TEST(RouterQualityTest, OneToFourTiersFinishNearTheirSum) {
  double sum = 0;
  TierSet all;
  std::vector<SimTierOptions> tiers;
  for (const double rate : {2e9, 1e9, 3e9, 0.7e9}) {  // Not in config order: rates decide.
    all.Add(TierId{static_cast<uint32_t>(tiers.size())});
    tiers.push_back(Tier(rate));
    sum += rate;
    SimWorld world(WorldOf(tiers));
    world.AdmitAt(0, Chunks(1, 150, all));
    EXPECT_LE(SecondsFor(world, 1), 1.02 * Bytes(150) / sum) << tiers.size() << " tiers";
  }
}

TEST(RouterQualityTest, NothingNarrowsOrHedgesWhereThatIsOff) {
  SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
  options.router.policy.narrowing = options.router.policy.hedging = false;
  SimWorld world(options);
  world.AdmitAt(0, Chunks(1, 200, Tiers({0, 1})));
  const double took = SecondsFor(world, 1);
  // The slow tier's last window, while the fast one is idle.
  const double bound = Bytes(200) / (kFastRate + kSlowRate);
  EXPECT_GT(took, bound + 0.4 * 32.0 * kMiB / kSlowRate);
  EXPECT_EQ(world.router().hedges(TierId{0}) + world.router().hedges(TierId{1}), 0u);
}

TEST(RouterQualityTest, IdleTierReadsAgainWhatAnotherWouldHaveLater) {
  SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
  options.router.policy.narrowing = false;
  SimWorld world(options);
  world.AdmitAt(0, Chunks(1, 200, Tiers({0, 1})));
  EXPECT_LE(SecondsFor(world, 1), 1.01 * Bytes(200) / (kFastRate + kSlowRate));
  EXPECT_GT(world.router().hedges(TierId{0}), 0u);
  EXPECT_LE(world.router().hedges(TierId{0}), 8u) << "no more than the slow tier's window";
}

TEST(RouterQualityTest, TiersWithStragglersFinishNearTheirSum) {
  SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
  options.tiers[1].latency = 20 * kMillisecond;
  options.tiers[1].tail_chance = 0.01;
  options.tiers[1].tail = 600 * kMillisecond;
  options.router.hedge_after = 50 * kMillisecond;
  options.router.lanes.assign(2, LaneOptions{64 * kMiB, 64 * kMiB});
  SimWorld world(options);
  world.AdmitAt(0, Chunks(1, 400, Tiers({0, 1})));
  const double bound = Bytes(400) / (kFastRate + kSlowRate);
  EXPECT_LE(SecondsFor(world, 1), 1.10 * bound + Bytes(1) / kSlowRate);
}

TEST(RouterQualityTest, RateThatFallsInMidBatchIsFollowed) {
  SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
  options.tiers[0].changes = {{200 * kMillisecond, 0.3e9}};  // The fast tier becomes the slow one.
  SimWorld world(options);
  world.AdmitAt(0, Chunks(1, 100, Tiers({0, 1})));
  const double bound = 0.2 + (Bytes(100) - 0.2 * (kFastRate + kSlowRate)) / 1.3e9;
  EXPECT_LE(SecondsFor(world, 1), 1.10 * bound + Bytes(1) / 0.3e9);
}

TEST(RouterQualityTest, DeadTierCostsItsBandwidthAlone) {
  for (const TimeNs dies_at : {TimeNs{0}, 100 * kMillisecond}) {
    SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
    options.tiers[1].dies_at = dies_at;
    SimWorld world(options);
    world.AdmitAt(0, Chunks(1, 100, Tiers({0, 1})));
    EXPECT_LE(SecondsFor(world, 1), 1.10 * Bytes(100) / kFastRate) << dies_at;
  }
}

TEST(RouterQualityTest, HungTierCostsItsBandwidthAndTheTimeToNotice) {
  for (const TimeNs hangs_at : {TimeNs{0}, 100 * kMillisecond}) {
    SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
    options.tiers[1].changes = {{hangs_at, 0}};
    SimWorld world(options);
    world.AdmitAt(0, Chunks(1, 100, Tiers({0, 1})));
    const double hedge = static_cast<double>(options.router.hedge_after) / 1e9;
    EXPECT_LE(SecondsFor(world, 1), 1.10 * Bytes(100) / kFastRate + hedge) << hangs_at;
    EXPECT_GT(world.router().hedges(TierId{0}), 0u);
  }
}

TEST(RouterQualityTest, HungTiersLastSegmentsAreReadElsewhereAfterHedgeAfter) {
  SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
  options.tiers[1].changes = {{0, 0}};
  SimWorld world(options);
  world.AdmitAt(0, Chunks(1, 4, Tiers({0, 1})));  // Half of it in the hung tier's window.
  const double took = SecondsFor(world, 1);
  const double hedge = static_cast<double>(options.router.hedge_after) / 1e9;
  EXPECT_GE(took, hedge);
  EXPECT_LE(took, hedge + Bytes(4) / kFastRate);
  EXPECT_EQ(world.router().hedges(TierId{0}), 8u);
}

TEST(RouterQualityTest, HungTierIsTakenOutWhenItsWindowHasShrunk) {
  SimOptions options = WorldOf({Tier(kFastRate), Tier(0.1e9)});
  options.router.lanes.assign(2, LaneOptions{32 * kMiB, 16 * kMiB, 100 * kMillisecond});
  options.tiers[1].changes = {{20 * kSecond, 0}};
  options.deep_checks = false;
  SimWorld world(options);
  world.AdmitAt(0, Chunks(1, 4000, Tiers({0, 1})));
  SecondsFor(world, 1);
  ASSERT_FALSE(world.tier_changes().empty());
  EXPECT_LT(world.tier_changes()[0].at, 22 * kSecond);
}

TEST(RouterQualityTest, ChokedTierIsTakenOutAndComesBack) {
  SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
  options.tiers[1].changes = {{50 * kMillisecond, 0}, {5 * kSecond, kSlowRate}};
  SimWorld world(options);
  world.AdmitAt(0, Chunks(1, 100, Tiers({0, 1})));
  world.AdmitAt(2 * kSecond, Chunks(2, 1, Tiers({1}), 1000));
  world.AdmitAt(6 * kSecond, Chunks(3, 100, Tiers({0, 1})));
  SecondsFor(world, 3);
  ExpectAllOk(world, 1);
  ASSERT_EQ(world.tier_changes().size(), 2u);
  EXPECT_TRUE(world.tier_changes()[0].out);
  EXPECT_LT(world.tier_changes()[0].at, 2 * kSecond);
  EXPECT_FALSE(world.tier_changes()[1].out);
  EXPECT_GE(world.tier_changes()[1].at, 5 * kSecond);
  const BatchModel& exclusive = world.batch(OperationId{2});
  EXPECT_EQ(exclusive.requests[0].items[0].code, absl::StatusCode::kUnavailable);
  EXPECT_LT(exclusive.done_at, 2 * kSecond + kMillisecond) << "it does not wait for what is out";
  EXPECT_TRUE(std::any_of(world.reads().begin(), world.reads().end(), [](const auto& read) {
    return read.at > 6 * kSecond && read.command.tier == TierId{1};
  }));
}

TEST(RouterQualityTest, TierWithStragglersIsNotTakenOut) {
  SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
  options.tiers[1].lognormal_latency = 20 * kMillisecond;
  options.tiers[1].lognormal_p99 = 30;
  options.router.lanes.assign(2, LaneOptions{64 * kMiB, 4 * kMiB});
  options.router.hedge_after = 20 * kMillisecond;
  SimWorld world(options);
  for (uint64_t n = 0; n < 20; ++n) {
    world.AdmitAt(static_cast<TimeNs>(n) * 400 * kMillisecond,
                  Chunks(1 + n, 100, Tiers({0, 1}), 1 + 1000 * n));
  }
  SecondsFor(world, 20);
  EXPECT_GT(world.router().hedges(TierId{0}), 10u);
  EXPECT_TRUE(world.tier_changes().empty());
}

// A metadata server that is overloaded: reads flow well once the file is open.
TEST(RouterQualityTest, ATierThatTakesSecondsForEachOpenIsUsedForWhatOnlyItHolds) {
  constexpr double kOpen = 6;
  SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
  options.tiers[1].latency = static_cast<TimeNs>(kOpen) * kSecond;
  const double hedge = static_cast<double>(options.router.hedge_after) / 1e9;
  SimWorld world(options);
  world.AdmitAt(0, Chunks(1, 100, Tiers({0, 1})));
  world.AdmitAt(20 * kSecond, Chunks(2, 2, Tiers({1}), 1000));
  world.AdmitAt(40 * kSecond, Chunks(3, 100, Tiers({0, 1}), 2000));
  BatchSpec mixed = Chunks(4, 100, Tiers({0, 1}), 3000);
  for (uint64_t c = 0; c < 2; ++c)
    mixed.requests[0].push_back(ItemOn(4000 + c, Tiers({1}), kChunk));
  world.AdmitAt(60 * kSecond, std::move(mixed));
  // What both hold costs no more than a tier that hangs would.
  EXPECT_LE(SecondsFor(world, 1), 1.10 * Bytes(100) / kFastRate + hedge);
  const auto seconds = [&world](uint64_t id) {
    ExpectAllOk(world, id);
    const BatchModel& batch = world.batch(OperationId{id});
    return static_cast<double>(batch.done_at - batch.admitted_at) / 1e9;
  };
  EXPECT_LE(seconds(3), 1.10 * Bytes(100) / kFastRate + hedge);
  // What it alone holds comes, an open later.
  for (const uint64_t id : {2, 4}) {
    EXPECT_GE(seconds(id), kOpen);
    EXPECT_LE(seconds(id), kOpen + 1) << id;
  }
}

// Where a tier's reads of contents in [first, first + chunks) lie in the list, in their order.
std::vector<uint64_t> PlacesReadBy(const SimWorld& world, uint32_t tier, uint64_t first,
                                   uint64_t chunks) {
  std::vector<uint64_t> places;
  for (const auto& read : world.reads()) {
    uint64_t chunk = 0;
    while (chunk < chunks && ContentOf(first + chunk) != read.command.content) chunk += 1;
    if (chunk == chunks || read.command.tier != TierId{tier}) continue;
    places.push_back(chunk * kChunk.segments() + read.command.segment);
  }
  return places;
}

TEST(RouterQualityTest, FastTierReadsAPrefixAndTheSlowOneTheRestFromTheBack) {
  SimWorld world(WorldOf({Tier(kFastRate), Tier(kSlowRate)}));
  world.AdmitAt(0, Chunks(1, 50, Tiers({0, 1})));
  SecondsFor(world, 1);
  const std::vector<uint64_t> front = PlacesReadBy(world, 0, 1, 50);
  const std::vector<uint64_t> back = PlacesReadBy(world, 1, 1, 50);
  EXPECT_EQ(front.size() + back.size(), 50u * kChunk.segments());
  EXPECT_TRUE(std::is_sorted(front.begin(), front.end()));
  EXPECT_TRUE(std::is_sorted(back.rbegin(), back.rend()));
  EXPECT_LT(front.back(), back.back());
  EXPECT_GT(front.size(), 2 * back.size());
}

TEST(RouterQualityTest, MeasuredRatesDecideWhoReadsFromTheFront) {
  SimWorld world(WorldOf({Tier(kSlowRate), Tier(kFastRate)}));  // Config order is wrong.
  world.AdmitAt(0, Chunks(1, 100, Tiers({0, 1})));
  world.AdmitAt(5 * kSecond, Chunks(2, 50, Tiers({0, 1}), 1000));
  SecondsFor(world, 2);
  const std::vector<uint64_t> front = PlacesReadBy(world, 1, 1000, 50);
  const std::vector<uint64_t> back = PlacesReadBy(world, 0, 1000, 50);
  EXPECT_EQ(front.front(), 0u);
  EXPECT_TRUE(std::is_sorted(front.begin(), front.end()));
  EXPECT_EQ(back.front(), 50u * kChunk.segments() - 1);
}

TEST(RouterQualityTest, SegmentsOfOneTierAloneAreReadFirst) {
  SimWorld world(WorldOf({Tier(kFastRate), Tier(kSlowRate)}));
  BatchSpec spec = Chunks(1, 60, Tiers({0, 1}));
  for (uint64_t c = 0; c < 20; ++c) {  // Last in order, and all of the slow tier's share.
    spec.requests[0].push_back(ItemOn(500 + c, Tiers({1}), kChunk));
  }
  world.AdmitAt(0, spec);
  const double took = SecondsFor(world, 1);
  EXPECT_LE(took, 1.10 * Bytes(80) / (kFastRate + kSlowRate) + Bytes(1) / kSlowRate);
  uint64_t shared = 0;
  uint64_t alone = 0;
  for (const auto& read : world.reads()) {
    if (read.command.tier != TierId{1}) continue;
    const bool exclusive =
        std::any_of(spec.requests[0].begin() + 60, spec.requests[0].end(),
                    [&](const Item& i) { return i.sources[0].content == read.command.content; });
    (exclusive ? alone : shared) += 1;
    if (exclusive) {
      EXPECT_EQ(shared, 0u) << "a shared segment went before one that has no choice";
    }
  }
  EXPECT_EQ(alone, 20u * kChunk.segments());
}

TEST(RouterQualityTest, ATierWithWorkButNoRoomReadsNothingAgain) {
  // Nine MiB: the last segment is small, and would fit where the next one does not.
  constexpr ChunkShape kUneven{9 * kMiB, kSegment};
  constexpr uint64_t kChunks = 300;
  SimWorld world(WorldOf({Tier(kFastRate), Tier(kSlowRate)}));
  std::vector<Item> items;
  for (uint64_t c = 1; c <= kChunks; ++c) items.push_back(ItemOn(c, Tiers({0, 1}), kUneven));
  world.AdmitAt(0, BatchOf(1, std::move(items)));
  SecondsFor(world, 1);
  EXPECT_LE(world.reads().size(), kChunks * kUneven.segments() + 8) << "but for the tail";
}

}  // namespace
}  // namespace kvstream::sched
