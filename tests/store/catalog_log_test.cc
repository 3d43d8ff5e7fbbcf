#include "server/store/catalog_log.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "server/store/chunk_format.h"

namespace kvstream::store {
namespace {

using What = CatalogEntry::What;

constexpr NodeId kNode{{1, 2, 3}};

// An entry with what its checksums point to.
struct EntrySample {
  CatalogEntry entry;
  std::vector<uint64_t> checksums;
};

std::vector<EntrySample> EntrySamples(size_t count, uint64_t seed = 7) {
  constexpr ChunkShape kShapes[] = {{4096, 4096}, {10000, 4096}, {480 * 4096, 4096}};
  std::mt19937_64 random(seed);
  std::vector<EntrySample> samples(count);
  for (size_t i = 0; i < count; ++i) {
    EntrySample& sample = samples[i];
    ChunkFacts& chunk = sample.entry.chunk;
    for (uint8_t& byte : chunk.key.bytes) byte = static_cast<uint8_t>(random());
    chunk.siblings.value = random();
    if (i % 7 == 5) sample.entry.what = What::kGone;
    if (i % 7 == 6) sample.entry.what = What::kUsed;
    if (sample.entry.what != What::kFile) continue;
    chunk.shape = kShapes[i % 3];
    chunk.name_space.bytes[0] = static_cast<uint8_t>(i % 2);
    if (i % 4 != 0) sample.entry.before = SiblingsId{random()};
    for (uint32_t s = 0; s < chunk.shape.segments(); ++s) sample.checksums.push_back(random());
    chunk.content = ContentIdOf(chunk.shape, sample.checksums);
    chunk.checksums = sample.checksums;
  }
  return samples;
}

std::string FrameOf(const std::vector<EntrySample>& samples) {
  CatalogFrame frame;
  for (const EntrySample& sample : samples) frame.Add(sample.entry);
  return frame.Take(kNode);
}

void ExpectSame(const CatalogEntry& a, const CatalogEntry& b) {
  ASSERT_EQ(a.what, b.what);
  if (a.what == What::kUsed) {
    EXPECT_EQ(a.chunk.siblings, b.chunk.siblings);
    return;
  }
  EXPECT_EQ(a.chunk.key, b.chunk.key);
  if (a.what == What::kGone) return;
  EXPECT_EQ(a.chunk.siblings, b.chunk.siblings);
  EXPECT_EQ(a.chunk.name_space, b.chunk.name_space);
  EXPECT_EQ(a.chunk.shape, b.chunk.shape);
  EXPECT_EQ(a.chunk.content, b.chunk.content);
  EXPECT_TRUE(std::ranges::equal(a.chunk.checksums, b.chunk.checksums));
  EXPECT_EQ(a.before, b.before);
}

TEST(CatalogLogTest, WhatWasAddedToAFrameIsRead) {
  const auto samples = EntrySamples(200);
  const std::string frame = FrameOf(samples);
  const FrameSeen seen = CheckFrame(frame + "more");
  ASSERT_EQ(seen.state, FrameState::kWhole);
  EXPECT_EQ(seen.bytes, frame.size());
  EXPECT_EQ(seen.node, kNode);
  size_t at = 0;
  ForEachEntry(frame, [&](const CatalogEntry& entry) {
    ASSERT_LT(at, samples.size());
    ExpectSame(entry, samples[at++].entry);
  });
  EXPECT_EQ(at, samples.size());
}

TEST(CatalogLogTest, TheLargestFrameIsNoLargerThanAFrameMayBe) {
  CatalogFrame frame;
  const auto samples = EntrySamples(3);  // The last of them has most segments.
  while (!frame.full()) frame.Add(samples[2].entry);
  EXPECT_LE(frame.Take(kNode).size(), kFrameBytesMax);
  EXPECT_TRUE(frame.empty());
}

TEST(CatalogLogTest, AFrameThatIsCutShortIsNotFinished) {
  const std::string frame = FrameOf(EntrySamples(5));
  for (size_t bytes = 0; bytes < frame.size(); ++bytes) {
    EXPECT_EQ(CheckFrame(frame.substr(0, bytes)).state, FrameState::kUnfinished) << bytes;
  }
}

TEST(CatalogLogTest, NoFlippedBitPasses) {
  const std::string frame = FrameOf(EntrySamples(8));
  for (size_t bit = 0; bit < frame.size() * 8; ++bit) {
    std::string damaged = frame;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    // A length that has grown may look as if more were to come.
    EXPECT_NE(CheckFrame(damaged).state, FrameState::kWhole) << bit;
  }
}

TEST(CatalogLogTest, AFrameThatSaysNonsenseWithTheRightChecksumIsDamaged) {
  // A file of no kind: the first entry is not the kind's.
  const auto samples = EntrySamples(1);
  CatalogFrame frame;
  frame.Add(samples[0].entry);
  const std::string whole = frame.Take(kNode);
  constexpr size_t kHeader = 32;
  constexpr size_t kKind = 33;
  const std::string body = whole.substr(kHeader + kKind);
  CatalogFrame other;
  other.Add({What::kUsed, {}, {}});
  std::string forged = other.Take(kNode);
  // As if that body had been added: by way of the writer's own header of the same length.
  forged = whole.substr(0, kHeader) + body + std::string(kKind, '\3');
  EXPECT_NE(CheckFrame(forged).state, FrameState::kWhole);
}

TEST(CatalogLogTest, TheNextFrameIsFoundBehindADamagedOne) {
  const std::string frame = FrameOf(EntrySamples(3));
  EXPECT_EQ(BytesToNextFrame("rubbish" + frame), 7u);
  EXPECT_EQ(BytesToNextFrame("KVSFrubbish" + frame), 11u);
  EXPECT_EQ(BytesToNextFrame("rubbishKVS"), 7u) << "the beginning of a magic may be cut";
  EXPECT_GE(BytesToNextFrame("K"), 1u);
}

TEST(CatalogLogTest, AHeaderSaysWhoWritesAndNothingElsePasses) {
  const std::string header = EncodeCatalogHeader({kNode, 9});
  ASSERT_EQ(header.size(), kCatalogHeaderBytes);
  const auto read = DecodeCatalogHeader(header + "frames");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->writer, kNode);
  EXPECT_EQ(read->number, 9u);
  for (size_t byte = 0; byte < header.size(); ++byte) {
    std::string damaged = header;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 1);
    const bool version = byte >= 8 && byte < 12;
    EXPECT_EQ(DecodeCatalogHeader(damaged).status().code(),
              version ? absl::StatusCode::kUnimplemented : absl::StatusCode::kDataLoss)
        << byte;
  }
  EXPECT_TRUE(absl::IsDataLoss(DecodeCatalogHeader(header.substr(1)).status()));
}

TEST(CatalogLogTest, OfALogWhatIsThereAtItsEndIsLive) {
  const auto samples = EntrySamples(3);
  CatalogEntry gone{What::kGone, {}, {}};
  gone.chunk.key = samples[1].entry.chunk.key;
  CatalogFrame frame;
  frame.Add(samples[0].entry);
  frame.Add(samples[1].entry);
  std::string log = frame.Take(kNode);
  frame.Add(gone);
  frame.Add(samples[2].entry);
  frame.Add(samples[0].entry);
  log += frame.Take(kNode);
  std::vector<KeyDigest> live;
  const auto visit = [&](const CatalogEntry& file) {
    live.push_back(file.chunk.key);
    return true;
  };
  EXPECT_EQ(ReadLiveFiles(log + "KVSF, and cut short", visit), log.size());
  EXPECT_EQ(live, (std::vector<KeyDigest>{samples[2].entry.chunk.key, samples[0].entry.chunk.key}));
  // Gone, and back.
  frame.Add(samples[1].entry);
  log += frame.Take(kNode);
  live.clear();
  ReadLiveFiles(log, visit);
  EXPECT_EQ(live.size(), 3u);
}

}  // namespace
}  // namespace kvstream::store
