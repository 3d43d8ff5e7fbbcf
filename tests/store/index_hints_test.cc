// What other nodes have told of, in the index.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "server/store/chunk_index.h"

namespace kvstream::store {
namespace {

class IndexHintsTest : public testing::Test {
 protected:
  static constexpr TierId kNvme{0};
  static constexpr TierId kPfs{1};

  ChunkFacts Facts(const ContentId& content,
                   const ChunkShape& shape = {.payload_bytes = 6000, .segment_bytes = 4096}) const {
    return {key_, {}, {}, shape, content, checksums_};
  }

  const std::vector<uint64_t> checksums_ = {11, 22};
  const KeyDigest key_{{1}};
  const ContentId one_{{1}};
  const ContentId two_{{2}};
  ChunkIndex index_;
};

TEST_F(IndexHintsTest, AHintIsReadableAndNobodysToGiveUp) {
  EXPECT_TRUE(index_.AddHint(Facts(one_), SiblingsId{7}, kPfs));
  EXPECT_FALSE(index_.AddHint(Facts(one_), std::nullopt, kPfs)) << "it is known";
  EXPECT_EQ(index_.Look(key_).tiers, TierSet::Of(kPfs));
  EXPECT_TRUE(index_.Look(key_).hinted);
  EXPECT_TRUE(index_.IsHint(key_, kPfs));
  EXPECT_EQ(index_.tier_usage(kPfs).hints, 1u);
  EXPECT_EQ(index_.tier_usage(kPfs).files, 0u);
  EXPECT_TRUE(index_.Evict(kPfs).empty());
  EXPECT_EQ(index_.PlaceOf(key_).second, SiblingsId{7});
  index_.RemoveHint(key_, kPfs);
  EXPECT_EQ(index_.tier_usage(kPfs).hints, 0u);
  EXPECT_EQ(index_.chunks(), 0u);
}

TEST_F(IndexHintsTest, AHintIsNotBelievedAgainstWhatIsKnown) {
  index_.AddReplica(Facts(one_), kNvme);
  EXPECT_FALSE(index_.AddHint(Facts(one_, {.payload_bytes = 5000, .segment_bytes = 4096}),
                              std::nullopt, kPfs));
  index_.AddReplica(Facts(one_), kPfs);
  EXPECT_FALSE(index_.AddHint(Facts(two_), std::nullopt, kPfs)) << "the file there is our own";
  index_.RemoveHint(key_, kPfs);
  EXPECT_TRUE(index_.OnTiers(key_, TierSet::Of(kPfs))) << "and stays";
}

TEST_F(IndexHintsTest, WhatWasAHintIsOurOwnOnceWeHaveWrittenOrFoundIt) {
  for (const ContentId& content : {one_, two_}) {
    index_.AddHint(Facts(one_), std::nullopt, kPfs);
    index_.AddReplica(Facts(content), kPfs);
    EXPECT_EQ(index_.tier_usage(kPfs).hints, 0u);
    EXPECT_EQ(index_.tier_usage(kPfs).files, 1u);
    EXPECT_FALSE(index_.IsHint(key_, kPfs));
    EXPECT_EQ(index_.Evict(kPfs).size(), 1u);
    EXPECT_EQ(index_.chunks(), 0u);
  }
  index_.AddHint(Facts(one_), std::nullopt, kPfs);
  EXPECT_TRUE(index_.AddFound({Facts(one_), std::nullopt, 0}, kPfs, 0));
  EXPECT_EQ(index_.tier_usage(kPfs).hints, 0u);
  EXPECT_EQ(index_.tier_usage(kPfs).files, 1u);
}

TEST_F(IndexHintsTest, AFileThatOurOwnStoreHasMetIsNotAmongThoseThatMayBeForgotten) {
  const auto walked = [this] {
    int hints = 0;
    uint32_t at = 0;
    while (index_.WalkHints(kPfs, 1, &at, [&](const KeyDigest&) { ++hints; })) {
    }
    return hints;
  };
  index_.AddHint(Facts(one_), std::nullopt, kPfs);
  EXPECT_EQ(walked(), 1);
  index_.AddReplica(Facts(one_), kPfs, /*own=*/false);
  EXPECT_EQ(walked(), 0);
  // Once it was gone, and is told of again, it is a hint like others.
  index_.RemoveHint(key_, kPfs);
  index_.AddHint(Facts(one_), std::nullopt, kPfs);
  EXPECT_EQ(walked(), 1);
}

TEST_F(IndexHintsTest, AFailureFromBeforeDoesNotUndoWhatWasPublishedOverAHint) {
  index_.AddHint(Facts(one_), std::nullopt, kPfs);
  const uint16_t hint = index_.GenerationOf(key_, one_, kPfs);
  index_.AddReplica(Facts(one_), kPfs);
  EXPECT_FALSE(index_.RemoveReplica(key_, one_, kPfs, hint));
  EXPECT_TRUE(index_.OnTiers(key_, TierSet::Of(kPfs)));
}

}  // namespace
}  // namespace kvstream::store
