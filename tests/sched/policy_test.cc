// The policies that ours is compared with do what they say, and serve when what they count on
// fails.
#include "server/sched/policy.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/sim_batches.h"
#include "tests/support/sim_world.h"

namespace kvstream::sched {
namespace {

constexpr ChunkShape kItemShape{4 * kMiB, kMiB};
constexpr TierId kFast{0};
constexpr TierId kSlow{1};

class PolicyTest : public testing::Test {
 protected:
  PolicyTest() {
    for (const double rate : {3e9, 1e9}) {
      SimTierOptions tier;
      tier.bytes_per_second = rate;
      options_.tiers.push_back(tier);
    }
    options_.router.lanes.resize(2, LaneOptions{8 * kMiB, 4 * kMiB});
    options_.router.hedge_after = kSecond;
    options_.pool_bytes = options_.reserved_bytes = 64 * kMiB;
  }

  static std::vector<Item> Chunks(uint64_t first, uint64_t count) {
    std::vector<Item> items;
    for (uint64_t c = 0; c < count; ++c)
      items.push_back(ItemOn(first + c, Tiers({0, 1}), kItemShape));
    return items;
  }

  // Runs the batch, expects all of it to be served, and keeps its reads.
  void Run(BatchSpec spec) {
    world_ = std::make_unique<SimWorld>(options_);
    world_->AdmitAt(0, std::move(spec));
    world_->Run();
    ASSERT_EQ(world_->violation(), "");
    for (const RequestModel& request : world_->batch(OperationId{1}).requests) {
      for (const ItemModel& item : request.items) EXPECT_EQ(item.code, absl::StatusCode::kOk);
    }
  }

  // How many segments of contents [first, first + count) a tier read.
  uint64_t ReadBy(TierId tier, uint64_t first, uint64_t count) const {
    uint64_t reads = 0;
    for (const auto& read : world_->reads()) {
      for (uint64_t c = first; c < first + count; ++c) {
        reads += read.command.tier == tier && read.command.content == ContentOf(c) ? 1 : 0;
      }
    }
    return reads;
  }

