#include "server/sched/cache_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace kvstream::sched {
namespace {

KeyDigest KeyOf(uint64_t number) {
  KeyDigest key;
  std::memcpy(key.bytes.data(), &number, sizeof number);
  return key;
}

uint64_t NumberOf(const KeyDigest& key) {
  uint64_t number = 0;
  std::memcpy(&number, key.bytes.data(), sizeof number);
  return number;
}

// Makes room and inserts, as who holds the bytes would.
void Use(CachePolicy& cache, uint64_t number, uint64_t capacity) {
  if (cache.Contains(KeyOf(number))) return cache.Touch(KeyOf(number));
  while (cache.bytes() >= capacity) ASSERT_TRUE(cache.Evict([](const auto&) { return true; }));
  cache.Insert(KeyOf(number), 1);
}

class CachePolicyTest : public testing::TestWithParam<CachePolicyKind> {
 protected:
  std::unique_ptr<CachePolicy> Make(uint64_t capacity) {
    return MakeCachePolicy(GetParam(), capacity);
  }
};

// Of random sizes; some of what is in may not go at times.
TEST_P(CachePolicyTest, AgreesWithASetOnWhatIsInAndNeverTakesWhatMayNotGo) {
  constexpr uint64_t kCapacity = 1000;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    const auto cache = Make(kCapacity);
    std::map<uint64_t, uint64_t> in;
    std::set<uint64_t> pinned;
    uint64_t bytes = 0;
    const auto erase = [&](uint64_t number) {
      bytes -= in.at(number);
      in.erase(number);
    };
    for (int step = 0; step < 20000; ++step) {
      const uint64_t number = random() % 300;
      const uint64_t size = 1 + random() % 50;
      if (random() % 10 == 0) {
        cache->Remove(KeyOf(number));
        if (in.contains(number)) erase(number);
        pinned.erase(number);
      } else if (in.contains(number)) {
        cache->Touch(KeyOf(number));
        if (random() % 8 == 0) pinned.insert(number);
        if (random() % 4 == 0) pinned.erase(number);
      } else {
        while (bytes + size > kCapacity) {
          const auto out =
              cache->Evict([&](const KeyDigest& key) { return !pinned.contains(NumberOf(key)); });
          if (!out) {
            ASSERT_TRUE(std::ranges::all_of(in, [&](auto& e) { return pinned.contains(e.first); }));
            pinned.clear();
            continue;
          }
          ASSERT_TRUE(in.contains(NumberOf(*out)));
          ASSERT_FALSE(pinned.contains(NumberOf(*out)));
          erase(NumberOf(*out));
        }
        cache->Insert(KeyOf(number), size);
        in[number] = size;
        bytes += size;
      }
      ASSERT_EQ(cache->bytes(), bytes);
      ASSERT_EQ(cache->size(), in.size());
      ASSERT_EQ(cache->Contains(KeyOf(number)), in.contains(number));
    }
    while (cache->Evict([](const KeyDigest&) { return true; })) {
    }
    ASSERT_EQ(cache->size(), 0u);
    ASSERT_EQ(cache->bytes(), 0u);
  }
}

TEST_P(CachePolicyTest, WhatIsEmptyOrPinnedWholeGivesNothing) {
  const auto cache = Make(10);
  EXPECT_FALSE(cache->Evict([](const KeyDigest&) { return true; }));
  for (uint64_t i = 0; i < 10; ++i) cache->Insert(KeyOf(i), 1);
  for (uint64_t i = 0; i < 5; ++i) cache->Touch(KeyOf(i));
  EXPECT_FALSE(cache->Evict([](const KeyDigest&) { return false; }));
  EXPECT_EQ(cache->size(), 10u);
  cache->Touch(KeyOf(99));
  cache->Remove(KeyOf(99));
  EXPECT_EQ(cache->size(), 10u);
}

INSTANTIATE_TEST_SUITE_P(Kinds, CachePolicyTest,
                         testing::Values(CachePolicyKind::kLru, CachePolicyKind::kS3Fifo,
                                         CachePolicyKind::kArc));

TEST(LruTest, TheLeastRecentlyUsedGoes) {
  const auto cache = MakeCachePolicy(CachePolicyKind::kLru, 4);
  for (const uint64_t number : {1, 2, 3, 4, 2, 1}) Use(*cache, number, 4);
  std::vector<uint64_t> order;
  while (const auto out = cache->Evict([](const KeyDigest&) { return true; })) {
    order.push_back(NumberOf(*out));
  }
  EXPECT_THAT(order, testing::ElementsAre(3, 4, 2, 1));
}

// What is used again and again outlives many that are used once.
class ScanTest : public testing::TestWithParam<CachePolicyKind> {};

TEST_P(ScanTest, WhatIsUsedOnceDoesNotPushOutWhatIsUsedOften) {
  constexpr uint64_t kCapacity = 100;
  const auto cache = MakeCachePolicy(GetParam(), kCapacity);
  for (int round = 0; round < 5; ++round) {
    for (uint64_t often = 0; often < 50; ++often) Use(*cache, often, kCapacity);
  }
  for (uint64_t once = 1000; once < 2000; ++once) Use(*cache, once, kCapacity);
  for (uint64_t often = 0; often < 50; ++often) EXPECT_TRUE(cache->Contains(KeyOf(often))) << often;
}

INSTANTIATE_TEST_SUITE_P(Kinds, ScanTest,
                         testing::Values(CachePolicyKind::kS3Fifo, CachePolicyKind::kArc));

// What was let go of too early and comes back is kept longer than what is new.
TEST_P(ScanTest, WhatComesBackSoonIsRemembered) {
  constexpr uint64_t kCapacity = 100;
  const auto cache = MakeCachePolicy(GetParam(), kCapacity);
  for (uint64_t i = 0; i < 150; ++i) Use(*cache, i, kCapacity);
  ASSERT_FALSE(cache->Contains(KeyOf(40)));
  Use(*cache, 40, kCapacity);
  for (uint64_t once = 1000; once < 1095; ++once) Use(*cache, once, kCapacity);
  EXPECT_TRUE(cache->Contains(KeyOf(40)));
}

}  // namespace
}  // namespace kvstream::sched
