#include "server/sched/tier_lane.h"

#include "gtest/gtest.h"

namespace kvstream::sched {
namespace {

constexpr TimeNs kStart = 1000 * kSecond;

TierLane Lane(uint64_t window, uint64_t quarantine) {
  return TierLane(TierId{0}, LaneOptions{window, quarantine});
}

TEST(TierLaneTest, WindowIsNeverExceededByASecondRead) {
  TierLane lane = Lane(8 * kMiB, kMiB);
  lane.Began(5 * kMiB, kStart);
  EXPECT_TRUE(lane.HasRoom(3 * kMiB));
  EXPECT_FALSE(lane.HasRoom(3 * kMiB + 1));
}

TEST(TierLaneTest, OneSegmentPassesASmallerWindow) {
  TierLane lane = Lane(kMiB, kMiB);
  EXPECT_TRUE(lane.HasRoom(4 * kMiB));
  lane.Began(4 * kMiB, kStart);
  EXPECT_FALSE(lane.HasRoom(1));
  lane.Ended(4 * kMiB, false, kStart + 1);
  EXPECT_TRUE(lane.HasRoom(4 * kMiB));
}

TEST(TierLaneTest, RateIsUnknownUntilSomethingEnded) {
  TierLane lane = Lane(8 * kMiB, kMiB);
  EXPECT_EQ(lane.rate(), 0);
  lane.Began(1000, kStart);
  EXPECT_EQ(lane.rate(), 0);
  lane.Ended(1000, true, kStart + kMillisecond);
  EXPECT_DOUBLE_EQ(lane.rate(), 1e6);
}

TEST(TierLaneTest, FailedReadsAreNoBandwidth) {
  TierLane lane = Lane(8 * kMiB, kMiB);
  lane.Began(1000, kStart);
  lane.Ended(1000, false, kStart + kSecond);
  EXPECT_EQ(lane.rate(), 0);
}

TEST(TierLaneTest, IdleTimeDoesNotSlowTheRate) {
  TierLane lane = Lane(8 * kMiB, kMiB);
  TimeNs now = kStart;
  for (int i = 0; i < 100; ++i) {  // Busy a hundredth of the time, and never long.
    lane.Began(1000, now);
    lane.Ended(1000, true, now + kMillisecond);
    now += 100 * kMillisecond;
  }
  EXPECT_NEAR(lane.rate(), 1e6, 1);
}

TEST(TierLaneTest, RateFollowsATierThatIsNeverBusyForLong) {
  TierLane lane = Lane(8 * kMiB, kMiB);
  TimeNs now = kStart;
  for (int i = 0; i < 1000; ++i) {
    lane.Began(1000, now);
    now += i == 0 ? kMillisecond : 10 * kMillisecond;  // It has become ten times as slow.
    lane.Ended(1000, true, now);
    now += kSecond;
  }
  EXPECT_NEAR(lane.rate(), 1e5, 1e3);
}

TEST(TierLaneTest, RateFollowsABusyTier) {
  TierLane lane = Lane(8 * kMiB, kMiB);
  TimeNs now = kStart;
  lane.Began(1000, now);
  for (int i = 0; i < 3000; ++i) {  // One read always in flight.
    now += i < 1000 ? kMillisecond : 2 * kMillisecond;
    lane.Began(1000, now);
    lane.Ended(1000, true, now);
    if (i == 999) {
      EXPECT_NEAR(lane.rate(), 1e6, 1e4);
    }
  }
  EXPECT_NEAR(lane.rate(), 5e5, 1e4);
}

// With this much in flight that nobody waits for.
TierLane Orphaned(uint64_t bytes) {
  TierLane lane = Lane(8 * kMiB, 4 * kMiB);
  lane.Began(bytes, kStart);
  lane.Quarantine(bytes);
  return lane;
}

TEST(TierLaneTest, FullQuarantineOfALateTierTakesItOut) {
  TierLane lane = Orphaned(4 * kMiB);
  EXPECT_FALSE(lane.UpdateChoked(true)) << "full, not over";
  lane.Began(4096, kStart);
  lane.Quarantine(4096);
  EXPECT_TRUE(lane.UpdateChoked(true));
  EXPECT_FALSE(lane.usable());
  EXPECT_FALSE(lane.UpdateChoked(true)) << "said once";
}

TEST(TierLaneTest, FullQuarantineOfATierInTimeIsNoFault) {
  TierLane lane = Orphaned(8 * kMiB);
  EXPECT_FALSE(lane.UpdateChoked(false));
  EXPECT_TRUE(lane.usable());
}

TEST(TierLaneTest, ChokedTierComesBackWithHalfTheLimitInFlight) {
  TierLane lane = Orphaned(6 * kMiB);
  ASSERT_TRUE(lane.UpdateChoked(true));
  lane.Unquarantine(3 * kMiB);
  lane.Ended(3 * kMiB, true, kStart + kSecond);
  EXPECT_FALSE(lane.UpdateChoked(false)) << "below the limit, above its half";
  lane.Unquarantine(kMiB);
  lane.Ended(kMiB, true, kStart + kSecond);
  EXPECT_TRUE(lane.UpdateChoked(false));
  EXPECT_TRUE(lane.usable());
}

TEST(TierLaneTest, NewWaiterForAStuckReadDoesNotBringItsTierBack) {
  TierLane lane = Orphaned(6 * kMiB);
  ASSERT_TRUE(lane.UpdateChoked(true));
  lane.Unquarantine(6 * kMiB);  // All of it is wanted again, and none of it has come.
  EXPECT_FALSE(lane.UpdateChoked(true));
  EXPECT_FALSE(lane.usable());
}

TEST(TierLaneTest, HeldOutTierStaysOutWhateverItsQuarantine) {
  TierLane lane = Lane(8 * kMiB, 4 * kMiB);
  lane.set_held_out(true);
  EXPECT_FALSE(lane.UpdateChoked(false));
  EXPECT_FALSE(lane.usable());
  lane.set_held_out(false);
  EXPECT_TRUE(lane.usable());
}

TEST(TierLaneTest, OneLostReadTakesNoTierOut) {
  TierLane lane = Lane(4 * kMiB, 64 * kMiB);
  lane.Began(4 * kMiB, kStart);
  lane.Quarantine(4 * kMiB);
  EXPECT_FALSE(lane.UpdateChoked(/*silent=*/true));
}

TEST(TierLaneTest, UntilTheRateIsKnownWhatHasEndedTells) {
  TierLane lane = Lane(8 * kMiB, kMiB);
  lane.Began(kMiB, kStart);
  lane.Began(kMiB, kStart);
  EXPECT_EQ(lane.RateSoFar(), 0);
  lane.Ended(kMiB, true, kStart + 10 * kMillisecond);
  EXPECT_EQ(lane.rate(), 0) << "the sample is too short";
  EXPECT_NEAR(lane.RateSoFar(), kMiB * 100, 1) << "and does not wear off while nothing ends";
}

}  // namespace
}  // namespace kvstream::sched
