#include "server/store/prefix_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <vector>

namespace kvstream::store {
namespace {

using Set = PrefixOrder::Set;

constexpr TierId kFast{0};
constexpr TierId kSlow{1};
constexpr auto kAny = [](Set) { return true; };

class PrefixOrderTest : public testing::Test {
 protected:
  // A set with one member, whose file is on these tiers.
  Set Add(uint64_t id, std::vector<TierId> tiers = {kFast}) {
    const Set set = order_.AddMember({id});
    for (const TierId tier : tiers) order_.AddFile(set, tier);
    return set;
  }
  // As a store of these in this order does, then as a lookup of all of them.
  std::vector<Set> AddPrefix(uint64_t first, uint64_t count) {
    std::vector<Set> sets;
    for (uint64_t id = first; id < first + count; ++id) {
      sets.push_back(Add(id));
      if (id > first) order_.Follow(sets.back(), {id - 1});
    }
    order_.Touch(sets.back(), now_ += PrefixOrder::kTouchEvery);
    return sets;
  }
  // Ids in the order in which the tier gives them up.
  std::vector<uint64_t> GiveUpAll(TierId tier = kFast) {
    std::vector<uint64_t> ids;
    for (Set set = order_.Oldest(tier, kAny); set != PrefixOrder::kNone;
         set = order_.Oldest(tier, kAny)) {
      ids.push_back(order_.IdOf(set).value);
      order_.DropFile(set, tier);
    }
    return ids;
  }

