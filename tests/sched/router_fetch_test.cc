// Single scenarios of reads: shared, failed, late, and on tiers that leave.
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/sched/router.h"
#include "tests/sched/router_harness.h"

namespace kvstream::sched {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(RouterTest, OneReadServesAllWhoWait) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1)), ItemOn(1, Tiers({0}), Shape(1))}));
  Admit(BatchOf(2, {ItemOn(1, Tiers({0}), Shape(1))}));
  ASSERT_THAT(All<ReadSegment>(), SizeIs(1));
  EndRead(All<ReadSegment>()[0]);
  ASSERT_THAT(All<CopySegment>(), SizeIs(1));
  EXPECT_THAT(All<CopySegment>()[0].items, SizeIs(3));
  EndCopy(All<ReadSegment>()[0].ticket);
  EXPECT_THAT(Outcome(1), ElementsAre(kOk, kOk));
  EXPECT_THAT(Outcome(2), ElementsAre(kOk));
}

TEST_F(RouterTest, WhoComesDuringACopyIsServedFromTheSameSlot) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))}));
  const ReadSegment read = All<ReadSegment>().at(0);
  EndRead(read);
  Admit(BatchOf(2, {ItemOn(1, Tiers({0}), Shape(1))}));
  EndCopy(read.ticket);
  EXPECT_THAT(Outcome(1), ElementsAre(kOk));
  ASSERT_THAT(All<CopySegment>(), SizeIs(2));
  EXPECT_EQ(All<CopySegment>()[1].slot, read.slot);
  EndCopy(read.ticket);
  EXPECT_THAT(Outcome(2), ElementsAre(kOk));
  EXPECT_THAT(All<ReadSegment>(), SizeIs(1));
}

TEST_F(RouterTest, CancelOfOneWaiterLeavesTheReadToTheOther) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))}));
  Admit(BatchOf(2, {ItemOn(1, Tiers({0}), Shape(1))}));
  Cancel(1);
  EXPECT_EQ(router_->lane(kFast).quarantined(), 0u);
  EndReadAndCopy(All<ReadSegment>().at(0));
  EXPECT_THAT(Outcome(2), ElementsAre(kOk));
}

TEST_F(RouterTest, WhoComesForACancelledReadTakesItOutOfQuarantine) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))}));
  Cancel(1);
  ASSERT_EQ(router_->lane(kFast).quarantined(), kSegment);
  Admit(BatchOf(2, {ItemOn(1, Tiers({0}), Shape(1))}));
  EXPECT_EQ(router_->lane(kFast).quarantined(), 0u);
  EndReadAndCopy(All<ReadSegment>().at(0));
  EXPECT_THAT(Outcome(2), ElementsAre(kOk));
  EXPECT_THAT(All<ReadSegment>(), SizeIs(1));
}

TEST_F(RouterTest, DamagedSegmentIsReadFromTheOtherTier) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0, 1}), Shape(1))}));
  const ReadSegment read = All<ReadSegment>().at(0);
  EXPECT_EQ(read.tier, kFast);
  EndRead(read);
  EndCopy(read.ticket, kDataLoss);
  ASSERT_THAT(All<ReplicaFailed>(), SizeIs(1));
  EXPECT_EQ(All<ReplicaFailed>()[0].code, kDataLoss);
  ASSERT_THAT(ReadsOf(kSlow), SizeIs(1));
  EndReadAndCopy(ReadsOf(kSlow)[0]);
  EXPECT_THAT(Outcome(1), ElementsAre(kOk));
}

TEST_F(RouterTest, WhyATierCouldNotReadIsNotAnOutcome) {
  uint64_t batch = 0;
  for (const absl::StatusCode why :
       {absl::StatusCode::kPermissionDenied, absl::StatusCode::kResourceExhausted,
        absl::StatusCode::kInvalidArgument, absl::StatusCode::kUnavailable}) {
    ++batch;
    Admit(BatchOf(batch, {ItemOn(batch, Tiers({0}), Shape(1))}));
    EndRead(ReadsOf(kFast).back(), why);
    EXPECT_EQ(All<ReplicaFailed>().back().code, why);
    EXPECT_THAT(Outcome(batch), ElementsAre(absl::StatusCode::kUnavailable));
  }
}

