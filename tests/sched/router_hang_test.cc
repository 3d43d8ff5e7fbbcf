// Single scenarios of reads that may never end.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/sched/router.h"
#include "tests/sched/router_harness.h"

namespace kvstream::sched {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RouterHangTest : public RouterTest {
 protected:
  // A batch of one item on the fast tier alone, with two seconds to go.
  void AdmitWithDeadline(uint64_t batch, uint64_t content) {
    BatchSpec spec = BatchOf(batch, {ItemOn(content, Tiers({0}), Shape(1))});
    spec.deadline = now_ + 2 * kSecond;
    Admit(std::move(spec));
  }
};

TEST_F(RouterHangTest, ALostReadOfTheOnlyReplicaDoesNotTakeLaterStepsWithIt) {
  AdmitWithDeadline(1, 1);
  Pass(2 * kSecond);
  EXPECT_THAT(Outcome(1), ElementsAre(kDeadlineExceeded));
  AdmitWithDeadline(2, 1);
  ASSERT_THAT(ReadsOf(kFast), SizeIs(2)) << "it waits for the read that was lost";
  EndReadAndCopy(ReadsOf(kFast)[1]);
  EXPECT_THAT(Outcome(2), ElementsAre(kOk));
}

TEST_F(RouterHangTest, WhoWaitsOnIsServedByAReadAnew) {
  AdmitWithDeadline(1, 1);
  Admit(BatchOf(2, {ItemOn(1, Tiers({0}), Shape(1))}));
  Pass(2 * kSecond);
  EXPECT_THAT(Outcome(1), ElementsAre(kDeadlineExceeded));
  ASSERT_THAT(ReadsOf(kFast), SizeIs(2));
  EndReadAndCopy(ReadsOf(kFast)[1]);
  EXPECT_THAT(Outcome(2), ElementsAre(kOk));
}

TEST_F(RouterHangTest, AnOverdueReadThatEndsAfterAllIsUsed) {
  AdmitWithDeadline(1, 1);
  Pass(2 * kSecond);
  AdmitWithDeadline(2, 1);
  ASSERT_THAT(ReadsOf(kFast), SizeIs(2));
  EndReadAndCopy(ReadsOf(kFast)[0]);
  EXPECT_THAT(Outcome(2), ElementsAre(kOk));
  EXPECT_EQ(router_->lane(kFast).quarantined(), kSegment) << "the second is nobody's now";
  EndRead(ReadsOf(kFast)[1]);
  EXPECT_EQ(slots_->used(), 0u);
}

TEST_F(RouterHangTest, AReplicaThatWasAskedTwiceInVainHasFailed) {
  AdmitWithDeadline(1, 1);
  Pass(2 * kSecond);
  AdmitWithDeadline(2, 1);
  EXPECT_THAT(All<ReplicaFailed>(), IsEmpty());
  Pass(2 * kSecond);
  ASSERT_THAT(All<ReplicaFailed>(), SizeIs(1));
  EXPECT_EQ(All<ReplicaFailed>()[0].code, kUnavailable);
  EXPECT_EQ(All<ReplicaFailed>()[0].tier, kFast);
  Forget();
  Admit(BatchOf(3, {ItemOn(2, Tiers({0}), Shape(1))}));
  EXPECT_THAT(ReadsOf(kFast), SizeIs(1)) << "other content is read as before";
  EndReadAndCopy(ReadsOf(kFast)[0]);
  EXPECT_THAT(Outcome(3), ElementsAre(kOk));
}

TEST_F(RouterHangTest, AReadThatIsGivenUpEarlyIsStillReliedOn) {
  AdmitWithDeadline(1, 1);
  Pass(kSecond - kMillisecond);
  Cancel(1);
  Admit(BatchOf(2, {ItemOn(1, Tiers({0}), Shape(1))}));
  ASSERT_THAT(ReadsOf(kFast), SizeIs(1));
  EndReadAndCopy(ReadsOf(kFast)[0]);
  EXPECT_THAT(Outcome(2), ElementsAre(kOk));
}

TEST_F(RouterHangTest, ALostReadDoesNotKeepAWindowOfOneSegmentForGood) {
  RouterOptions options = Options();
  options.lanes = {LaneOptions{kSegment, kSegment}, LaneOptions{kSegment, kSegment}};
  Start(options, 64 * kSegment);
  // What it reads in a second is known, so that a second is long.
  Admit(BatchOf(9, {ItemOn(9, Tiers({0}), Shape(8))}));
  for (size_t i = 0; i < 8; ++i) {
    Pass(100 * kMillisecond);
    EndReadAndCopy(ReadsOf(kFast).at(i));
  }
  Forget();
  AdmitWithDeadline(1, 1);
  Admit(BatchOf(2, {ItemOn(2, Tiers({0}), Shape(3))}));
  EXPECT_THAT(ReadsOf(kFast), SizeIs(1)) << "the first may still come";
  Pass(2 * kSecond);
  for (size_t i = 1; i < 4; ++i) {
    ASSERT_THAT(ReadsOf(kFast), SizeIs(i + 1));
    EndReadAndCopy(ReadsOf(kFast)[i]);
  }
  EXPECT_THAT(Outcome(2), ElementsAre(kOk));
  // With a second one lost the tier is out: more than its quarantine holds.
  AdmitWithDeadline(3, 3);
  Pass(2 * kSecond);
  Pass(10 * kSecond);
  EXPECT_THAT(All<TierOut>(), SizeIs(1));
  EXPECT_LE(router_->lane(kFast).in_flight(), 2 * kSegment);
}

TEST_F(RouterHangTest, TwoTiersWithALostReadEachSaveEachOther) {
  RouterOptions options = Options();
  options.lanes = {LaneOptions{kSegment, kSegment}, LaneOptions{kSegment, kSegment}};
  Start(options, 64 * kSegment);
  Admit(BatchOf(1, {ItemOn(1, Tiers({0, 1}), Shape(1)), ItemOn(2, Tiers({0, 1}), Shape(1))}));
  ASSERT_THAT(ReadsOf(kFast), SizeIs(1));
  ASSERT_THAT(ReadsOf(kSlow), SizeIs(1));
  Pass(2 * kSecond);
  ASSERT_THAT(ReadsOf(kFast), SizeIs(2));
  ASSERT_THAT(ReadsOf(kSlow), SizeIs(2));
  EndReadAndCopy(ReadsOf(kFast)[1]);
  EndReadAndCopy(ReadsOf(kSlow)[1]);
  EXPECT_THAT(Outcome(1), ElementsAre(kOk, kOk));
}

TEST_F(RouterHangTest, ATierThatHasNothingAndFindsNoSlotSaysThatItStarves) {
  Start(Options(), 4 * kSegment);
  std::vector<Slot> others;
  for (int i = 0; i < 3; ++i) others.push_back(*slots_->AllocateRead(kSegment));
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(2))}));
  ASSERT_THAT(ReadsOf(kFast), SizeIs(1));
  EXPECT_FALSE(router_->starved()) << "its read will make room";
  Admit(BatchOf(2, {ItemOn(2, Tiers({1}), Shape(1))}));
  EXPECT_THAT(ReadsOf(kSlow), IsEmpty());
  EXPECT_TRUE(router_->starved());
  for (const Slot& slot : others) slots_->Free(slot);
  router_->OnSlotsFreed(now_);
  Collect();
  EXPECT_THAT(ReadsOf(kSlow), SizeIs(1));
  EXPECT_FALSE(router_->starved());
}

