#include "server/engine/pace.h"

#include <gtest/gtest.h>

namespace kvstream::engine {
namespace {

TEST(PaceTest, BytesCostTheirTimeAtTheRate) {
  Pace pace(kMiB, 0);
  EXPECT_EQ(pace.Spend(kMiB, 0), kSecond);
  EXPECT_EQ(pace.Spend(kMiB / 2, kSecond), kSecond * 3 / 2);
  EXPECT_EQ(pace.Spend(0, kSecond * 3 / 2), kSecond * 3 / 2);
}

TEST(PaceTest, TheTimeThatReadingTakesCounts) {
  Pace pace(kMiB, 0);
  EXPECT_EQ(pace.Spend(kMiB / 4, kSecond / 4), kSecond / 4);
  EXPECT_EQ(pace.Spend(kMiB / 4, kSecond / 2), kSecond / 2);
}

TEST(PaceTest, APauseIsNotMadeUpFor) {
  Pace pace(kMiB, 0);
  (void)pace.Spend(kMiB, 0);
  // An hour later a second's worth may follow at once, and no more.
  const TimeNs hour = 3600 * kSecond;
  EXPECT_EQ(pace.Spend(kMiB, hour), hour);
  EXPECT_EQ(pace.Spend(kMiB, hour), hour + kSecond);
}

TEST(PaceTest, NoReaderIsFasterThanTheRateForLong) {
  constexpr uint64_t kRate = 10 * kMiB;
  Pace pace(kRate, 0);
  TimeNs now = 0;
  uint64_t bytes = 0;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t piece = (1 + static_cast<uint64_t>(i) * 7919 % 1024) * kKiB;
    bytes += piece;
    now = std::max(now + kMillisecond * (i % 3), pace.Spend(piece, now));
  }
  const double seconds = static_cast<double>(now) / kSecond;
  EXPECT_GE(seconds + 1, static_cast<double>(bytes) / kRate);
  EXPECT_LE(seconds, static_cast<double>(bytes) / kRate * 1.05);
}

TEST(PaceTest, LargestNumbersNeverOverflow) {
  Pace pace(1, kNever / 2);
  EXPECT_EQ(pace.Spend(UINT64_MAX, kNever / 2), kNever);
  EXPECT_EQ(pace.Spend(UINT64_MAX, kNever / 2), kNever);
}

}  // namespace
}  // namespace kvstream::engine
