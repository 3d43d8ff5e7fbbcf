#include "server/sched/read_list.h"

#include <functional>
#include <optional>
#include <vector>

#include "gtest/gtest.h"

namespace kvstream::sched {
namespace {

constexpr TierId kFast{0};
constexpr TierId kSlow{1};
const TierSet kBoth = TierSet::FromBits(3);

using Verdict = ReadList::Verdict;

// The segment number that a tier takes, with fetch 0 for all.
std::optional<uint32_t> Take(ReadList& list, TierId tier,
                             const std::function<Verdict(uint32_t)>& verdict) {
  SegmentRef taken;
  const bool any = list.Take(
      tier,
      [tier](TierSet holders, TierSet assigned) {
        if (!assigned.empty() && !assigned.Has(tier)) return ReadList::End::kNone;
        return tier == (holders.Has(kFast) ? kFast : kSlow) ? ReadList::End::kFront
                                                            : ReadList::End::kBack;
      },
      [&](const SegmentRef& ref, TierSet) { return verdict(ref.segment); }, &taken);
  if (!any) return std::nullopt;
  return taken.segment;
}

std::optional<uint32_t> Take(ReadList& list, TierId tier) {
  return Take(list, tier, [](uint32_t) { return Verdict::kTake; });
}

void PushBack(ReadList& list, TierSet holders, std::vector<uint32_t> segments) {
  for (const uint32_t s : segments) list.PushBack(holders, SegmentRef{0, 0, s});
}

TEST(ReadListTest, FastestTakesFromTheFrontAndOthersFromTheBack) {
  ReadList list;
  PushBack(list, kBoth, {1, 2, 3, 4});
  EXPECT_EQ(Take(list, kFast), 1u);
  EXPECT_EQ(Take(list, kSlow), 4u);
  EXPECT_EQ(Take(list, kFast), 2u);
  EXPECT_EQ(Take(list, kSlow), 3u);
  EXPECT_EQ(Take(list, kFast), std::nullopt);
  EXPECT_TRUE(list.EmptyFor(kFast));
}

TEST(ReadListTest, LoneHolderTakesFromTheFront) {
  ReadList list;
  PushBack(list, TierSet::Of(kSlow), {1, 2});
  EXPECT_EQ(Take(list, kFast), std::nullopt);
  EXPECT_EQ(Take(list, kSlow), 1u);
}

TEST(ReadListTest, SegmentsThatFewerTiersHoldGoFirst) {
  ReadList list;
  PushBack(list, TierSet::FromBits(7), {1});
  PushBack(list, kBoth, {2});
  PushBack(list, TierSet::Of(kSlow), {3});
  EXPECT_EQ(Take(list, kSlow), 3u);
  EXPECT_EQ(Take(list, kSlow), 2u);
  EXPECT_EQ(Take(list, kSlow), 1u);
}

TEST(ReadListTest, SegmentsToReadAgainStandBeforeTheRest) {
  ReadList list;
  PushBack(list, kBoth, {1, 2});
  list.PushFront(kBoth, SegmentRef{0, 0, 7});
  EXPECT_EQ(Take(list, kFast), 7u);
}

TEST(ReadListTest, EntriesThatNoLongerWaitAreDropped) {
  ReadList list;
  PushBack(list, kBoth, {1, 2, 3});
  EXPECT_EQ(Take(list, kFast, [](uint32_t s) { return s < 3 ? Verdict::kDrop : Verdict::kTake; }),
            3u);
  EXPECT_TRUE(list.EmptyFor(kFast));
}

TEST(ReadListTest, SkippedEntriesStayForOthers) {
  ReadList list;
  PushBack(list, TierSet::Of(kFast), {1});
  PushBack(list, kBoth, {2, 3});
  EXPECT_EQ(Take(list, kFast, [](uint32_t) { return Verdict::kSkip; }), std::nullopt);
  EXPECT_EQ(Take(list, kFast, [](uint32_t s) { return s == 1 ? Verdict::kSkip : Verdict::kTake; }),
            2u)
      << "a set whose next segment cannot be had does not hold up the others";
  EXPECT_EQ(Take(list, kSlow), 3u);
  EXPECT_EQ(Take(list, kFast), 1u);
}

TEST(ReadListTest, WhatIsMeantForOneTierIsNotTakenByAnother) {
  ReadList list;
  list.PushBack(kBoth, SegmentRef{0, 0, 1}, TierSet::Of(kFast));
  list.PushBack(kBoth, SegmentRef{0, 0, 2}, TierSet::Of(kSlow));
  list.PushBack(kBoth, SegmentRef{0, 0, 3});
  EXPECT_EQ(Take(list, kSlow), 2u);
  EXPECT_EQ(Take(list, kSlow), 3u);
  EXPECT_EQ(Take(list, kSlow), std::nullopt);
  EXPECT_FALSE(list.EmptyFor(kSlow)) << "it may yet fall to the other tier";
  EXPECT_EQ(Take(list, kFast), 1u);
}

}  // namespace
}  // namespace kvstream::sched
