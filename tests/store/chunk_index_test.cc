#include "server/store/chunk_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <utility>
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

  ChunkFacts Facts(const ContentId& content, const ChunkShape& shape = kShape) const {
    return {key_, {}, name_space_, shape, content, checksums_};
  }
  void Add(const ContentId& content, TierId tier) { index_.AddReplica(Facts(content), tier); }
  uint16_t Generation(TierId tier) { return index_.GenerationOf(key_, one_, tier); }
  // As a failure of what is there now.
  bool Remove(const ContentId& content, TierId tier) {
    return index_.RemoveReplica(key_, content, tier, index_.GenerationOf(key_, content, tier));
  }
  void Stage(const ContentId& content) { index_.AddStaged(Facts(content)); }

  const std::vector<uint64_t> checksums_ = {11, 22};
  NamespaceId name_space_;
  KeyDigest key_;
  ContentId one_;
  ContentId two_;
  ChunkIndex index_;
};

TEST_F(ChunkIndexTest, UnknownKeyIsNotFound) {
  EXPECT_FALSE(index_.Find(key_).has_value());
  EXPECT_EQ(index_.chunks(), 0u);
}

TEST_F(ChunkIndexTest, ReplicaIsFoundWithAllThatWasSaidOfIt) {
  name_space_.bytes[3] = 4;
  Add(one_, kPfs);
  const auto entry = index_.Find(key_);
  ASSERT_TRUE(entry.has_value());
  EXPECT_EQ(entry->name_space, name_space_);
  EXPECT_EQ(entry->shape, kShape);
  ASSERT_EQ(entry->copies.size(), 1u);
  EXPECT_EQ(entry->copies[0].content, one_);
  EXPECT_EQ(entry->copies[0].tiers, TierSet::Of(kPfs));
  EXPECT_FALSE(entry->copies[0].staged);
  EXPECT_TRUE(std::ranges::equal(entry->copies[0].checksums, checksums_));
}

TEST_F(ChunkIndexTest, ReplicasOfOneContentAreOneCopy) {
  Stage(one_);
  Add(one_, kNvme);
  Add(one_, kPfs);
  Add(one_, kPfs);
  const auto entry = index_.Find(key_);
  ASSERT_EQ(entry->copies.size(), 1u);
  EXPECT_TRUE(entry->copies[0].staged);
  EXPECT_EQ(entry->copies[0].tiers.size(), 2);
  EXPECT_EQ(index_.chunks(), 1u);
}

TEST_F(ChunkIndexTest, VisibleMeansThatSomeCopyIsThere) {
  Stage(one_);
  Add(one_, kNvme);
  EXPECT_FALSE(index_.RemoveStaged(key_, one_));
  ASSERT_TRUE(index_.Find(key_).has_value());
  EXPECT_FALSE(index_.Find(key_)->copies[0].staged);
  EXPECT_TRUE(Remove(one_, kNvme));
  EXPECT_FALSE(index_.Find(key_).has_value());
  EXPECT_EQ(index_.chunks(), 0u);
}

TEST_F(ChunkIndexTest, ALookSaysWhatIsStagedAndOnWhichTiers) {
  Add(one_, kNvme);
  EXPECT_EQ(index_.Look(key_).tiers, TierSet::Of(kNvme));
  EXPECT_FALSE(index_.Look(key_).staged);
  EXPECT_FALSE(index_.Look(key_).hinted);
  Stage(two_);
  EXPECT_TRUE(index_.Look(key_).staged);
  EXPECT_TRUE(index_.Look({}).tiers.empty());
  EXPECT_FALSE(index_.Look({}).staged);
}