TEST_F(RouterTest, FailedReplicaIsNotReadAgainForWhoWasAdmittedBefore) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0, 1}), Shape(1))}));
  Admit(BatchOf(2, {ItemOn(1, Tiers({0, 1}), Shape(1))}));
  EndRead(All<ReadSegment>().at(0), kUnavailable);
  ASSERT_THAT(ReadsOf(kSlow), SizeIs(1));
  EndRead(ReadsOf(kSlow)[0], kUnavailable);
  EXPECT_THAT(All<ReadSegment>(), SizeIs(2));
  EXPECT_THAT(Outcome(1), ElementsAre(kUnavailable));
  EXPECT_THAT(Outcome(2), ElementsAre(kUnavailable));
}

TEST_F(RouterTest, FailedSegmentsStandInOrderBeforeTheRest) {
  RouterOptions options = Options();
  options.lanes = {LaneOptions{kSegment, kSegment}, LaneOptions{kSegment, kSegment}};
  Start(options, 64 * kSegment);
  SetInService(kSlow, false);
  Admit(BatchOf(1, {ItemOn(1, Tiers({0, 1}), Shape(4)), ItemOn(2, Tiers({1, 0}), Shape(1))}));
  SetInService(kSlow, true);  // It reads the last of the list.
  ASSERT_THAT(ReadsOf(kSlow), SizeIs(1));
  EndRead(ReadsOf(kFast).at(0), kUnavailable);
  for (size_t i = 0; i < 4; ++i) EndReadAndCopy(ReadsOf(kSlow).at(i));
  std::vector<uint32_t> order;
  for (const ReadSegment& read : ReadsOf(kSlow)) order.push_back(read.segment);
  EXPECT_THAT(order, ElementsAre(0, 0, 1, 2, 3));
}

TEST_F(RouterTest, ReplicaPublishedDuringAFetchTakesPart) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(8))}));
  ASSERT_THAT(ReadsOf(kFast), SizeIs(4));  // Its window.
  Admit(BatchOf(2, {ItemOn(1, Tiers({0, 1}), Shape(8))}));
  EXPECT_THAT(ReadsOf(kSlow), SizeIs(4));
}

TEST_F(RouterTest, LateReadIsHedgedOnceOnAnIdleTierThatHoldsIt) {
  RouterOptions options = Options();
  options.lanes.push_back(options.lanes[0]);
  Start(options, 64 * kSegment);
  Admit(BatchOf(1, {ItemOn(1, Tiers({0, 1}), Shape(1))}));
  EXPECT_EQ(router_->NextDeadline(), now_ + 100 * kMillisecond);
  Pass(99 * kMillisecond);
  EXPECT_THAT(All<ReadSegment>(), SizeIs(1));
  Pass(kMillisecond);
  ASSERT_THAT(ReadsOf(kSlow), SizeIs(1));
  EXPECT_EQ(router_->hedges(kSlow), 1u);
  Pass(kSecond);
  EXPECT_THAT(All<ReadSegment>(), SizeIs(2)) << "both are late, and no third tier holds it";
}

TEST_F(RouterTest, LosingReadKeepsItsSlotAndIsNeverCopied) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0, 1}), Shape(1))}));
  Pass(100 * kMillisecond);
  ASSERT_THAT(All<ReadSegment>(), SizeIs(2));
  EndReadAndCopy(ReadsOf(kSlow)[0]);
  EXPECT_THAT(Outcome(1), ElementsAre(kOk));
  EXPECT_EQ(slots_->used(), kSegment);
  EXPECT_EQ(router_->lane(kFast).quarantined(), kSegment);
  EndRead(ReadsOf(kFast)[0]);
  EXPECT_THAT(All<CopySegment>(), SizeIs(1));
  EXPECT_EQ(slots_->used(), 0u);
}

