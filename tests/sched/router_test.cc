// Single scenarios of batches, requests and items.
#include "server/sched/router.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sched/router_harness.h"

namespace kvstream::sched {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(RouterTest, SegmentsAreReadCopiedAndReportedInOrder) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(2))}));
  const auto reads = All<ReadSegment>();
  ASSERT_THAT(reads, SizeIs(2));
  EndReadAndCopy(reads[1]);
  EXPECT_THAT(All<ItemDone>(), IsEmpty());
  EndReadAndCopy(reads[0]);
  EXPECT_THAT(Outcome(1), ElementsAre(kOk));
  EXPECT_THAT(All<BatchDone>(), SizeIs(1));
  EXPECT_EQ(router_->batches(), 0u);
  EXPECT_EQ(slots_->used(), 0u);
  EXPECT_FALSE(router_->HasDemand(kFast));
}

TEST_F(RouterTest, MissingItemFailsAtOnceAndTheRestIsRead) {
  Item missing;
  missing.shape = Shape(1);
  Admit(BatchOf(1, {missing, ItemOn(1, Tiers({0}), Shape(1))}));
  ASSERT_THAT(All<ItemDone>(), SizeIs(1));
  EndReadAndCopy(All<ReadSegment>().at(0));
  EXPECT_THAT(Outcome(1), ElementsAre(kNotFound, kOk));
}

TEST_F(RouterTest, RequestsOfABatchEndOneByOne) {
  BatchSpec spec = BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))});
  spec.requests.push_back({ItemOn(2, Tiers({0}), Shape(1))});
  Admit(spec);
  EndReadAndCopy(All<ReadSegment>().at(1));
  EXPECT_THAT(Outcome(1, 1), ElementsAre(kOk));
  EXPECT_THAT(Outcome(1, 0), IsEmpty());
  EXPECT_THAT(All<BatchDone>(), IsEmpty());
  EndReadAndCopy(All<ReadSegment>().at(0));
  EXPECT_THAT(All<BatchDone>(), SizeIs(1));
}

TEST_F(RouterTest, CancelledReadKeepsItsSlotUntilItsCompletion) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))}));
  const ReadSegment read = All<ReadSegment>().at(0);
  Cancel(1);
  EXPECT_THAT(Outcome(1), ElementsAre(kCancelled));
  EXPECT_THAT(All<BatchDone>(), SizeIs(1));
  EXPECT_EQ(slots_->used(), kSegment);
  EXPECT_EQ(router_->lane(kFast).quarantined(), kSegment);
  EXPECT_TRUE(router_->HasDemand(kFast));
  EndRead(read);
  EXPECT_THAT(All<CopySegment>(), IsEmpty());
  EXPECT_EQ(slots_->used(), 0u);
  EXPECT_EQ(router_->lane(kFast).quarantined(), 0u);
  EXPECT_FALSE(router_->HasDemand(kFast));
}

TEST_F(RouterTest, CancelledBatchEndsAfterItsRunningCopy) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))}));
  const ReadSegment read = All<ReadSegment>().at(0);
  EndRead(read);
  Cancel(1);
  Cancel(1);
  EXPECT_THAT(All<ItemDone>(), SizeIs(1));
  EXPECT_THAT(Outcome(1), IsEmpty());
  EndCopy(read.ticket);
  EXPECT_THAT(Outcome(1), ElementsAre(kCancelled));
  EXPECT_EQ(slots_->used(), 0u);
}

TEST_F(RouterTest, CancelOfAnUnknownBatchIsIgnored) {
  Cancel(77);
  EXPECT_THAT(All<BatchDone>(), IsEmpty());
}

TEST_F(RouterTest, DeadlineFailsWhatIsNotThereYet) {
  BatchSpec spec = BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1)), ItemOn(2, Tiers({0}), Shape(1))});
  spec.deadline = now_ + 50 * kMillisecond;
  Admit(spec);
  EXPECT_EQ(router_->NextDeadline(), spec.deadline);
  EndReadAndCopy(All<ReadSegment>().at(0));
  Pass(50 * kMillisecond);
  EXPECT_THAT(Outcome(1), ElementsAre(kOk, kDeadlineExceeded));
  EndRead(All<ReadSegment>().at(1));
  EXPECT_EQ(router_->NextDeadline(), kNever);
}

