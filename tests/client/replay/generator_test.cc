#include "client/replay/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "client/replay/possible_hits.h"

namespace kvstream::replay {
namespace {

TEST(GeneratorTest, SameSeedSameTrace) {
  const auto one = GenerateTrace(300, 7);
  const auto two = GenerateTrace(300, 7);
  ASSERT_EQ(one.size(), 300u);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].ids, two[i].ids);
    EXPECT_EQ(one[i].timestamp_ms, two[i].timestamp_ms);
    EXPECT_EQ(one[i].output_tokens, two[i].output_tokens);
  }
}

TEST(GeneratorTest, ShorterTraceIsTheLongersBeginning) {
  const auto all = GenerateTrace(100, 7);
  const auto some = GenerateTrace(40, 7);
  for (size_t i = 0; i < some.size(); ++i) EXPECT_EQ(some[i].ids, all[i].ids);
}

TEST(GeneratorTest, OtherSeedOtherTrace) {
  bool differs = false;
  const auto one = GenerateTrace(10, 1);
  const auto two = GenerateTrace(10, 2);
  for (size_t i = 0; i < one.size(); ++i) differs = differs || one[i].ids != two[i].ids;
  EXPECT_TRUE(differs);
}

TEST(GeneratorTest, IdsAreChained) {
  // Equal ids mean equal prefixes: what is before an id never changes.
  std::map<uint64_t, uint64_t> before;
  for (const Request& request : GenerateTrace(500, 3)) {
    uint64_t last = kIdMax;
    for (const uint64_t id : request.ids) {
      EXPECT_EQ(before.emplace(id, last).first->second, last);
      last = id;
    }
  }
}

TEST(GeneratorTest, ConversationsGrowShareTheirBeginningsAndInterleave) {
  const auto trace = GenerateTrace(500, 3);
  PossibleHits possible;
  uint64_t hits = 0;
  uint64_t chunks = 0;
  uint64_t alternations = 0;
  std::set<uint64_t> beginnings;
  for (size_t i = 0; i < trace.size(); ++i) {
    const Request& request = trace[i];
    ASSERT_GE(request.ids.size(), 5u);
    EXPECT_EQ(request.input_tokens, request.ids.size() * 512);
    EXPECT_GT(request.output_tokens, 0u);
    beginnings.insert(request.ids.front());
    if (i > 0) {
      EXPECT_GE(request.timestamp_ms, trace[i - 1].timestamp_ms);
      const auto& last = trace[i - 1].ids;
      const bool goes_on = request.ids.size() > last.size() &&
                           std::equal(last.begin(), last.end(), request.ids.begin());
      alternations += goes_on ? 0 : 1;
    }
    hits += possible.LeadingHits(request.ids);
    possible.Add(request.ids);
    chunks += request.ids.size();
  }
  EXPECT_EQ(beginnings.size(), 4u);
  EXPECT_GT(alternations, trace.size() / 2);
  EXPECT_GT(hits, chunks / 2);
  EXPECT_LT(hits, chunks);
}

}  // namespace
}  // namespace kvstream::replay
