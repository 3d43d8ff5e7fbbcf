#include "client/replay/content.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace kvstream::replay {
namespace {

constexpr uint64_t kBytes = 3 * 4096 + 5;
constexpr uint64_t kIdsEnd = 1000;

std::vector<std::byte> Filled(const Content& content, uint64_t id, uint64_t bytes = kBytes) {
  std::vector<std::byte> chunk(bytes);
  content.Fill(id, chunk);
  return chunk;
}

TEST(ContentTest, FilledChunkVerifies) {
  for (const uint64_t bytes : {1, 7, 8, 9, 4095, 4096, 4097, 12293}) {
    const Content content(1, bytes, kIdsEnd);
    EXPECT_EQ(content.Verify(3, Filled(content, 3, bytes)), std::nullopt) << bytes;
  }
}

TEST(ContentTest, AnyFlippedByteIsFound) {
  const Content content(1, kBytes, kIdsEnd);
  std::vector<std::byte> chunk = Filled(content, 3);
  for (size_t i = 0; i < chunk.size(); ++i) {
    chunk[i] ^= std::byte{0x10};
    const auto wrong = content.Verify(3, chunk);
    ASSERT_TRUE(wrong.has_value()) << i;
    EXPECT_EQ(wrong->wrong_bytes, 1u);
    EXPECT_EQ(wrong->offset, i / 8 * 8);
    chunk[i] ^= std::byte{0x10};
  }
}

TEST(ContentTest, AllWrongBytesAreCounted) {
  const Content content(1, kBytes, kIdsEnd);
  std::vector<std::byte> chunk = Filled(content, 3);
  for (const size_t i : {5u, 6u, 5000u, 12292u}) chunk[i] ^= std::byte{1};
  const auto wrong = content.Verify(3, chunk);
  ASSERT_TRUE(wrong.has_value());
  EXPECT_EQ(wrong->wrong_bytes, 4u);
  EXPECT_EQ(wrong->offset, 0u);
}

TEST(ContentTest, OtherChunksBytesAreAttributedToIt) {
  const Content content(1, kBytes, kIdsEnd);
  std::vector<std::byte> chunk = Filled(content, 3);
  const std::vector<std::byte> other = Filled(content, 999);
  std::copy_n(other.begin() + 4096, 4096, chunk.begin() + 8192);
  const auto wrong = content.Verify(3, chunk);
  ASSERT_TRUE(wrong.has_value());
  EXPECT_EQ(wrong->offset, 8192u);
  EXPECT_EQ(wrong->held, "the word at offset 4096 of chunk 999");
}

TEST(ContentTest, OwnBytesInTheWrongPlaceAreAttributed) {
  const Content content(1, kBytes, kIdsEnd);
  std::vector<std::byte> chunk = Filled(content, 3);
  std::copy_n(chunk.begin() + 4096, 8, chunk.begin());
  EXPECT_EQ(content.Verify(3, chunk)->held, "the word at offset 4096 of chunk 3");
}

TEST(ContentTest, PoisonZeroesFlipsAndStrangersAreTold) {
  const Content content(1, kBytes, kIdsEnd);
  const std::vector<std::byte> right = Filled(content, 3);
  const auto held = [&](uint64_t word) {
    std::vector<std::byte> chunk = right;
    std::memcpy(chunk.data() + 16, &word, sizeof word);
    return content.Verify(3, chunk)->held;
  };
  uint64_t word;
  std::memcpy(&word, right.data() + 16, sizeof word);
  EXPECT_EQ(held(0xabababababababab), "the poison from before the read");
  EXPECT_EQ(held(0), "zeroes");
  EXPECT_EQ(held(word ^ 0x8000000000000000), "the right word with flipped bits");
  EXPECT_EQ(held(0x1122334455667788), "a word of no chunk of this trace");
}

TEST(ContentTest, SeedsDiffer) {
  const Content one(1, kBytes, kIdsEnd);
  const Content two(2, kBytes, kIdsEnd);
  const auto wrong = two.Verify(3, Filled(one, 3));
  ASSERT_TRUE(wrong.has_value());
  EXPECT_EQ(wrong->held, "a word of no chunk of this trace");
}

TEST(ContentTest, LargestIdAndPlaceKeepApart) {
  const Content content(1, kBytes, uint64_t{1} << 36);
  const uint64_t last = (uint64_t{1} << 36) - 1;
  std::vector<std::byte> chunk = Filled(content, 0);
  const std::vector<std::byte> other = Filled(content, last);
  std::copy_n(other.begin(), 8, chunk.begin());
  EXPECT_EQ(content.Verify(0, chunk)->held, "the word at offset 0 of chunk 68719476735");
}

}  // namespace
}  // namespace kvstream::replay