TEST_F(RouterTest, LosingReadWinsAfterAllWhenTheWinnerIsDamaged) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0, 1}), Shape(1))}));
  Pass(100 * kMillisecond);
  EndRead(ReadsOf(kSlow).at(0));
  EXPECT_EQ(router_->lane(kFast).quarantined(), kSegment);
  EndCopy(ReadsOf(kSlow)[0].ticket, kDataLoss);
  EXPECT_EQ(router_->lane(kFast).quarantined(), 0u);
  EndReadAndCopy(ReadsOf(kFast)[0]);
  EXPECT_THAT(Outcome(1), ElementsAre(kOk));
}

TEST_F(RouterTest, FullQuarantineOfALateTierTakesItOutUntilItsReadsReturn) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(4))}));
  const auto reads = All<ReadSegment>();
  Cancel(1);
  Pass(kSecond - 1);
  ASSERT_THAT(All<TierOut>(), IsEmpty()) << "it may only be slow";
  Pass(1);
  ASSERT_THAT(All<TierOut>(), SizeIs(1));
  Admit(BatchOf(2, {ItemOn(2, Tiers({0}), Shape(1))}));
  EXPECT_THAT(Outcome(2), ElementsAre(kUnavailable));
  for (size_t i = 0; i < 2; ++i) EndRead(reads[i]);
  EXPECT_THAT(All<TierBack>(), IsEmpty());
  EndRead(reads[2]);
  EXPECT_THAT(All<TierBack>(), SizeIs(1));
  Admit(BatchOf(3, {ItemOn(2, Tiers({0}), Shape(1))}));
  EXPECT_THAT(All<ReadSegment>(), SizeIs(5));
}

TEST_F(RouterTest, IdleTimeBeforeAStepIsNoSilence) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))}));
  EndReadAndCopy(All<ReadSegment>().at(0));
  Pass(10 * kSecond);
  Admit(BatchOf(2, {ItemOn(2, Tiers({0}), Shape(4))}));
  Pass(900 * kMillisecond);
  Cancel(2);  // A full quarantine of a tier that is late, and has had nothing to give back.
  EXPECT_THAT(All<TierOut>(), IsEmpty());
}

TEST_F(RouterTest, CancelOfOneBatchDoesNotTakeAHealthyTierFromAnother) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(4))}));
  Admit(BatchOf(2, {ItemOn(2, Tiers({0}), Shape(1))}));
  const auto reads = All<ReadSegment>();
  Cancel(1);  // Its whole window waits for nobody now.
  EXPECT_THAT(All<TierOut>(), IsEmpty());
  EndRead(reads[0]);
  EndReadAndCopy(All<ReadSegment>().at(4));
  EXPECT_THAT(Outcome(2), ElementsAre(kOk));
}

TEST_F(RouterTest, TierOutOfServiceHandsItsSegmentsOver) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0, 1}), Shape(2))}));
  ASSERT_THAT(ReadsOf(kFast), SizeIs(1));
  ASSERT_THAT(ReadsOf(kSlow), SizeIs(1));
  SetInService(kFast, false);
  ASSERT_THAT(ReadsOf(kSlow), SizeIs(2));
  EndReadAndCopy(ReadsOf(kSlow)[0]);
  EndReadAndCopy(ReadsOf(kSlow)[1]);
  EXPECT_THAT(Outcome(1), ElementsAre(kOk));
  EXPECT_EQ(router_->lane(kFast).quarantined(), kSegment);
}

TEST_F(RouterTest, WhoComesForAReadOnATierOutOfServiceIsServedElsewhereAtOnce) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0, 1}), Shape(1))}));
  Cancel(1);
  SetInService(kFast, false);
  Admit(BatchOf(2, {ItemOn(1, Tiers({0, 1}), Shape(1))}));
  ASSERT_THAT(ReadsOf(kSlow), SizeIs(1));
  EndReadAndCopy(ReadsOf(kSlow)[0]);
  EXPECT_THAT(Outcome(2), ElementsAre(kOk));
}

TEST_F(RouterTest, ItemWhoseSegmentsHaveAllLandedOutlivesItsTier) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))}));
  EndRead(All<ReadSegment>().at(0));
  SetInService(kFast, false);
  EndCopy(All<ReadSegment>().at(0).ticket);
  EXPECT_THAT(Outcome(1), ElementsAre(kOk));
}

