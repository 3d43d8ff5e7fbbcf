#include "client/replay/possible_hits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvstream::replay {
namespace {

using ::testing::ElementsAre;

// The leading hits of each prompt, in steps of `batch` prompts.
std::vector<uint64_t> Count(const std::vector<std::vector<uint64_t>>& prompts, size_t batch = 1) {
  PossibleHits possible;
  std::vector<uint64_t> hits;
  for (size_t first = 0; first < prompts.size(); first += batch) {
    const size_t end = std::min(prompts.size(), first + batch);
    for (size_t i = first; i < end; ++i) hits.push_back(possible.LeadingHits(prompts[i]));
    for (size_t i = first; i < end; ++i) possible.Add(prompts[i]);
  }
  return hits;
}

TEST(PossibleHitsTest, EmptyCacheHitsNothing) { EXPECT_THAT(Count({{1, 2, 3}}), ElementsAre(0)); }

TEST(PossibleHitsTest, EmptyPromptHitsNothing) { EXPECT_THAT(Count({{1}, {}}), ElementsAre(0, 0)); }

TEST(PossibleHitsTest, RepeatedPromptHitsAll) {
  EXPECT_THAT(Count({{1, 2, 3}, {1, 2, 3}}), ElementsAre(0, 3));
}

TEST(PossibleHitsTest, ChunkAfterAMissDoesNotCount) {
  EXPECT_THAT(Count({{1, 2, 3}, {9, 2, 3}}), ElementsAre(0, 0));
  EXPECT_THAT(Count({{1, 2, 3}, {1, 9, 3}}), ElementsAre(0, 1));
}

TEST(PossibleHitsTest, StepDoesNotHitItsOwnChunks) {
  EXPECT_THAT(Count({{1, 2}, {1, 2, 3}, {1, 2, 3}}, 2), ElementsAre(0, 0, 3));
}

TEST(PossibleHitsTest, ConversationsOfTwoUsersCountedByHand) {
  // A system prompt 0, 1; user a says 2, 3 and goes on with 4, 5; user b says 6 and goes on with 7;
  // then one who shares only the system prompt's first block.
  EXPECT_THAT(Count({{0, 1, 2, 3},
                     {0, 1, 6},
                     {0, 1, 2, 3, 4, 5},
                     {0, 1, 6, 7},
                     {0, 8, 9},
                     {0, 1, 2, 3, 4, 5}}),
              ElementsAre(0, 2, 4, 3, 1, 6));
}

}  // namespace
}  // namespace kvstream::replay
