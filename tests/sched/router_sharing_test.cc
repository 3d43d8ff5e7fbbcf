// How the router shares tiers between requests, steps and ranks, in virtual time.
#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sched/two_tiers.h"

namespace kvstream::sched {
namespace {

TEST(RouterSharingTest, IndependentStepFinishesItsRequestsInOrder) {
  SimWorld world(WorldOf({Tier(kFastRate), Tier(kSlowRate)}));
  BatchSpec spec = Chunks(1, 20, Tiers({0, 1}));
  spec.joint = false;
  for (uint64_t r = 1; r < 6; ++r) {
    spec.requests.push_back(Chunks(1, 20, Tiers({0, 1}), 1 + 100 * r).requests[0]);
  }
  world.AdmitAt(0, spec);
  SecondsFor(world, 1);
  const BatchModel& batch = world.batch(OperationId{1});
  const double head = static_cast<double>(batch.requests[0].done_at) / 1e9;
  // The slow tier's window of it is what the head may wait for.
  EXPECT_LE(head, 1.10 * Bytes(20) / (kFastRate + kSlowRate) + 32.0 * kMiB / kSlowRate);
  for (size_t r = 1; r < 6; ++r) {
    EXPECT_LT(batch.requests[r - 1].done_at, batch.requests[r].done_at) << r;
  }
}

TEST(RouterSharingTest, TwoStepsShareTheTiersEqually) {
  SimWorld world(WorldOf({Tier(kFastRate), Tier(kSlowRate)}));
  world.AdmitAt(0, Chunks(1, 100, Tiers({0, 1})));
  world.AdmitAt(0, Chunks(2, 100, Tiers({0, 1}), 1000));
  const double second = SecondsFor(world, 2);
  ExpectAllOk(world, 1);
  const double first = static_cast<double>(world.batch(OperationId{1}).done_at) / 1e9;
  EXPECT_NEAR(first / second, 1.0, 0.05);
  EXPECT_LE(second, 1.10 * Bytes(200) / (kFastRate + kSlowRate));
}

TEST(RouterSharingTest, StepsOfLargeAndSmallSegmentsShareTheTiersEqually) {
  for (const bool small_first : {false, true}) {  // Small segments must not fill every gap.
    SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
    options.router.turn_bytes = kMiB;
    SimWorld world(options);
    world.AdmitAt(small_first ? kMillisecond : 0, Chunks(1, 200, Tiers({0, 1})));
    std::vector<Item> small;
    for (uint64_t c = 0; c < 3200; ++c) {
      small.push_back(ItemOn(10000 + c, Tiers({0, 1}), ChunkShape{kMiB, kMiB}));
    }
    world.AdmitAt(small_first ? 0 : kMillisecond, BatchOf(2, std::move(small)));
    const double second = SecondsFor(world, 2);
    const double first = static_cast<double>(world.batch(OperationId{1}).done_at) / 1e9;
    EXPECT_NEAR(first / second, 1.0, 0.03) << small_first;
  }
}

// A tier of long latency reads ahead in later requests, or for other steps, what it must not hold
// the first one up with.
TEST(RouterSharingTest, TierOfLongLatencyIsNotLeftIdleByManySmallLists) {
  constexpr uint64_t kLists = 100;
  for (const bool independent : {true, false}) {
    SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
    options.tiers[1].latency = 60 * kMillisecond;
    options.router.lanes.assign(2, LaneOptions{256 * kMiB, 64 * kMiB});
    options.pool_bytes = options.reserved_bytes = kGiB;
    options.deep_checks = false;
    SimWorld world(options);
    world.AdmitAt(0, Chunks(1, 100, Tiers({0, 1})));  // Rates become known.
    BatchSpec spec;
    for (uint64_t n = 0; n < kLists; ++n) {
      BatchSpec one = Chunks(2 + n, 2, Tiers({0, 1}), 1000 + 10 * n);
      if (!independent) world.AdmitAt(kSecond, std::move(one));
      if (independent) spec.requests.push_back(std::move(one.requests[0]));
    }
    if (independent) {
      spec.id = OperationId{2};
      world.AdmitAt(kSecond, std::move(spec));
    }
    SecondsFor(world, 1);
    TimeNs last = 0;
    for (uint64_t n = 0; n < (independent ? 1 : kLists); ++n) {
      last = std::max(last, world.batch(OperationId{2 + n}).done_at);
    }
    const double took = static_cast<double>(last - kSecond) / 1e9;
    const double bound = Bytes(2 * kLists) / (kFastRate + kSlowRate);
    EXPECT_LE(took, 1.06 * bound + 0.03) << (independent ? "independent" : "many steps");
  }
}

TEST(RouterSharingTest, AStepsTailIsReadAgainThoughOthersKeepTheTiersBusy) {
  SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
  options.tiers[1].lognormal_latency = 20 * kMillisecond;
  options.tiers[1].lognormal_p99 = 30;
  options.router.lanes.assign(2, LaneOptions{128 * kMiB, 128 * kMiB});
  options.pool_bytes = options.reserved_bytes = kGiB;
  options.deep_checks = false;
  SimWorld world(options);
  constexpr uint64_t kPairs = 20;
  for (uint64_t n = 0; n < kPairs; ++n) {
    const auto at = static_cast<TimeNs>(n) * 3 * kSecond;
    world.AdmitAt(at, Chunks(1 + 2 * n, 400, Tiers({0, 1}), 1 + 10000 * n));
    world.AdmitAt(at, Chunks(2 + 2 * n, 100, Tiers({0, 1}), 5001 + 10000 * n));
  }
  SecondsFor(world, 1);
  std::vector<double> seconds;
  for (uint64_t n = 0; n < kPairs; ++n) {
    const BatchModel& small = world.batch(OperationId{2 + 2 * n});
    seconds.push_back(static_cast<double>(small.done_at - small.admitted_at) / 1e9);
  }
  std::sort(seconds.begin(), seconds.end());
  const double share = 2 * Bytes(100) / (kFastRate + kSlowRate);
  EXPECT_LE(seconds[kPairs / 2], 1.15 * share);
  EXPECT_LE(seconds.back(), 1.25 * share);
}

TEST(RouterSharingTest, AHungTierHoldsNoStepUpThoughTheOtherIsAlwaysBusy) {
  SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
  options.tiers[1].changes = {{2 * kSecond, 0}};
  options.deep_checks = false;
  SimWorld world(options);
  constexpr uint64_t kSteps = 40;
  for (uint64_t n = 0; n < kSteps; ++n) {  // Three seconds' work for the fast tier every two.
    BatchSpec step = Chunks(1 + n, 107, Tiers({0, 1}), 1 + 1000 * n);
    step.deadline = static_cast<TimeNs>(n) * 400 * kMillisecond + 20 * kSecond;
    world.AdmitAt(static_cast<TimeNs>(n) * 400 * kMillisecond, std::move(step));
  }
  world.Run();
  EXPECT_EQ(world.violation(), "");
  for (uint64_t n = 0; n < kSteps; ++n) {
    ExpectAllOk(world, 1 + n);
    const BatchModel& step = world.batch(OperationId{1 + n});
    // Those that were under way when it hung are done before those that came three seconds later.
    if (n < 5) {
      EXPECT_LT(step.done_at, 6 * kSecond) << n;
    }
  }
}

TEST(RouterSharingTest, TierThatWasSlowOnceIsAskedAgain) {
  SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
  options.tiers[1].changes = {{0, 0.01e9}, {3 * kSecond, kSlowRate}};
  SimWorld world(options);
  for (uint64_t n = 0; n < 60; ++n) {  // More often than once a second, and each of them short.
    world.AdmitAt(static_cast<TimeNs>(n) * 200 * kMillisecond,
                  Chunks(1 + n, 20, Tiers({0, 1}), 1 + 1000 * n));
  }
  SecondsFor(world, 60);
  const double alone = Bytes(20) / kFastRate;
  const BatchModel& last = world.batch(OperationId{60});
  EXPECT_LT(static_cast<double>(last.done_at - last.admitted_at) / 1e9, 0.9 * alone);
}

TEST(RouterSharingTest, RanksThatShareTheirChunksAreNarrowedLikeOne) {
  SimWorld world(WorldOf({Tier(kFastRate), Tier(kSlowRate)}));
  for (uint64_t rank = 0; rank < 8; ++rank) {
    BatchSpec spec = Chunks(1 + rank, 200, Tiers({0, 1}));
    spec.step_key = 5;
    spec.ranks = 8;
    world.AdmitAt(0, std::move(spec));
  }
  EXPECT_LE(SecondsFor(world, 8), 1.01 * Bytes(200) / (kFastRate + kSlowRate));
}

// What is in flight before a newcomer is bounded by `ahead`: the window has shrunk to it.
TEST(RouterSharingTest, NewcomersWaitForAheadAndNoMore) {
  constexpr TimeNs kAhead = 20 * kMillisecond;
  SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
  options.router.lanes.assign(2, LaneOptions{256 * kMiB, 64 * kMiB, kAhead});
  options.pool_bytes = options.reserved_bytes = kGiB;
  options.deep_checks = false;
  SimWorld world(options);
  world.AdmitAt(0, Chunks(1, 4000, Tiers({0, 1})));  // 17 seconds of reading.
  const double alone = Bytes(4) / (kFastRate + kSlowRate);
  for (uint64_t n = 0; n < 100; ++n) {
    world.AdmitAt(5 * kSecond + static_cast<TimeNs>(n) * 97 * kMillisecond,
                  Chunks(2 + n, 4, Tiers({0, 1}), 100'000 + 10 * n));
  }
  SecondsFor(world, 1);
  std::vector<double> took;
  for (uint64_t n = 0; n < 100; ++n) {
    const BatchModel& batch = world.batch(OperationId{2 + n});
    took.push_back(static_cast<double>(batch.done_at - batch.admitted_at) / 1e9);
  }
  std::sort(took.begin(), took.end());
  // The window, wider by half while it looks whether more would help, and what of a segment of each
  // step is under way on the slow tier when the fast one has done its part.
  const double waits = 2 * static_cast<double>(kAhead) / 1e9 + 2.0 * kSegment / kSlowRate;
  EXPECT_LE(took[98], 2 * alone + waits);
}

TEST(RouterSharingTest, SmallStepDoesNotWaitForALargeOne) {
  SimWorld world(WorldOf({Tier(kFastRate), Tier(kSlowRate)}));
  world.AdmitAt(0, Chunks(1, 200, Tiers({0, 1})));
  world.AdmitAt(100 * kMillisecond, Chunks(2, 5, Tiers({0, 1}), 1000));
  // Twice its own time, after what is in flight before it.
  EXPECT_LE(SecondsFor(world, 2),
            2 * Bytes(5) / (kFastRate + kSlowRate) + 2 * 32.0 * kMiB / kSlowRate);
}

TEST(RouterSharingTest, RanksOfAJointStepShareTheReadsOfWhatTheyAllWant) {
  SimWorld world(WorldOf({Tier(kFastRate), Tier(kSlowRate)}));
  for (uint64_t rank = 0; rank < 4; ++rank) {
    BatchSpec spec = Chunks(1 + rank, 50, Tiers({0, 1}));
    spec.step_key = 5;
    spec.ranks = 4;
    spec.join_deadline = kSecond;
    world.AdmitAt(static_cast<TimeNs>(rank) * kMillisecond, spec);
  }
  SecondsFor(world, 4);
  for (uint64_t id = 1; id <= 3; ++id) ExpectAllOk(world, id);
  EXPECT_EQ(world.reads().size(), 50u * kChunk.segments());
}

TEST(RouterSharingTest, StepLargerThanThePoolRunsNearTheTiersSum) {
  SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
  options.pool_bytes = options.reserved_bytes = 96 * kMiB;
  SimWorld world(options);
  world.AdmitAt(0, Chunks(1, 150, Tiers({0, 1})));
  EXPECT_LE(SecondsFor(world, 1),
            1.10 * Bytes(150) / (kFastRate + kSlowRate) + Bytes(1) / kSlowRate);
}

TEST(RouterSharingTest, StepRunsInAPoolOfOneSegment) {
  SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
  options.pool_bytes = options.reserved_bytes = kSegment;
  SimWorld world(options);
  world.AdmitAt(0, Chunks(1, 5, Tiers({0, 1})));
  SecondsFor(world, 1);
}

TEST(RouterSharingTest, AHungTiersLargeSegmentsFindRoomBesideOthersSmallOnes) {
  SimOptions options = WorldOf({Tier(kFastRate), Tier(kSlowRate)});
  options.tiers[1].changes = {{0, 0}};
  options.router.hedge_after = 50 * kMillisecond;
  options.deep_checks = false;
  SimWorld world(options);
  constexpr ChunkShape kLarge{32 * kMiB, 16 * kMiB};
  constexpr ChunkShape kSmall{4 * kMiB, 256 * kKiB};
  BatchSpec large = BatchOf(1, {ItemOn(1, Tiers({0, 1}), kLarge)});
  large.deadline = 4 * kSecond;
  world.AdmitAt(0, std::move(large));
  std::vector<Item> items;  // Seven seconds' work for the fast tier, which nobody else can do.
  for (uint64_t c = 100; c < 5100; ++c) items.push_back(ItemOn(c, Tiers({0}), kSmall));
  world.AdmitAt(kMillisecond, BatchOf(2, std::move(items)));
  world.Run();
  EXPECT_EQ(world.violation(), "");
  ExpectAllOk(world, 1);
  EXPECT_LT(world.batch(OperationId{1}).done_at, kSecond);
}

}  // namespace
}  // namespace kvstream::sched
