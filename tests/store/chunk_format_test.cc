#include "server/store/chunk_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>

#include "server/store/encoding.h"
#include "tests/store/sample.h"

namespace kvstream::store {
namespace {

using ::testing::HasSubstr;

constexpr ChunkShape kSmall{.payload_bytes = 3 * 4096 + 5, .segment_bytes = 8192};

// Writes `value` at `at` and makes the header checksum right again: what a faulty writer does.
template <typename Int>
Block Forged(Block block, size_t at, Int value) {
  StoreLe(value, &block[at]);
  StoreLe(uint64_t{0}, &block[16]);
  // Unseeded XXH3-64 and the low half of XXH3-128 are equal for long inputs.
  const auto digest = Xxh3Digest({reinterpret_cast<const char*>(block.data()), block.size()});
  for (size_t i = 0; i < 8; ++i) block[16 + i] = static_cast<std::byte>(digest[15 - i]);
  return block;
}

void ExpectDamaged(const absl::StatusOr<ChunkHeader>& decoded, const std::string& cause) {
  EXPECT_EQ(decoded.status().code(), absl::StatusCode::kDataLoss) << decoded.status();
  EXPECT_THAT(std::string(decoded.status().message()), HasSubstr(cause));
}

TEST(ChunkFormatTest, HeadersOfManyShapesComeBackAsTheyWere) {
  const ChunkShape shapes[] = {
      {1, 4096},
      {4095, 4096},
      {4096, 4096},
      {4097, 4096},
      {8 * 4096, 4096},
      {kSegmentsMax * uint64_t{4096}, 4096},
      {3 * kMiB + 1, kMiB},
      {1, uint64_t{1} << 40},
      {(kSegmentsMax - 1) * uint64_t{4096} + 1, 4096},
  };
  for (const ChunkShape& shape : shapes) {
    for (size_t hash_bytes : {kPrefixHashBytesMin, size_t{20}, kPrefixHashBytesMax}) {
      ChunkKey key = SampleKey();
      key.prefix_hash.assign(hash_bytes, 'x');
      const ChunkHeader header = SampleHeader(key, shape);
      const auto decoded =
          DecodeHeaderOf(DigestOfKey(key), EncodedBlock(header), shape.file_bytes());
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_EQ(decoded->encoded_key, header.encoded_key);
      EXPECT_EQ(decoded->shape, shape);
      EXPECT_EQ(decoded->checksums, header.checksums);
      EXPECT_EQ(decoded->content, header.content);
    }
  }
}

TEST(ChunkFormatTest, EveryFlippedBitOfAHeaderIsNoticed) {
  Block block = EncodedBlock(SampleHeader(SampleKey(), kSmall));
  for (size_t bit = 0; bit < kHeaderBytes * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1u << (bit % 8));
    block[bit / 8] ^= mask;
    EXPECT_FALSE(DecodeHeader(block).ok()) << "bit " << bit;
    block[bit / 8] ^= mask;
  }
  EXPECT_TRUE(DecodeHeader(block).ok());
}

TEST(ChunkFormatTest, EveryFlippedBitIsNoticedEvenUnderARightHeaderChecksum) {
  const Block block = EncodedBlock(SampleHeader(SampleKey(), kSmall));
  for (size_t bit = 0; bit < kHeaderBytes * 8; ++bit) {
    if (bit / 64 == 2) continue;  // The header checksum itself is made right again.
    const auto flipped = std::to_integer<uint8_t>(block[bit / 8]) ^ (1u << (bit % 8));
    const Block forged = Forged(block, bit / 8, static_cast<uint8_t>(flipped));
    EXPECT_FALSE(DecodeHeader(forged).ok()) << "bit " << bit;
  }
}

TEST(ChunkFormatTest, RandomBytesNeverDecode) {
  std::mt19937_64 random(7);
  const Block good = EncodedBlock(SampleHeader(SampleKey(), kSmall));
  for (int round = 0; round < 2000; ++round) {
    Block block = good;
    // Everything behind the version is noise under a right checksum.
    for (size_t at = 24; at < block.size(); at += 8) StoreLe(uint64_t{random()}, &block[at]);
    EXPECT_FALSE(DecodeHeader(Forged(block, 12, static_cast<uint32_t>(random() % 600))).ok());
  }
}

TEST(ChunkFormatTest, UnknownVersionIsNotDamage) {
  const Block block = EncodedBlock(SampleHeader(SampleKey(), kSmall));
  const Block newer = Forged(block, 8, kFormatVersion + 1);
  EXPECT_EQ(DecodeHeader(newer).status().code(), absl::StatusCode::kUnimplemented);
  // Another version may have another checksum: it is not looked at.
  Block unchecked = block;
  StoreLe(kFormatVersion + 1, &unchecked[8]);
  EXPECT_EQ(DecodeHeader(unchecked).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(ChunkFormatTest, FieldsThatContradictEachOtherAreDamage) {
  const Block block = EncodedBlock(SampleHeader(SampleKey(), kSmall));
  ASSERT_TRUE(DecodeHeader(Forged(block, 12, uint32_t{2})).ok()) << "the forger must be able";
  const uint64_t huge = std::numeric_limits<uint64_t>::max();
  ExpectDamaged(DecodeHeader(Forged(block, 0, uint8_t{'k'})), "magic");
  ExpectDamaged(DecodeHeader(Forged(block, 12, uint32_t{0})), "shape");
  ExpectDamaged(DecodeHeader(Forged(block, 12, uint32_t{3})), "shape");
  ExpectDamaged(DecodeHeader(Forged(block, 12, kSegmentsMax + 1)), "shape");
  ExpectDamaged(DecodeHeader(Forged(block, 12, uint32_t{0xffffffff})), "shape");
  ExpectDamaged(DecodeHeader(Forged(block, 24, uint64_t{0})), "shape");
  ExpectDamaged(DecodeHeader(Forged(block, 24, huge)), "shape");
  ExpectDamaged(DecodeHeader(Forged(block, 24, kSmall.payload_bytes + 1)), "content");
  ExpectDamaged(DecodeHeader(Forged(block, 32, uint64_t{0})), "shape");
  ExpectDamaged(DecodeHeader(Forged(block, 32, uint64_t{8193})), "shape");
  ExpectDamaged(DecodeHeader(Forged(block, 32, huge - 4095)), "shape");
  ExpectDamaged(DecodeHeader(Forged(block, 40, uint64_t{1})), "content");
  ExpectDamaged(DecodeHeader(Forged(block, 56, uint64_t{1})), "namespace");
  ExpectDamaged(DecodeHeader(Forged(block, 72, uint64_t{1})), "digest");
  ExpectDamaged(DecodeHeader(Forged(block, 88, uint32_t{0})), "key is malformed");
  ExpectDamaged(DecodeHeader(Forged(block, 88, uint32_t{110})), "key is too long");
  ExpectDamaged(DecodeHeader(Forged(block, 88, uint32_t{0xffffffff})), "key is too long");
  ExpectDamaged(DecodeHeader(Forged(block, 255, uint8_t{1})), "reserved");
  ExpectDamaged(DecodeHeader(Forged(block, 256 + 2 * 8, uint64_t{1})), "more checksums");
}

TEST(ChunkFormatTest, ShortBlockIsDamage) {
  const Block block = EncodedBlock(SampleHeader(SampleKey(), kSmall));
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{200}, kHeaderBytes - 1}) {
    ExpectDamaged(DecodeHeader(std::span(block).first(bytes)), "not 4096 bytes");
  }
}

TEST(ChunkFormatTest, SwappedFileIsDamage) {
  const Block block = EncodedBlock(SampleHeader(SampleKey(1), kSmall));
  ExpectDamaged(DecodeHeaderOf(DigestOfKey(SampleKey(2)), block, kSmall.file_bytes()),
                "another key");
}

TEST(ChunkFormatTest, TruncatedOrGrownFileIsDamage) {
  const Block block = EncodedBlock(SampleHeader(SampleKey(), kSmall));
  const KeyDigest key = DigestOfKey(SampleKey());
  ExpectDamaged(DecodeHeaderOf(key, block, kSmall.file_bytes() - 1), "not 20480");
  ExpectDamaged(DecodeHeaderOf(key, block, kHeaderBytes), "not 20480");
  ExpectDamaged(DecodeHeaderOf(key, block, kSmall.file_bytes() + 4096), "not 20480");
}

TEST(ChunkFormatTest, EncodedContentIdIsTheComputedOne) {
  ChunkHeader header = SampleHeader(SampleKey(), kSmall);
  const ContentId right = header.content;
  header.content = ContentId();
  const auto decoded = DecodeHeader(EncodedBlock(header));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->content, right);
}