TEST_F(RouterTest, ItemWhoseLastCopyFailsAfterItsTierLeftFails) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))}));
  EndRead(All<ReadSegment>().at(0));
  SetInService(kFast, false);
  EndCopy(All<ReadSegment>().at(0).ticket, kDataLoss);
  EXPECT_THAT(Outcome(1), ElementsAre(kDataLoss));
}

// Its content is the same, and so is the fetch that an old read keeps alive.
TEST_F(RouterTest, WhatWasPublishedAnewIsReadThoughAnOldReadHangs) {
  for (const bool slow_is_out : {false, true}) {
    Start(Options(), 64 * kSegment);
    Forget();
    Admit(BatchOf(1, {ItemOn(1, Tiers({0, 1}), Shape(1))}));
    Pass(100 * kMillisecond);
    ASSERT_THAT(ReadsOf(kSlow), SizeIs(1));
    EndRead(ReadsOf(kFast)[0], kUnavailable);
    Cancel(1);
    if (slow_is_out) SetInService(kSlow, false);
    Admit(BatchOf(2, {ItemOn(1, Tiers({0}), Shape(1))}));
    Pass(100 * kMillisecond);  // Else it joins the old read until that is late.
    ASSERT_THAT(ReadsOf(kFast), SizeIs(2)) << slow_is_out;
    EndReadAndCopy(ReadsOf(kFast)[1]);
    EXPECT_THAT(Outcome(2), ElementsAre(kOk));
  }
}

TEST_F(RouterTest, AnAnswerThatCameBeforeOrTooEarlyIsCaught) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(2))}));
  const auto reads = All<ReadSegment>();
  ASSERT_THAT(reads, SizeIs(2));
  EXPECT_DEATH(router_->OnCopy(reads[0].ticket, {}, kOk, now_), "");
  EndRead(reads[0]);
  EXPECT_DEATH(router_->OnRead(reads[0].ticket, kOk, now_), "") << "it is being copied";
  EndCopy(reads[0].ticket);
  EXPECT_DEATH(router_->OnRead(reads[0].ticket, kOk, now_), "");
  EXPECT_DEATH(router_->OnCopy(reads[0].ticket, {}, kOk, now_), "");
}

TEST_F(RouterTest, AnEventDoesNotPutOffWhatIsDueSoon) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0, 1}), Shape(1))}));
  const TimeNs due = router_->NextDeadline();
  Pass(99 * kMillisecond);
  EXPECT_EQ(router_->NextDeadline(), due);
}

TEST_F(RouterTest, WhatMustBeReadAgainIsReadInItsOrder) {
  SetInService(kSlow, false);
  Admit(BatchOf(1, {ItemOn(1, Tiers({0, 1}), Shape(2)), ItemOn(2, Tiers({0, 1}), Shape(2))}));
  ASSERT_THAT(ReadsOf(kFast), SizeIs(4));
  SetInService(kSlow, true);
  SetInService(kFast, false);
  std::vector<std::pair<ContentId, uint32_t>> order;
  for (const ReadSegment& read : ReadsOf(kSlow)) order.emplace_back(read.content, read.segment);
  EXPECT_THAT(order, ElementsAre(std::pair(ContentOf(1), 0u), std::pair(ContentOf(1), 1u),
                                 std::pair(ContentOf(2), 0u), std::pair(ContentOf(2), 1u)));
}

TEST_F(RouterTest, PublishedGoesOnPastAReadThatNeverReturns) {
  RouterOptions options = Options();
  options.policy = {.policy = Policy::kPublished, .chunks_at_a_time = 2};
  Start(options, 64 * kSegment);
  Admit(BatchOf(1, {ItemOn(1, Tiers({1}), Shape(1)), ItemOn(2, Tiers({1}), Shape(1)),
                    ItemOn(3, Tiers({1}), Shape(1))}));
  ASSERT_THAT(ReadsOf(kSlow), SizeIs(2));
  EndReadAndCopy(ReadsOf(kSlow)[1]);
  EXPECT_THAT(ReadsOf(kSlow), SizeIs(2)) << "the round is not over";
  Pass(kSecond);
  EXPECT_THAT(ReadsOf(kSlow), SizeIs(3));
}

}  // namespace
}  // namespace kvstream::sched
