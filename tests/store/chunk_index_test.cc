#include "server/store/chunk_index.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvstream::store {
namespace {

constexpr TierId kNvme{0};
constexpr TierId kPfs{1};
constexpr TierId kArchive{2};
constexpr ChunkShape kShape{.payload_bytes = 6000, .segment_bytes = 4096};

class ChunkIndexTest : public ::testing::Test {
 protected:
  ChunkIndexTest() {
    key_.bytes[0] = 1;
    one_.bytes[0] = 1;
    two_.bytes[0] = 2;
  }

  void Add(const ContentId& content, TierId tier) {
    index_.AddReplica(key_, name_space_, kShape, content, checksums_, tier);
  }
  uint16_t Generation(TierId tier) { return index_.GenerationOf(key_, one_, tier); }
  // As a failure of what is there now.
  bool Remove(const ContentId& content, TierId tier) {
    return index_.RemoveReplica(key_, content, tier, index_.GenerationOf(key_, content, tier));
  }
  void Stage(const ContentId& content) {
    index_.AddStaged(key_, name_space_, kShape, content, checksums_);
  }

  const std::vector<uint64_t> checksums_ = {11, 22};
  NamespaceId name_space_;
  KeyDigest key_;
  ContentId one_;
  ContentId two_;
  ChunkIndex index_;
};

TEST_F(ChunkIndexTest, UnknownKeyIsNotFound) {
  EXPECT_EQ(index_.Find(key_), nullptr);
  EXPECT_EQ(index_.chunks(), 0u);
}

TEST_F(ChunkIndexTest, ReplicaIsFoundWithAllThatWasSaidOfIt) {
  name_space_.bytes[3] = 4;
  Add(one_, kPfs);
  const IndexEntry* entry = index_.Find(key_);
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->name_space, name_space_);
  EXPECT_EQ(entry->shape, kShape);
  ASSERT_EQ(entry->copies.size(), 1u);
  EXPECT_EQ(entry->copies[0].content, one_);
  EXPECT_EQ(entry->copies[0].tiers, TierSet::Of(kPfs));
  EXPECT_FALSE(entry->copies[0].staged);
  EXPECT_EQ(entry->copies[0].checksums, checksums_);
}

TEST_F(ChunkIndexTest, ReplicasOfOneContentAreOneCopy) {
  Stage(one_);
  Add(one_, kNvme);
  Add(one_, kPfs);
  Add(one_, kPfs);
  const IndexEntry* entry = index_.Find(key_);
  ASSERT_EQ(entry->copies.size(), 1u);
  EXPECT_TRUE(entry->copies[0].staged);
  EXPECT_EQ(entry->copies[0].tiers.size(), 2);
  EXPECT_EQ(index_.chunks(), 1u);
}

TEST_F(ChunkIndexTest, VisibleMeansThatSomeCopyIsThere) {
  Stage(one_);
  Add(one_, kNvme);
  EXPECT_FALSE(index_.RemoveStaged(key_, one_));
  ASSERT_NE(index_.Find(key_), nullptr);
  EXPECT_FALSE(index_.Find(key_)->copies[0].staged);
  EXPECT_TRUE(Remove(one_, kNvme));
  EXPECT_EQ(index_.Find(key_), nullptr);
  EXPECT_EQ(index_.chunks(), 0u);
}

TEST_F(ChunkIndexTest, ReadableIsWhatIsStagedOrOnATierInService) {
  Add(one_, kNvme);
  EXPECT_TRUE(index_.Find(key_)->ReadableFrom(TierSet::Of(kNvme)));
  EXPECT_FALSE(index_.Find(key_)->ReadableFrom(TierSet::Of(kPfs)));
  Stage(two_);
  EXPECT_TRUE(index_.Find(key_)->ReadableFrom({}));
}