TEST(ChunkFormatTest, ContentIdDependsOnShapeAndEveryChecksum) {
  const uint64_t checksums[] = {1, 2};
  const ContentId id = ContentIdOf(kSmall, checksums);
  EXPECT_EQ(ContentIdOf(kSmall, checksums), id);
  EXPECT_NE(ContentIdOf({kSmall.payload_bytes + 1, kSmall.segment_bytes}, checksums), id);
  EXPECT_NE(ContentIdOf({kSmall.payload_bytes, kSmall.segment_bytes * 2}, checksums), id);
  EXPECT_NE(ContentIdOf(kSmall, std::vector<uint64_t>{1, 3}), id);
  EXPECT_NE(ContentIdOf(kSmall, std::vector<uint64_t>{2, 1}), id);
  EXPECT_NE(ContentIdOf(kSmall, std::vector<uint64_t>{1, 2, 0}), id);
}

TEST(ChunkFormatTest, ChecksumDependsOnKeyAndSegmentAndBytes) {
  const KeyDigest key = DigestOfKey(SampleKey(1));
  const std::vector<std::byte> payload = SamplePayload(10000);
  const uint64_t checksum = SegmentChecksum(key, 3, payload);
  EXPECT_EQ(SegmentChecksum(key, 3, payload), checksum);
  EXPECT_NE(SegmentChecksum(key, 4, payload), checksum);
  EXPECT_NE(SegmentChecksum(DigestOfKey(SampleKey(2)), 3, payload), checksum);
  EXPECT_NE(SegmentChecksum(key, 3, std::span(payload).first(9999)), checksum);
  std::vector<std::byte> other = payload;
  other[9999] ^= std::byte{1};
  EXPECT_NE(SegmentChecksum(key, 3, other), checksum);
}