  SimOptions options_;
  std::unique_ptr<SimWorld> world_;
};

TEST_F(PolicyTest, SingleReadsFromItsTierAlone) {
  for (const TierId tier : {kFast, kSlow}) {
    options_.router.policy = {.policy = Policy::kSingle, .single = tier};
    Run(BatchOf(1, Chunks(1, 30)));
    EXPECT_EQ(ReadBy(tier, 1, 30), 30u * kItemShape.segments());
    EXPECT_EQ(world_->reads().size(), 30u * kItemShape.segments());
  }
}

TEST_F(PolicyTest, SingleReadsElsewhereWhatItsTierCannotServe) {
  options_.router.policy = {.policy = Policy::kSingle, .single = kSlow};
  std::vector<Item> items = Chunks(1, 10);
  for (uint64_t c = 100; c < 105; ++c) items.push_back(ItemOn(c, Tiers({0}), kItemShape));
  Run(BatchOf(1, items));
  EXPECT_EQ(ReadBy(kFast, 100, 5), 5u * kItemShape.segments());

  options_.tiers[1].dies_at = 20 * kMillisecond;
  Run(BatchOf(1, Chunks(1, 30)));
  EXPECT_GT(ReadBy(kSlow, 1, 30), 0u);
  EXPECT_GT(ReadBy(kFast, 1, 30), 0u);
}

TEST_F(PolicyTest, FixedGivesItsShareOfTheChunksToTheFirstTier) {
  for (const uint32_t percent : {0u, 1u, 50u, 73u, 100u}) {
    options_.router.policy = {.policy = Policy::kFixed, .fixed_percent = percent};
    Run(BatchOf(1, Chunks(1, 100)));
    EXPECT_EQ(ReadBy(kFast, 1, 100), percent * kItemShape.segments());
    EXPECT_EQ(ReadBy(kSlow, 1, 100), (100 - percent) * kItemShape.segments());
  }
}

TEST_F(PolicyTest, FixedGivesTheOtherTiersEqualPartsOfTheRest) {
  options_.tiers.push_back(options_.tiers[1]);
  options_.router.lanes.push_back(options_.router.lanes[1]);
  options_.router.policy = {.policy = Policy::kFixed, .fixed_percent = 40};
  std::vector<Item> items;
  for (uint64_t c = 1; c <= 100; ++c) items.push_back(ItemOn(c, Tiers({0, 1, 2}), kItemShape));
  Run(BatchOf(1, std::move(items)));
  for (const TierId tier : {TierId{1}, TierId{2}}) {
    EXPECT_EQ(ReadBy(tier, 1, 100), 30u * kItemShape.segments());
  }
}

TEST_F(PolicyTest, FixedServesWhileATierIsOut) {
  options_.router.policy = {.policy = Policy::kFixed, .fixed_percent = 50};
  world_ = std::make_unique<SimWorld>(options_);
  world_->AdmitAt(0, BatchOf(1, Chunks(1, 100)));
  world_->SetTierInServiceAt(20 * kMillisecond, kSlow, false);
  world_->SetTierInServiceAt(40 * kMillisecond, kSlow, true);
  world_->Run();
  ASSERT_EQ(world_->violation(), "");
  // Back, it reads on what was meant for it, but for what the other read meanwhile.
  EXPECT_LT(ReadBy(kFast, 1, 100), 70u * kItemShape.segments());
  for (const ItemModel& item : world_->batch(OperationId{1}).requests[0].items) {
    EXPECT_EQ(item.code, absl::StatusCode::kOk);
  }
}

TEST_F(PolicyTest, ARequestAtATimeBeginsWhenTheOneBeforeHasEnded) {
  for (const bool joint : {false, true}) {
    options_.router.policy = {.policy = Policy::kRequestAtATime};
    BatchSpec spec = BatchOf(1, Chunks(1, 10));
    spec.joint = joint;
    for (uint64_t r = 1; r < 5; ++r) spec.requests.push_back(Chunks(1 + 100 * r, 10));
    Run(spec);
    const BatchModel& batch = world_->batch(OperationId{1});
    for (const auto& read : world_->reads()) {
      for (uint64_t r = 1; r < 5; ++r) {
        for (uint64_t c = 0; c < 10; ++c) {
          if (read.command.content != ContentOf(1 + 100 * r + c)) continue;
          EXPECT_GE(read.at, batch.requests[r - 1].done_at);
        }
      }
    }
  }
}

TEST_F(PolicyTest, FixedAndSingleServeWhenATierHangs) {
  options_.tiers[1].changes = {{20 * kMillisecond, 0}};
  options_.router.hedge_after = 20 * kMillisecond;
  options_.router.lanes.assign(2, LaneOptions{32 * kMiB, 16 * kMiB, 5 * kMillisecond});
  for (const Policy policy : {Policy::kFixed, Policy::kSingle}) {
    options_.router.policy = {.policy = policy, .single = kSlow};
    BatchSpec spec = BatchOf(1, Chunks(1, 1000));
    spec.deadline = 10 * kSecond;
    Run(std::move(spec));
    ASSERT_FALSE(world_->tier_changes().empty());
    EXPECT_LT(world_->batch(OperationId{1}).done_at, 3 * kSecond);
  }
}

TEST_F(PolicyTest, FixedSplitsWhatSeveralRanksWantOnce) {
  options_.router.policy = {.policy = Policy::kFixed, .fixed_percent = 75};
  world_ = std::make_unique<SimWorld>(options_);
  for (uint64_t rank = 0; rank < 3; ++rank) {
    BatchSpec spec = BatchOf(1 + rank, Chunks(1, 99));
    spec.step_key = 7;
    spec.ranks = 3;
    world_->AdmitAt(0, std::move(spec));
  }
  world_->Run();
  ASSERT_EQ(world_->violation(), "");
  EXPECT_EQ(ReadBy(kFast, 1, 99), 74u * kItemShape.segments());
  EXPECT_EQ(ReadBy(kSlow, 1, 99), 25u * kItemShape.segments());
}

TEST_F(PolicyTest, PublishedTakesWholeChunksSoManyAtATime) {
  options_.router.lanes.assign(2, LaneOptions{12 * kMiB, 4 * kMiB});
  options_.router.policy = {.policy = Policy::kPublished, .chunks_at_a_time = 3};
  Run(BatchOf(1, Chunks(1, 60)));
  for (const TierId tier : {kFast, kSlow}) {
    // At each moment at which a tier begins to read, it begins three chunks, but for the last ones.
    std::map<TimeNs, uint64_t> rounds;
    for (const auto& read : world_->reads()) {
      if (read.command.tier == tier) rounds[read.at] += 1;
    }
    rounds.erase(std::prev(rounds.end()));
    EXPECT_GT(rounds.size(), 1u);
    for (const auto& [at, segments] : rounds) EXPECT_EQ(segments, 3u * kItemShape.segments()) << at;
  }
  EXPECT_EQ(world_->reads().size(), 60u * kItemShape.segments());
}

TEST_F(PolicyTest, WhatIsMeantForAHungTierIsReadElsewhereThoughOthersWaitForThatTier) {
  // So much that only it holds is wanted of it that its quarantine never fills.
  options_.tiers[1].changes = {{20 * kMillisecond, 0}};
  options_.router.hedge_after = 20 * kMillisecond;
  options_.router.lanes.assign(2, LaneOptions{32 * kMiB, 16 * kMiB});
  for (const Policy policy : {Policy::kFixed, Policy::kSingle}) {
    options_.router.policy = {.policy = policy, .single = kSlow};
    std::vector<Item> exclusive;
    for (uint64_t c = 2000; c < 2030; ++c) exclusive.push_back(ItemOn(c, Tiers({1}), kItemShape));
    BatchSpec lost = BatchOf(2, std::move(exclusive));
    lost.deadline = 9 * kSecond;
    BatchSpec spec = BatchOf(1, Chunks(1, 300));
    spec.deadline = 10 * kSecond;
    world_ = std::make_unique<SimWorld>(options_);
    world_->AdmitAt(0, std::move(lost));
    world_->AdmitAt(0, std::move(spec));
    world_->Run();
    ASSERT_EQ(world_->violation(), "");
    EXPECT_LT(world_->batch(OperationId{1}).done_at, 3 * kSecond);
    for (const ItemModel& item : world_->batch(OperationId{1}).requests[0].items) {
      EXPECT_EQ(item.code, absl::StatusCode::kOk);
    }
  }
}

TEST_F(PolicyTest, PublishedWaitsForWholeRoundsHoweverLongTheyTake) {
  for (SimTierOptions& tier : options_.tiers) tier.bytes_per_second /= 100;
  options_.router.hedge_after = 100 * kMillisecond;
  options_.router.lanes.assign(2, LaneOptions{12 * kMiB, 4 * kMiB});
  options_.router.policy = {.policy = Policy::kPublished, .chunks_at_a_time = 3};
  Run(BatchOf(1, Chunks(1, 60)));
  std::map<TimeNs, uint64_t> rounds;
  for (const auto& read : world_->reads()) {
    if (read.command.tier == kSlow) rounds[read.at] += 1;
  }
  rounds.erase(std::prev(rounds.end()));  // What is left.
  EXPECT_GT(rounds.size(), 3u);
  for (const auto& [at, segments] : rounds) EXPECT_EQ(segments, 3u * kItemShape.segments()) << at;
}

}  // namespace
}  // namespace kvstream::sched