TEST_F(ChunkIndexTest, TwoContentsOfOneKeyStayApart) {
  Add(one_, kNvme);
  Add(two_, kPfs);
  const IndexEntry* entry = index_.Find(key_);
  ASSERT_EQ(entry->copies.size(), 2u);
  EXPECT_EQ(entry->copies[0].tiers, TierSet::Of(kNvme));
  EXPECT_EQ(entry->copies[1].tiers, TierSet::Of(kPfs));
  EXPECT_FALSE(Remove(one_, kNvme));
  ASSERT_EQ(entry->copies.size(), 1u);
  EXPECT_EQ(entry->copies[0].content, two_);
}

TEST_F(ChunkIndexTest, OldFailureCannotUndoANewerSuccess) {
  Add(two_, kNvme);
  EXPECT_FALSE(Remove(one_, kNvme));
  EXPECT_FALSE(Remove(two_, kPfs));
  EXPECT_FALSE(index_.RemoveStaged(key_, two_));
  ASSERT_NE(index_.Find(key_), nullptr);
  EXPECT_EQ(index_.Find(key_)->copies[0].tiers, TierSet::Of(kNvme));
}

TEST_F(ChunkIndexTest, WithdrawingFromAnUnknownKeyIsIgnored) {
  EXPECT_FALSE(Remove(one_, kNvme));
  EXPECT_FALSE(index_.RemoveStaged(key_, one_));
}

TEST_F(ChunkIndexTest, StagedCopyComesFirstThenTheOneOnMoreTiers) {
  Add(one_, kNvme);
  Add(two_, kPfs);
  EXPECT_EQ(index_.Find(key_)->copies[0].content, one_);
  Add(two_, kArchive);
  EXPECT_EQ(index_.Find(key_)->copies[0].content, two_);
  Stage(one_);
  EXPECT_EQ(index_.Find(key_)->copies[0].content, one_);
  index_.RemoveStaged(key_, one_);
  EXPECT_EQ(index_.Find(key_)->copies[0].content, two_);
  Remove(two_, kPfs);
  Remove(two_, kArchive);
  EXPECT_EQ(index_.Find(key_)->copies[0].content, one_);
}

TEST_F(ChunkIndexTest, TierHasOneFileOfAKey) {
  Add(one_, kNvme);
  Add(one_, kPfs);
  Add(two_, kNvme);  // Another node has replaced it.
  const IndexEntry* entry = index_.Find(key_);
  ASSERT_EQ(entry->copies.size(), 2u);
  EXPECT_EQ(entry->copies[0].tiers, TierSet::Of(kPfs));
  EXPECT_EQ(entry->copies[1].tiers, TierSet::Of(kNvme));
  Add(two_, kPfs);
  entry = index_.Find(key_);
  ASSERT_EQ(entry->copies.size(), 1u);
  EXPECT_EQ(entry->copies[0].content, two_);
}

TEST_F(ChunkIndexTest, FileThatGoesIsWithdrawnWhateverItsContent) {
  Stage(one_);
  Add(two_, kNvme);
  EXPECT_FALSE(index_.RemoveReplicas(key_, kPfs));
  EXPECT_FALSE(index_.RemoveReplicas(key_, kNvme));
  ASSERT_EQ(index_.Find(key_)->copies.size(), 1u);
  EXPECT_EQ(index_.Find(key_)->copies[0].content, one_);
  index_.RemoveStaged(key_, one_);
  EXPECT_FALSE(index_.RemoveReplicas(key_, kNvme));
  Add(one_, kNvme);
  EXPECT_TRUE(index_.RemoveReplicas(key_, kNvme));
}

TEST_F(ChunkIndexTest, LeasesSurviveChangesOfTheCopies) {
  Stage(one_);
  EXPECT_TRUE(index_.AddLease(key_));
  EXPECT_TRUE(index_.AddLease(key_));
  Add(one_, kNvme);
  index_.RemoveStaged(key_, one_);
  EXPECT_EQ(index_.Find(key_)->leases, 2u);
  index_.DropLease(key_);
  EXPECT_EQ(index_.Find(key_)->leases, 1u);
}

