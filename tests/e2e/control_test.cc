// The operator's controls under load: tiers that come and go, and a drain.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "client/admin.h"
#include "tests/support/load.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

class ControlTest : public testing::TestWithParam<bool> {};

TEST_P(ControlTest, TiersThatComeAndGoUnderLoadLoseNothing) {
  TestDaemon daemon([](config::Options& o) {
    o.replicate_all = GetParam();
    o.pool_bytes = 256 * kMiB;
  });
  Admin admin(daemon.socket(), kPatience);
  Load load(daemon.socket());
  std::mt19937_64 random(20261129);
  const char* const tiers[] = {"nvme", "pfs"};
  for (int round = 0; round < 30; ++round) {
    const std::string tier = tiers[random() % 2];
    const bool both = round % 10 == 9;
    for (const char* name : tiers) {
      if (!both && name != tier) continue;
      ASSERT_EQ(admin.SetTierInService(name, false).value(), v1::TIER_STATE_OUT);
    }
    if (!both) {  // Operations go on meanwhile.
      const uint64_t stores = load.stores() + 2;
      const uint64_t hits = load.hits();
      daemon.WaitUntil([&] { return load.stores() > stores && load.hits() > hits; },
                       "work goes on");
    }
    for (const char* name : tiers) {
      ASSERT_EQ(admin.SetTierInService(name, true).value(), v1::TIER_STATE_OK);
    }
  }
  load.Stop();
  EXPECT_EQ(load.wrong(), 0u);
  EXPECT_EQ(daemon.stats().chunks_lost.Get(), 0u);
  EXPECT_GE(daemon.stats().tiers[0].times_out.Get() + daemon.stats().tiers[1].times_out.Get(), 30u);
  daemon.WaitWritten();
  Worker worker(daemon.socket(), Load::Shape());
  const auto committed = load.committed();
  ASSERT_GT(committed.size(), 30 * Load::kKeysPerStore);
  EXPECT_EQ(worker.Look(committed), committed.size());
  for (const uint64_t key : committed) {
    ASSERT_EQ(worker.Get({key}).leading_valid(), 1u) << key;
    ASSERT_TRUE(worker.Holds(key, 0)) << key;
  }
  RecordProperty("committed", static_cast<int>(committed.size()));
}

INSTANTIATE_TEST_SUITE_P(Copies, ControlTest, testing::Bool(), [](const auto& param) {
  return param.param ? "OnEveryTier" : "OnOneTier";
});

TEST(ControlDrainTest, ADrainUnderLoadLeavesAllThatWasStagedOnDisk) {
  TestDaemon daemon;
  Admin admin(daemon.socket(), kPatience);
  Load load(daemon.socket());
  daemon.WaitUntil([&] { return load.stores() > 10; }, "stores have begun");
  const auto reply = admin.Drain(kPatience);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->unwritten_bytes(), 0u);
  EXPECT_EQ(reply->running_operations(), 0u);
  load.Stop();
  EXPECT_EQ(load.wrong(), 0u);
  const uint64_t stored = daemon.stats().chunks_stored.Get();
  EXPECT_GE(stored, load.committed().size());
  for (size_t tier = 0; tier < 2; ++tier) {
    EXPECT_EQ(daemon.Files(tier).size() + daemon.stats().tiers[tier].writes_dropped.Get(), stored);
  }
}

}  // namespace
}  // namespace kvstream