  PrefixOrder order_;
  uint32_t now_ = 1;
};

TEST_F(PrefixOrderTest, TheEndOfAPrefixGoesBeforeItsBeginning) {
  AddPrefix(1, 4);
  EXPECT_EQ(GiveUpAll(), (std::vector<uint64_t>{4, 3, 2, 1}));
}

TEST_F(PrefixOrderTest, WhatIsUsedKeepsAllThatIsBeforeIt) {
  const auto sets = AddPrefix(1, 4);
  AddPrefix(10, 2);
  order_.Touch(sets[1], now_ += PrefixOrder::kTouchEvery);
  EXPECT_EQ(GiveUpAll(), (std::vector<uint64_t>{4, 3, 11, 10, 2, 1}));
}

TEST_F(PrefixOrderTest, BranchesShareTheirBeginning) {
  AddPrefix(1, 2);
  const Set left = Add(20);
  order_.Follow(left, {2});
  const Set right = Add(30);
  order_.Follow(right, {2});
  order_.Touch(right, now_ += PrefixOrder::kTouchEvery);
  order_.Touch(left, now_ += PrefixOrder::kTouchEvery);
  EXPECT_EQ(GiveUpAll(), (std::vector<uint64_t>{30, 20, 2, 1}));
}

TEST_F(PrefixOrderTest, WhatIsPublishedOutOfOrderIsGivenUpInOrder) {
  std::vector<Set> sets;
  for (uint64_t id = 1; id <= 5; ++id) {
    sets.push_back(order_.AddMember({id}));
    if (id > 1) order_.Follow(sets.back(), {id - 1});
  }
  for (const size_t i : {1, 4, 2, 0, 3}) order_.AddFile(sets[i], kFast);
  EXPECT_EQ(GiveUpAll(), (std::vector<uint64_t>{5, 4, 3, 2, 1}));
}

TEST_F(PrefixOrderTest, WhatIsLearnedLaterHoldsFromTheNextUseOn) {
  std::vector<Set> sets;
  for (uint64_t id = 1; id <= 3; ++id) sets.push_back(Add(id));
  order_.Touch(sets[2], now_ += PrefixOrder::kTouchEvery);
  EXPECT_TRUE(order_.Follow(sets[2], {2}));
  EXPECT_TRUE(order_.Follow(sets[1], {1}));
  EXPECT_FALSE(order_.Follow(sets[1], {1}));
  order_.Touch(sets[2], now_, /*force=*/true);
  EXPECT_EQ(GiveUpAll(), (std::vector<uint64_t>{3, 2, 1}));
}

TEST_F(PrefixOrderTest, AUseSoonAfterAnotherChangesNothing) {
  const auto sets = AddPrefix(1, 1);
  AddPrefix(2, 1);
  order_.Touch(sets[0], order_.TouchedAt(sets[0]) + PrefixOrder::kTouchEvery - 1);
  EXPECT_EQ(order_.IdOf(order_.Oldest(kFast, kAny)).value, 1u);
  order_.Touch(sets[0], order_.TouchedAt(sets[0]) + PrefixOrder::kTouchEvery);
  EXPECT_EQ(order_.IdOf(order_.Oldest(kFast, kAny)).value, 2u);
}

TEST_F(PrefixOrderTest, TiersHaveTheirOwnFilesInOneOrder) {
  Add(1, {kFast, kSlow});
  Add(2, {kSlow});
  const Set third = Add(3, {kFast, kSlow});
  order_.DropFile(third, kSlow);
  EXPECT_EQ(GiveUpAll(kSlow), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(GiveUpAll(kFast), (std::vector<uint64_t>{1, 3}));
}

TEST_F(PrefixOrderTest, WhatMayNotGoIsPassedOver) {
  const Set first = Add(1);
  Add(2);
  EXPECT_EQ(order_.Oldest(kFast, [first](Set set) { return set != first; }), first + 1);
  EXPECT_EQ(GiveUpAll(), (std::vector<uint64_t>{2, 1})) << "what was passed over is in use";
  EXPECT_EQ(order_.Oldest(kFast, [](Set) { return false; }), PrefixOrder::kNone);
  EXPECT_EQ(order_.Oldest(kSlow, kAny), PrefixOrder::kNone);
}

TEST_F(PrefixOrderTest, WhatMayNotGoKeepsAllThatIsBeforeIt) {
  const auto sets = AddPrefix(1, 3);
  const auto may_go = [&](Set set) { return set != sets[2]; };
  EXPECT_EQ(order_.Oldest(kFast, may_go), PrefixOrder::kNone);
  const Set other = Add(10);
  EXPECT_EQ(order_.Oldest(kFast, may_go), other);
}

TEST_F(PrefixOrderTest, ManyThatMayNotGoHideNoneThatMay) {
  for (uint64_t id = 1; id <= 3 * PrefixOrder::kLookAt; ++id) Add(id);
  const Set free = Add(10000);
  const auto may_go = [free](Set set) { return set == free; };
  Set found = PrefixOrder::kNone;
  for (int looks = 0; looks < 4 && found == PrefixOrder::kNone; ++looks) {
    found = order_.Oldest(kFast, may_go);
  }
  EXPECT_EQ(found, free);
}

TEST_F(PrefixOrderTest, ASetIsForgottenWithItsMembersAndThoseBeforeItForItsSakeAlone) {
  const Set set = Add(3);
  order_.Follow(set, {2});
  EXPECT_EQ(order_.size(), 2u);
  order_.DropFile(set, kFast);
  order_.DropMember(set);
  EXPECT_EQ(order_.size(), 0u);
}

TEST_F(PrefixOrderTest, WithoutItsMiddleTheEndIsCutOffUntilThatIsBack) {
  const auto sets = AddPrefix(1, 4);
  EXPECT_FALSE(order_.IsCutOff(sets[3], 1));
  order_.DropFile(sets[1], kFast);
  order_.DropMember(sets[1]);
  EXPECT_FALSE(order_.IsCutOff(sets[0], 2));
  EXPECT_TRUE(order_.IsCutOff(sets[2], 2));
  EXPECT_TRUE(order_.IsCutOff(sets[3], 2));
  EXPECT_EQ(order_.AddMember({2}), sets[1]);
  EXPECT_TRUE(order_.IsCutOff(sets[3], 2)) << "until the round ends";
  EXPECT_FALSE(order_.IsCutOff(sets[3], 3));
}

TEST_F(PrefixOrderTest, ARingByCollisionIsRefused) {
  const auto sets = AddPrefix(1, 3);
  order_.Follow(sets[0], {3});
  order_.Follow(sets[0], {1});
  order_.Touch(sets[2], now_ += PrefixOrder::kTouchEvery);
  EXPECT_EQ(GiveUpAll(), (std::vector<uint64_t>{3, 2, 1}));
}

// Against a plain list, whatever happens.
TEST(PrefixOrderModelTest, ItIsAListInTheOrderOfUse) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    PrefixOrder order;
    std::map<uint64_t, uint64_t> before;
    std::map<uint64_t, Set> there;
    std::vector<uint64_t> by_age;  // Oldest first.
    uint32_t now = 1;
    const auto use = [&](uint64_t id) {
      now += PrefixOrder::kTouchEvery;
      order.Touch(there[id], now);
      for (std::optional<uint64_t> at = id; at.has_value();) {
        if (std::erase(by_age, *at) > 0) by_age.push_back(*at);
        const auto next = before.find(*at);
        at = next == before.end() ? std::nullopt : std::optional(next->second);
      }
    };
    for (int step = 0; step < 3000; ++step) {
      const uint64_t id = 1 + random() % 60;
      if (!there.contains(id)) {
        there[id] = order.AddMember({id});
        // A tree: 2 and 3 follow 1, 4 and 5 follow 2, and so on. It is known while the set is.
        if (id > 1) {
          order.Follow(there[id], {id / 2});
          before[id] = id / 2;
        }
        order.AddFile(there[id], kFast);
        auto next = by_age.end();
        for (auto at = before.find(id); at != before.end() && next == by_age.end();
             at = before.find(at->second)) {
          next = std::ranges::find(by_age, at->second);
        }
        by_age.insert(next, id);
      } else if (random() % 3 > 0) {
        use(id);
      } else {
        order.DropFile(there[id], kFast);
        order.DropMember(there[id]);
        there.erase(id);
        std::erase(by_age, id);
        // What nobody knows of any more has lost what it followed.
        const auto known = [&](uint64_t other) {
          return there.contains(other) || std::ranges::any_of(before, [&](const auto& link) {
                   return link.second == other;
                 });
        };
        for (bool changed = true; changed;) {
          changed = std::erase_if(before, [&](const auto& link) { return !known(link.first); }) > 0;
        }
      }
      ASSERT_EQ(order.ByAge(kFast), by_age) << seed;
    }
  }
}

}  // namespace
}  // namespace kvstream::store