TEST_F(ChunkIndexTest, LeasesGoWithTheLastCopy) {
  Stage(one_);
  EXPECT_TRUE(index_.AddLease(key_));
  EXPECT_TRUE(index_.RemoveStaged(key_, one_));
  index_.DropLease(key_);
  Stage(one_);
  EXPECT_EQ(index_.Find(key_)->leases, 0u);
  index_.DropLease(key_);
  EXPECT_EQ(index_.Find(key_)->leases, 0u);
}

TEST_F(ChunkIndexTest, UnknownKeyTakesNoLease) { EXPECT_FALSE(index_.AddLease(key_)); }

TEST_F(ChunkIndexTest, UsageCountsEachChunkOnceInItsNamespace) {
  Add(one_, kNvme);
  Add(one_, kPfs);
  Stage(two_);
  key_.bytes[0] = 2;
  Add(one_, kNvme);
  key_.bytes[0] = 3;
  const NamespaceId first = name_space_;
  name_space_.bytes[0] = 1;
  Add(one_, kNvme);
  const auto usage = index_.usage();
  ASSERT_EQ(usage.size(), 2u);
  EXPECT_EQ(usage.at(first).chunks, 2u);
  EXPECT_EQ(usage.at(first).bytes, 2 * kShape.payload_bytes);
  EXPECT_EQ(usage.at(name_space_).chunks, 1u);
  EXPECT_TRUE(Remove(one_, kNvme));
  EXPECT_FALSE(index_.usage().contains(name_space_)) << "its last chunk is gone";
  key_.bytes[0] = 2;
  EXPECT_TRUE(Remove(one_, kNvme));
  EXPECT_EQ(index_.usage().at(first).chunks, 1u);
  EXPECT_EQ(index_.usage().at(first).bytes, kShape.payload_bytes);
}

using ChunkIndexDeathTest = ChunkIndexTest;

TEST_F(ChunkIndexDeathTest, AnotherShapeForOneKeyIsNeverTaken) {
  Add(one_, kNvme);
  EXPECT_DEATH(index_.AddStaged(key_, name_space_, {5999, 4096}, two_, checksums_), "shape");
}

TEST_F(ChunkIndexDeathTest, ChecksumsThatDoNotMatchTheShapeAreNeverTaken) {
  EXPECT_DEATH(index_.AddStaged(key_, name_space_, {4096, 4096}, one_, checksums_), "checksums");
}

TEST_F(ChunkIndexTest, AFailureOfAnOlderFileUndoesNoPublicationOfTheSameContent) {
  Add(one_, kNvme);
  const uint16_t first = Generation(kNvme);
  Add(one_, kNvme);  // It is there.
  Add(one_, kPfs);   // Of another tier.
  EXPECT_EQ(Generation(kNvme), first);
  EXPECT_FALSE(index_.RemoveReplicas(key_, kNvme));
  EXPECT_EQ(Generation(kNvme), 0);
  Add(one_, kNvme);
  EXPECT_NE(Generation(kNvme), first);
  EXPECT_FALSE(index_.RemoveReplica(key_, one_, kNvme, first));
  EXPECT_FALSE(index_.RemoveReplica(key_, one_, kNvme, 0));
  EXPECT_TRUE(index_.Find(key_)->copies[0].tiers.Has(kNvme));
  EXPECT_FALSE(index_.RemoveReplica(key_, one_, kNvme, Generation(kNvme)));
  EXPECT_EQ(index_.Find(key_)->copies[0].tiers, TierSet::Of(kPfs));
}

TEST_F(ChunkIndexTest, AFailureOfAnOlderFileUndoesNoPublicationOfAKeyThatWasGone) {
  Add(one_, kNvme);
  const uint16_t first = Generation(kNvme);
  EXPECT_TRUE(index_.RemoveReplicas(key_, kNvme));
  Add(one_, kNvme);
  EXPECT_FALSE(index_.RemoveReplica(key_, one_, kNvme, first));
  EXPECT_NE(index_.Find(key_), nullptr);
}

}  // namespace
}  // namespace kvstream::store
