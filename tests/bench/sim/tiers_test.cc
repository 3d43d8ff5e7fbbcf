// The simulator's storage side: bandwidths, bounds, devices, caches.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "bench/sim/bandwidth.h"
#include "bench/sim/chunk_cache.h"
#include "bench/sim/device.h"
#include "bench/sim/gpu_model.h"
#include "bench/sim/replication.h"

namespace kvstream::sim {
namespace {

using Kind = BandwidthOptions::Kind;

Bandwidth Constant(double bytes_per_second) {
  return Bandwidth({.bytes_per_second = bytes_per_second});
}

TEST(BoundTest, IsTheBytesOverTheSumOfConstantRates) {
  Bandwidth fast = Constant(3e9);
  Bandwidth slow = Constant(1e9);
  Bandwidth* const tiers[] = {&fast, &slow};
  EXPECT_DOUBLE_EQ(BoundSeconds(tiers, 0, 12e9), 3);
  EXPECT_DOUBLE_EQ(BoundSeconds(tiers, 7 * kSecond, 12e9), 3);
  Bandwidth slower = Constant(2e9);
  Bandwidth* const others[] = {&slower, &slow};
  EXPECT_DOUBLE_EQ(BoundSeconds(others, 0, 12e9), 4);
}

TEST(BoundTest, FollowsRatesThatChange) {
  Bandwidth fast = Constant(3e9);
  Bandwidth slow({.kind = Kind::kPeriodic, .bytes_per_second = 1e9, .low = 0.4, .period = kSecond});
  Bandwidth* const tiers[] = {&fast, &slow};
  // Over whole periods the slow tier gives 0.7 of itself.
  EXPECT_NEAR(BoundSeconds(tiers, 0, 370e9), 100, 0.5);
  const TimeNs change = slow.NextChange(0);
  const double until = static_cast<double>(change) / 1e9;
  const double moved = (3e9 + slow.At(0)) * until;
  EXPECT_NEAR(BoundSeconds(tiers, 0, moved), until, 1e-9);
  EXPECT_NEAR(BoundSeconds(tiers, 0, moved + (3e9 + slow.At(change)) * 0.01), until + 0.01, 1e-9);
}

TEST(BandwidthTest, TransfersTakeTheIntegralOfTheRate) {
  for (const Kind kind : {Kind::kPeriodic, Kind::kBursty, Kind::kDrifting}) {
    Bandwidth rate({.kind = kind,
                    .bytes_per_second = 1e9,
                    .low = 0.3,
                    .high = 0.6,
                    .period = 50 * kMillisecond,
                    .seed = 5});
    double moved = 0;
    TimeNs at = 10 * kMillisecond;
    for (int changes = 0; changes < 100; ++changes) {
      const TimeNs next = rate.NextChange(at);
      ASSERT_GT(next, at);
      moved += rate.At(at) * static_cast<double>(next - at) / 1e9;
      EXPECT_GE(rate.At(at), 0.3e9 - 1);
      EXPECT_LE(rate.At(at), 1e9);
      at = next;
    }
    EXPECT_NEAR(static_cast<double>(rate.EndOf(10 * kMillisecond, moved)), static_cast<double>(at),
                100);
  }
}

TEST(BandwidthTest, TheSameSeedMakesTheSameRatesInWhateverOrderTheyAreAsked) {
  const BandwidthOptions options{
      .kind = Kind::kBursty, .low = 0.1, .high = 0.6, .period = kSecond, .seed = 9};
  Bandwidth one(options);
  Bandwidth other(options);
  other.At(1000 * kSecond);
  for (TimeNs at = 0; at < 1000 * kSecond; at += 333 * kMillisecond) {
    ASSERT_EQ(one.At(at), other.At(at));
  }
}

TEST(DeviceTest, ReadsAndWritesShareItsTime) {
  Device device({.read = {.bytes_per_second = 2e9}, .write_ratio = 0.5, .latency = 0});
  EXPECT_EQ(device.Read(2'000'000'000, 0), kSecond);
  EXPECT_EQ(device.Write(500'000'000, 0), kSecond + kSecond / 2);
  EXPECT_EQ(device.Read(2'000'000'000, kSecond), 2 * kSecond + kSecond / 2);
  EXPECT_EQ(device.Read(2'000'000'000, 10 * kSecond), 11 * kSecond);
}

TEST(DeviceTest, LatenciesHaveTheirMedianAndTail) {
  Device device({.read = {.bytes_per_second = 1e12},
                 .latency = 20 * kMillisecond,
                 .latency_p99 = 600 * kMillisecond});
  std::vector<TimeNs> took;
  for (int i = 0; i < 20000; ++i) took.push_back(device.Read(1, i * kSecond) - i * kSecond);
  std::sort(took.begin(), took.end());
  EXPECT_NEAR(static_cast<double>(took[10000]), 20e6, 2e6);
  EXPECT_NEAR(static_cast<double>(took[19800]), 600e6, 60e6);
}

TEST(ChunkCacheTest, TheLeastRecentlyUsedGoesFirst) {
  ChunkCache cache(2);
  cache.Use(1);
  cache.Use(2);
  cache.Use(1);
  cache.Use(3);
  EXPECT_TRUE(cache.Has(1));
  EXPECT_FALSE(cache.Has(2));
  EXPECT_TRUE(cache.Has(3));
  ChunkCache none(0);
  none.Use(1);
  EXPECT_FALSE(none.Has(1));
}

TEST(GpuModelTest, BytesOfATokenFollowFromTheShape) {
  const GpuModel model(*FindModel("14b"), *FindGpu("a100-40"), 1);
  EXPECT_EQ(model.kv_bytes_per_token(), 2u * 2 * 48 * 8 * 128);
  EXPECT_FALSE(FindModel("15b").has_value());
}

TEST(GpuModelTest, PrefillGrowsFasterThanItsTokensAndDecodeIsBoundByMemory) {
  const GpuModel model(*FindModel("70b"), *FindGpu("h100"), 4);
  EXPECT_GT(model.PrefillSeconds(20000, 0), 2 * model.PrefillSeconds(10000, 0) - 0.005);
  EXPECT_GT(model.PrefillSeconds(1000, 50000), model.PrefillSeconds(1000, 0));
  EXPECT_EQ(model.PrefillSeconds(0, 50000), 0);
  const GpuModel twice(*FindModel("70b"), *FindGpu("h100"), 8);
  EXPECT_NEAR(twice.PrefillSeconds(20000, 0) / model.PrefillSeconds(20000, 0), 0.5, 0.01);
  // Weights are read once a token, however many requests share it.
  EXPECT_LT(model.DecodeSeconds(16, 0), 1.01 * model.DecodeSeconds(1, 0));
  EXPECT_GT(model.DecodeSeconds(16, 1'000'000), 2 * model.DecodeSeconds(16, 0));
}

TEST(ReplicationTest, TheShareFollowsWhatIsRead) {
  Replication adaptive({.copies = Copies::kAdaptive});
  EXPECT_NEAR(adaptive.Share(0.25), 0.275, 1e-9) << "at first it hopes";
  for (int i = 0; i < 1000; ++i) adaptive.NoteStored(1'000'000'000);
  EXPECT_LT(adaptive.Share(0.25), 0.01) << "nothing is read";
  for (int i = 0; i < 1000; ++i) {
    adaptive.NoteStored(1'000'000'000);
    adaptive.NoteRead(250'000'000);
  }
  EXPECT_NEAR(adaptive.Share(0.25), 0.1375, 0.01);
  for (int i = 0; i < 1000; ++i) adaptive.NoteRead(1'000'000'000);
  EXPECT_NEAR(adaptive.Share(0.25), 0.275, 1e-9);
  EXPECT_EQ(adaptive.Share(1), 1);
  EXPECT_EQ(Replication({.copies = Copies::kAll}).Share(0.25), 1);
  EXPECT_EQ(Replication({.copies = Copies::kFraction, .fraction = 0.4}).Share(0.25), 0.4);
}

}  // namespace
}  // namespace kvstream::sim