TEST_F(RouterHangTest, ATierWhoseOnlyReadIsLostStarvesToo) {
  Start(Options(), kSegment);
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))}));
  Admit(BatchOf(2, {ItemOn(2, Tiers({0}), Shape(1))}));
  EXPECT_FALSE(router_->starved());
  Pass(10 * kSecond);
  EXPECT_TRUE(router_->starved());
}

// A wake is a turn of the loop: a read that hangs for an hour must not cost thousands of them.
TEST_F(RouterHangTest, AReadThatHangsIsLookedAtEverMoreSeldom) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))}));
  const TimeNs end = now_ + 3600 * kSecond;
  int wakes = 0;
  while (router_->NextDeadline() < end) {
    Pass(router_->NextDeadline() - now_);
    ASSERT_LT(++wakes, 100);
  }
  // And one that begins beside it is hedged when it is late, not later.
  Admit(BatchOf(2, {ItemOn(2, Tiers({0, 1}), Shape(1))}));
  const TimeNs began = now_;
  const auto hedged = [this] { return router_->hedges(kFast) + router_->hedges(kSlow) > 0; };
  while (!hedged() && now_ < began + kSecond) Pass(router_->NextDeadline() - now_);
  EXPECT_TRUE(hedged());
  EXPECT_EQ(now_, began + Options().hedge_after);
}

}  // namespace
}  // namespace kvstream::sched