TEST_F(ChunkIndexTest, TwoContentsOfOneKeyStayApart) {
  Add(one_, kNvme);
  Add(two_, kPfs);
  const auto entry = index_.Find(key_);
  ASSERT_EQ(entry->copies.size(), 2u);
  EXPECT_EQ(entry->copies[0].tiers, TierSet::Of(kNvme));
  EXPECT_EQ(entry->copies[1].tiers, TierSet::Of(kPfs));
  EXPECT_FALSE(Remove(one_, kNvme));
  const auto rest = index_.Find(key_);
  ASSERT_EQ(rest->copies.size(), 1u);
  EXPECT_EQ(rest->copies[0].content, two_);
}

TEST_F(ChunkIndexTest, OldFailureCannotUndoANewerSuccess) {
  Add(two_, kNvme);
  EXPECT_FALSE(Remove(one_, kNvme));
  EXPECT_FALSE(Remove(two_, kPfs));
  EXPECT_FALSE(index_.RemoveStaged(key_, two_));
  ASSERT_TRUE(index_.Find(key_).has_value());
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
  auto entry = index_.Find(key_);
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

// What a file says of itself is believed less than what a client says.
TEST_F(ChunkIndexTest, FilesOfAnotherShapeThanAClientsAreWithdrawn) {
  Add(one_, kNvme);
  index_.WithdrawOthers(key_, name_space_, kShape);
  EXPECT_TRUE(index_.OnTiers(key_, TierSet::Of(kNvme)));
  index_.AddStaged(Facts(two_, {5999, 4096}));
  EXPECT_FALSE(index_.OnTiers(key_, TierSet::Of(kNvme)));
  EXPECT_EQ(index_.Find(key_)->shape, (ChunkShape{5999, 4096}));
  EXPECT_FALSE(index_.AddFound({Facts(one_), std::nullopt, 0}, kNvme, 0));
  index_.WithdrawOthers(key_, name_space_, {5999, 4096});
  EXPECT_TRUE(index_.Find(key_)->copies.at(0).staged);
}

using ChunkIndexDeathTest = ChunkIndexTest;

TEST_F(ChunkIndexDeathTest, AnotherShapeThanAStagedChunksIsNeverTaken) {
  Stage(one_);
  EXPECT_DEATH(index_.AddStaged(Facts(two_, {5999, 4096})), "shape");
}

TEST_F(ChunkIndexDeathTest, ChecksumsThatDoNotMatchTheShapeAreNeverTaken) {
  EXPECT_DEATH(index_.AddStaged(Facts(one_, {4096, 4096})), "checksums");
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
  EXPECT_TRUE(index_.Find(key_).has_value());
}

// What it keeps of each key, said plainly.
struct PlainCopy {
  TierSet tiers;
  bool staged = false;
  std::vector<uint64_t> checksums;
};

class PlainIndex {
 public:
  void Add(uint8_t key, uint8_t content, std::vector<uint64_t> checksums, int tier) {
    PlainCopy& copy = keys_[key][content];
    copy.checksums = std::move(checksums);
    if (tier < 0) {
      copy.staged = true;
      return;
    }
    copy.tiers.Add(TierId{static_cast<uint32_t>(tier)});
    Remove(key, tier, [content](uint8_t other) { return other != content; });
  }
  void Remove(uint8_t key, int tier, const std::function<bool(uint8_t)>& of) {
    auto& copies = keys_[key];
    for (auto& [content, copy] : copies) {
      if (!of(content)) continue;
      if (tier < 0) copy.staged = false;
      if (tier >= 0) copy.tiers.Remove(TierId{static_cast<uint32_t>(tier)});
    }
    std::erase_if(copies, [](const auto& entry) {
      return !entry.second.staged && entry.second.tiers.empty();
    });
    if (copies.empty()) keys_.erase(key);
  }
  const std::map<uint8_t, std::map<uint8_t, PlainCopy>>& keys() const { return keys_; }

 private:
  std::map<uint8_t, std::map<uint8_t, PlainCopy>> keys_;
};

TEST(ChunkIndexModelTest, AgreesWithAPlainOneWhateverComes) {
  constexpr ChunkShape kShapes[] = {{4096, 4096}, {6000, 4096}, {20000, 4096}};
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    ChunkIndex index;
    PlainIndex plain;
    const auto key_of = [](uint8_t key) {
      KeyDigest d;
      d.bytes[0] = key;
      d.bytes[9] = 1;
      return d;
    };
    const auto content_of = [](uint8_t content) {
      ContentId id;
      id.bytes[3] = content;
      return id;
    };
    for (int step = 0; step < 20000; ++step) {
      const auto key = static_cast<uint8_t>(random() % 40);
      const auto content = static_cast<uint8_t>(random() % 3);
      const int tier = static_cast<int>(random() % 4) - 1;
      NamespaceId name_space;
      name_space.bytes[0] = key % 3;
      const ChunkShape shape = kShapes[key % 3];
      std::vector<uint64_t> checksums(shape.segments());
      for (size_t i = 0; i < checksums.size(); ++i) checksums[i] = 100 * key + 10 * content + i;
      if (random() % 2 == 0) {
        const ChunkFacts facts{key_of(key), {key / 4U},          name_space,
                               shape,       content_of(content), checksums};
        if (tier < 0) {
          index.AddStaged(facts);
        } else {
          index.AddReplica(facts, TierId{static_cast<uint32_t>(tier)});
        }
        plain.Add(key, content, checksums, tier);
      } else if (tier < 0) {
        index.RemoveStaged(key_of(key), content_of(content));
        plain.Remove(key, -1, [content](uint8_t other) { return other == content; });
      } else {
        index.RemoveReplicas(key_of(key), TierId{static_cast<uint32_t>(tier)});
        plain.Remove(key, tier, [](uint8_t) { return true; });
      }
      ASSERT_EQ(index.chunks(), plain.keys().size());
      const auto entry = index.Find(key_of(key));
      const auto expected = plain.keys().find(key);
      ASSERT_EQ(entry.has_value(), expected != plain.keys().end());
      if (!entry) continue;
      ASSERT_EQ(entry->shape, shape);
      ASSERT_EQ(entry->name_space, name_space);
      ASSERT_EQ(entry->copies.size(), expected->second.size());
      for (const ContentCopy& copy : entry->copies) {
        const PlainCopy& is = expected->second.at(copy.content.bytes[3]);
        ASSERT_EQ(copy.tiers, is.tiers);
        ASSERT_EQ(copy.staged, is.staged);
        ASSERT_TRUE(std::ranges::equal(copy.checksums, is.checksums));
      }
    }
    // All of one namespace have one shape: what the last one leaves is nothing.
    for (uint8_t key = 0; key < 40; ++key) {
      for (uint32_t tier = 0; tier < 3; ++tier) index.RemoveReplicas(key_of(key), TierId{tier});
      for (uint8_t content = 0; content < 3; ++content) {
        index.RemoveStaged(key_of(key), content_of(content));
      }
    }
    EXPECT_EQ(index.chunks(), 0u);
    EXPECT_TRUE(index.usage().empty());
  }
}

TEST(ChunkIndexMemoryTest, AChunkOfOneSegmentTakesLittle) {
  ChunkIndex index;
  constexpr uint64_t kChunks = 200000;
  const std::vector<uint64_t> checksums = {1};
  std::mt19937_64 random(1);
  for (uint64_t i = 0; i < kChunks; ++i) {
    KeyDigest key;
    for (size_t at = 0; at < 16; at += 8) {
      const uint64_t word = random();
      std::memcpy(key.bytes.data() + at, &word, sizeof word);
    }
    ContentId content;
    content.bytes = key.bytes;
    const ChunkFacts facts{key, {i}, {}, {kMiB, kMiB}, content, checksums};
    index.AddReplica(facts, kNvme);
    index.AddReplica(facts, kPfs);
  }
  EXPECT_EQ(index.chunks(), kChunks);
  EXPECT_LE(index.memory_bytes() / kChunks, 160u);
  EXPECT_EQ(index.tier_usage(kNvme).files, kChunks);
}

}  // namespace
}  // namespace kvstream::store