TEST_F(RouterTest, StepBeginsWhenAllItsRanksHaveCome) {
  BatchSpec spec = BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))});
  spec.step_key = 9;
  spec.ranks = 2;
  spec.join_deadline = now_ + kSecond;
  Admit(spec);
  EXPECT_THAT(All<ReadSegment>(), IsEmpty());
  spec.id = OperationId{2};
  spec.requests[0][0] = ItemOn(2, Tiers({0}), Shape(1));
  Admit(spec);
  EXPECT_THAT(All<ReadSegment>(), SizeIs(2));
}

TEST_F(RouterTest, StepBeginsAtItsJoinDeadlineWithoutAnAbsentRank) {
  BatchSpec spec = BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))});
  spec.step_key = 9;
  spec.ranks = 2;
  spec.join_deadline = now_ + 10 * kMillisecond;
  Admit(spec);
  EXPECT_EQ(router_->NextDeadline(), spec.join_deadline);
  Pass(10 * kMillisecond);
  EXPECT_THAT(All<ReadSegment>(), SizeIs(1));
}

TEST_F(RouterTest, LateRankJoinsAStepUnderWay) {
  BatchSpec spec = BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))});
  spec.step_key = 9;
  spec.ranks = 2;
  spec.join_deadline = now_ + 10 * kMillisecond;
  Admit(spec);
  Pass(10 * kMillisecond);
  ASSERT_THAT(All<ReadSegment>(), SizeIs(1)) << "nothing is listed any more";
  spec.id = OperationId{2};
  spec.requests[0][0] = ItemOn(2, Tiers({0}), Shape(1));
  spec.join_deadline = now_ + kSecond;
  Admit(spec);
  EXPECT_THAT(All<ReadSegment>(), SizeIs(2));
}

TEST_F(RouterTest, CancelledRankLeavesTheStepToTheOthers) {
  BatchSpec spec = BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))});
  spec.step_key = 9;
  spec.ranks = 2;
  spec.join_deadline = now_ + 10 * kMillisecond;
  Admit(spec);
  Cancel(1);
  EXPECT_THAT(Outcome(1), ElementsAre(kCancelled));
  spec.id = OperationId{2};
  Admit(spec);
  Pass(10 * kMillisecond);
  EndReadAndCopy(All<ReadSegment>().at(0));
  EXPECT_THAT(Outcome(2), ElementsAre(kOk));
}

TEST_F(RouterTest, SecondContentIsTriedWholeAfterTheFirstFailed) {
  Item item = ItemOn(1, Tiers({0}), Shape(2));
  item.sources.push_back(Source{ContentOf(2), Tiers({1}), false});
  Admit(BatchOf(1, {item}));
  const auto first = All<ReadSegment>();
  ASSERT_THAT(first, SizeIs(2));
  EndReadAndCopy(first[0]);  // Half of it is there, and must not count for the second.
  EndRead(first[1], kUnavailable);
  ASSERT_THAT(All<ReplicaFailed>(), SizeIs(1));
  EXPECT_EQ(All<ReplicaFailed>()[0].content, ContentOf(1));
  const auto second = ReadsOf(kSlow);
  ASSERT_THAT(second, SizeIs(2));
  EXPECT_EQ(second[0].content, ContentOf(2));
  EndReadAndCopy(second[0]);
  EXPECT_THAT(Outcome(1), IsEmpty());
  EndReadAndCopy(second[1]);
  EXPECT_THAT(Outcome(1), ElementsAre(kOk));
}

TEST_F(RouterTest, SecondContentOfAnEarlierRequestIsClaimedThoughItsListHadEmptied) {
  BatchSpec spec = BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))});
  spec.requests[0][0].sources.push_back(Source{ContentOf(2), Tiers({0}), false});
  spec.requests.push_back({ItemOn(3, Tiers({0}), Shape(1))});
  spec.joint = false;
  Admit(spec);
  ASSERT_THAT(All<ReadSegment>(), SizeIs(2));
  EndRead(All<ReadSegment>()[0], kNotFound);
  ASSERT_THAT(All<ReadSegment>(), SizeIs(3));
  EndReadAndCopy(All<ReadSegment>()[2]);
  EXPECT_THAT(Outcome(1, 0), ElementsAre(kOk));
}