TEST(ChunkFormatTest, ZerosAreNotTheirOwnChecksum) {
  const std::vector<std::byte> zeros(4096);
  EXPECT_NE(SegmentChecksum(KeyDigest(), 0, zeros), 0u);
}

TEST(ChunkFormatTest, CopyingGivesTheSameChecksumAndTheSameBytesEverywhere) {
  const KeyDigest key = DigestOfKey(SampleKey());
  for (uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{240}, uint64_t{241}, 128 * kKiB - 1,
                         128 * kKiB, 128 * kKiB + 1, 3 * kMiB + 7}) {
    const std::vector<std::byte> source = SamplePayload(bytes);
    const uint64_t checksum = SegmentChecksum(key, 5, source);
    for (size_t count : {0, 1, 3}) {
      // One byte more than is copied, which must stay as it was.
      std::vector<std::vector<std::byte>> copies(count, std::vector<std::byte>(bytes + 1));
      std::vector<std::byte*> destinations;
      for (auto& copy : copies) destinations.push_back(copy.data());
      EXPECT_EQ(CopyAndChecksum(key, 5, source, destinations), checksum) << bytes << " x" << count;
      for (const auto& copy : copies) {
        EXPECT_TRUE(std::equal(source.begin(), source.end(), copy.begin()));
        EXPECT_EQ(copy.back(), std::byte{0});
      }
    }
  }
}

TEST(ChunkFormatTest, PathIsMadeOfDigestsOnly) {
  NamespaceId name_space;
  name_space.bytes = {0xaa, 0xbb};
  KeyDigest key;
  key.bytes = {0x01, 0x2f, 0xff};
  EXPECT_EQ(ChunkPath(name_space, key),
            "v1/aabb0000000000000000000000000000/01/2f/012fff00000000000000000000000000.kv");
}

TEST(ChunkFormatDeathTest, HeaderWithoutItsChecksumsIsNeverWritten) {
  ChunkHeader header = SampleHeader(SampleKey(), kSmall);
  header.checksums.pop_back();
  EXPECT_DEATH(EncodedBlock(header), "IsShapeOf");
}

}  // namespace
}  // namespace kvstream::store
