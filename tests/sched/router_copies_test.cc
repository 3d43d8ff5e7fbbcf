// How a segment that has been read gets to all who want it.
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

TEST_F(RouterTest, WhoSharesASegmentDoesNotWaitForAnotherOnesCopy) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))}));
  Admit(BatchOf(2, {ItemOn(1, Tiers({0}), Shape(1))}));
  const Ticket ticket = All<ReadSegment>().at(0).ticket;
  EndRead(All<ReadSegment>()[0]);
  EndCopyFor(ticket, 2);
  EXPECT_THAT(Outcome(2), ElementsAre(kOk));
  EXPECT_THAT(Outcome(1), IsEmpty());
  // Who comes now has the same slot, at once.
  Admit(BatchOf(3, {ItemOn(1, Tiers({0}), Shape(1))}));
  EXPECT_THAT(All<ReadSegment>(), SizeIs(1));
  EndCopyFor(ticket, 3);
  EXPECT_THAT(Outcome(3), ElementsAre(kOk));
  EXPECT_GT(slots_->used(), 0u) << "the first one's copy still reads it";
  EndCopyFor(ticket, 1);
  EXPECT_THAT(Outcome(1), ElementsAre(kOk));
  EXPECT_EQ(slots_->used(), 0u);
}

TEST_F(RouterTest, WhoComesBeforeAReadIsVerifiedWaitsForThat) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))}));
  const Ticket ticket = All<ReadSegment>().at(0).ticket;
  EndRead(All<ReadSegment>()[0]);
  Admit(BatchOf(2, {ItemOn(1, Tiers({0}), Shape(1))}));
  EXPECT_THAT(All<CopySegment>(), SizeIs(1));
  EndCopyFor(ticket, 3);  // It is verified, and nobody's copy has ended.
  EXPECT_THAT(All<CopySegment>(), SizeIs(2));
  EndCopyFor(ticket, 2);
  EXPECT_THAT(Outcome(2), ElementsAre(kOk));
  EndCopyFor(ticket, 1);
  EXPECT_THAT(Outcome(1), ElementsAre(kOk));
  EXPECT_EQ(slots_->used(), 0u);
}

TEST_F(RouterTest, VeryManyRequestsMayWantOneChunk) {
  // Work by the square of these would take minutes.
  constexpr uint64_t kRequests = 65536;
  for (const bool cancel : {false, true}) {
    Start(Options(), 64 * kSegment);
    BatchSpec spec = BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))});
    spec.joint = false;
    spec.requests.resize(kRequests, spec.requests[0]);
    router_->Admit(std::move(spec), now_);
    std::vector<Command> commands;
    router_->TakeCommands(&commands);
    ASSERT_THAT(commands, SizeIs(1));
    const Ticket ticket = std::get<ReadSegment>(commands[0]).ticket;
    if (cancel) router_->Fail(OperationId{1}, absl::StatusCode::kCancelled, now_);
    router_->OnRead(ticket, kOk, now_);
    if (!cancel) {
      router_->TakeCommands(&commands);
      ASSERT_THAT(commands, SizeIs(1));
      router_->OnCopy(ticket, std::get<CopySegment>(commands[0]).items, kOk, now_);
    }
    EXPECT_EQ(router_->batches(), 0u);
    EXPECT_EQ(slots_->used(), 0u);
  }
}

TEST_F(RouterTest, VeryManyRequestsMayComeWhileAChunkIsBeingCopied) {
  constexpr uint64_t kRequests = 65536;
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))}));
  const Ticket ticket = All<ReadSegment>()[0].ticket;
  EndRead(All<ReadSegment>()[0]);
  EndCopyFor(ticket, 3);  // It is verified, and the first one's copy goes on.
  BatchSpec spec = BatchOf(2, {ItemOn(1, Tiers({0}), Shape(1))});
  spec.joint = false;
  spec.requests.resize(kRequests, spec.requests[0]);
  // Not by Admit and EndCopy, whose checks do take the square.
  router_->Admit(std::move(spec), now_);
  std::vector<Command> commands;
  router_->TakeCommands(&commands);
  ASSERT_THAT(commands, SizeIs(1));
  auto items = std::get<CopySegment>(commands[0]).items;
  EXPECT_THAT(items, SizeIs(kRequests));
  items.insert(items.begin(), ItemRef{OperationId{1}, 0, 0});
  router_->OnCopy(ticket, items, kOk, now_);
  EXPECT_EQ(router_->batches(), 0u);
  EXPECT_EQ(slots_->used(), 0u);
}

TEST_F(RouterTest, DeadlineDuringACopyStillWaitsForIt) {
  BatchSpec spec = BatchOf(1, {ItemOn(1, Tiers({0}), Shape(1))});
  spec.deadline = now_ + kMillisecond;
  Admit(spec);
  EndRead(All<ReadSegment>().at(0));
  Pass(kMillisecond);
  EXPECT_THAT(Outcome(1), IsEmpty());
  Cancel(1);
  EndCopy(All<ReadSegment>().at(0).ticket);
  EXPECT_THAT(Outcome(1), ElementsAre(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(All<ItemDone>(), SizeIs(1));
}

TEST_F(RouterTest, NothingIsReadForAnItemThatFailedWhileItsCopyRuns) {
  Admit(BatchOf(1, {ItemOn(1, Tiers({0}), Shape(8))}));
  ASSERT_THAT(All<ReadSegment>(), SizeIs(4));
  EndRead(All<ReadSegment>()[0]);
  const size_t before = All<ReadSegment>().size();
  SetInService(kFast, false);
  EXPECT_FALSE(router_->lane(kFast).quarantined() == 0);
  SetInService(kFast, true);
  EXPECT_THAT(All<ReadSegment>(), SizeIs(before));
  EndCopy(All<ReadSegment>()[0].ticket);
  EXPECT_THAT(Outcome(1), ElementsAre(kUnavailable));
}

}  // namespace
}  // namespace kvstream::sched
