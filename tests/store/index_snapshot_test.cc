#include "server/store/index_snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "server/store/chunk_format.h"

namespace kvstream::store {
namespace {

struct Sample {
  OwnFile file;
  std::vector<uint64_t> checksums;
};

// `count` files of three shapes in two namespaces.
std::vector<Sample> Samples(size_t count) {
  constexpr ChunkShape kShapes[] = {{4096, 4096}, {10000, 4096}, {65536, 16384}};
  std::mt19937_64 random(7);
  std::vector<Sample> samples(count);
  for (size_t i = 0; i < count; ++i) {
    Sample& sample = samples[i];
    ChunkFacts& chunk = sample.file.chunk;
    chunk.shape = kShapes[i % 3];
    chunk.name_space.bytes[0] = static_cast<uint8_t>(i % 2);
    for (uint8_t& byte : chunk.key.bytes) byte = static_cast<uint8_t>(random());
    chunk.siblings.value = random();
    if (i % 4 != 0) sample.file.before = SiblingsId{random()};
    sample.file.unused_seconds = static_cast<uint32_t>(i);
    for (uint32_t s = 0; s < chunk.shape.segments(); ++s) sample.checksums.push_back(random());
    chunk.content = ContentIdOf(chunk.shape, sample.checksums);
    chunk.checksums = sample.checksums;
  }
  return samples;
}

constexpr uint64_t kWrittenAt = 1796000000;

// Written in pieces.
std::string SnapshotOf(const std::vector<Sample>& samples) {
  SnapshotWriter writer;
  std::string body;
  for (const Sample& sample : samples) {
    writer.Add(sample.file);
    if (writer.pending_bytes() > 1000) body += writer.Take();
  }
  body += writer.Take();
  EXPECT_EQ(writer.files(), samples.size());
  return writer.Header(kWrittenAt) + body;
}

TEST(IndexSnapshotTest, WhatWasWrittenIsReadTheYoungestFirst) {
  const auto samples = Samples(1000);
  const auto reader = SnapshotReader::Open(SnapshotOf(samples));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->files(), 1000u);
  EXPECT_EQ(reader->seconds(), kWrittenAt);
  uint64_t bytes = 0;
  size_t read = samples.size();
  reader->ForEach([&](const OwnFile& got) {
    const OwnFile& want = samples.at(--read).file;
    EXPECT_EQ(got.chunk.key, want.chunk.key);
    EXPECT_EQ(got.chunk.siblings, want.chunk.siblings);
    EXPECT_EQ(got.chunk.name_space, want.chunk.name_space);
    EXPECT_EQ(got.chunk.shape, want.chunk.shape);
    EXPECT_EQ(got.chunk.content, want.chunk.content);
    EXPECT_TRUE(std::ranges::equal(got.chunk.checksums, want.chunk.checksums));
    EXPECT_EQ(got.before, want.before);
    EXPECT_EQ(got.unused_seconds, want.unused_seconds);
    bytes += want.chunk.shape.file_bytes();
    return true;
  });
  EXPECT_EQ(read, 0u);
  EXPECT_EQ(reader->file_bytes(), bytes);
}

TEST(IndexSnapshotTest, AReaderThatHasEnoughIsGivenNoMore) {
  const auto reader = SnapshotReader::Open(SnapshotOf(Samples(10)));
  size_t read = 0;
  reader->ForEach([&](const OwnFile&) { return ++read < 3; });
  EXPECT_EQ(read, 3u);
}

TEST(IndexSnapshotTest, OneOfNoFilesIsWhole) {
  EXPECT_EQ(SnapshotReader::Open(SnapshotOf({}))->files(), 0u);
}

TEST(IndexSnapshotTest, EveryFlippedBitAndEveryCutIsNoticed) {
  const std::string file = SnapshotOf(Samples(3));
  for (size_t bit = 0; bit < 8 * file.size(); ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(SnapshotReader::Open(flipped).ok()) << bit;
  }
  for (size_t bytes = 0; bytes < file.size(); ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(SnapshotReader::Open(file.substr(0, bytes)).status())) << bytes;
  }
  EXPECT_TRUE(absl::IsDataLoss(SnapshotReader::Open(file + '\0').status()));
}

TEST(IndexSnapshotTest, ANewerVersionIsNamed) {
  std::string file = SnapshotOf(Samples(3));
  file[8] = 2;
  EXPECT_EQ(SnapshotReader::Open(file).status(),
            absl::UnimplementedError("index snapshot: version 2"));
}

}  // namespace
}  // namespace kvstream::store