TEST_F(RouterTest, ItemFailsWithTheWorstOfItsFailures) {
  Item item = ItemOn(1, Tiers({0}), Shape(1));
  item.sources.push_back(Source{ContentOf(2), Tiers({0}), false});
  Admit(BatchOf(1, {item}));
  EndRead(All<ReadSegment>().at(0));
  EndCopy(All<ReadSegment>().at(0).ticket, kDataLoss);
  EndRead(All<ReadSegment>().at(1), kNotFound);
  EXPECT_THAT(Outcome(1), ElementsAre(kDataLoss));
  EXPECT_EQ(slots_->used(), 0u);
}

TEST_F(RouterTest, ItemWithoutATierInServiceIsUnavailable) {
  SetInService(kFast, false);
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))}));
  EXPECT_THAT(Outcome(1), ElementsAre(kUnavailable));
}

TEST_F(RouterTest, StagedChunkIsCopiedWithoutAnyRead) {
  Item item = ItemOn(1, Tiers({0}), Shape(3));
  item.sources[0].staged = true;
  Admit(BatchOf(1, {item}));
  ASSERT_THAT(All<CopyStaged>(), SizeIs(1));
  EndStagedCopy(All<CopyStaged>()[0].item);
  EXPECT_THAT(Outcome(1), ElementsAre(kOk));
  EXPECT_THAT(All<ReadSegment>(), IsEmpty());
}

TEST_F(RouterTest, DamagedStagedChunkIsReadFromItsTiers) {
  Item item = ItemOn(1, Tiers({0}), Shape(1));
  item.sources[0].staged = true;
  Admit(BatchOf(1, {item}));
  EndStagedCopy(All<CopyStaged>().at(0).item, kDataLoss);
  EndReadAndCopy(All<ReadSegment>().at(0));
  EXPECT_THAT(Outcome(1), ElementsAre(kOk));
  EXPECT_THAT(All<CopyStaged>(), SizeIs(1));
}

TEST_F(RouterTest, DamagedStagedChunkWithoutATierFails) {
  Item item = ItemOn(1, TierSet{}, Shape(1));
  item.sources[0].staged = true;
  Admit(BatchOf(1, {item}));
  EndStagedCopy(All<CopyStaged>().at(0).item, kDataLoss);
  EXPECT_THAT(Outcome(1), ElementsAre(kDataLoss));
}

TEST_F(RouterTest, StagedCopiesAreBoundedAndCancelReachesTheRest) {
  RouterOptions options = Options();
  options.staged_copies_max = 2;
  Start(options, 64 * kSegment);
  std::vector<Item> items(5, ItemOn(1, TierSet{}, Shape(1)));
  for (Item& item : items) item.sources[0].staged = true;
  Admit(BatchOf(1, items));
  ASSERT_THAT(All<CopyStaged>(), SizeIs(2));
  EndStagedCopy(All<CopyStaged>()[0].item);
  EXPECT_THAT(All<CopyStaged>(), SizeIs(3));
  Cancel(1);
  EXPECT_THAT(Outcome(1), IsEmpty()) << "two copies are running";
  EndStagedCopy(All<CopyStaged>()[1].item);
  EndStagedCopy(All<CopyStaged>()[2].item);
  EXPECT_THAT(All<CopyStaged>(), SizeIs(3));
  EXPECT_THAT(Outcome(1), ElementsAre(kOk, kCancelled, kCancelled, kCancelled, kCancelled));
}

TEST_F(RouterTest, ReadsWaitForASlotAndGoOnWhenOthersFreeOne) {
  Start(Options(), kSegment);
  const Slot taken = *slots_->AllocateRead(kSegment);
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))}));
  EXPECT_THAT(All<ReadSegment>(), IsEmpty());
  EXPECT_TRUE(router_->HasDemand(kFast));
  slots_->Free(taken);
  router_->OnSlotsFreed(now_);
  Collect();
  EXPECT_THAT(All<ReadSegment>(), SizeIs(1));
}

}  // namespace
}  // namespace kvstream::sched
