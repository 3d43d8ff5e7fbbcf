#include "server/gpu/layout.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <random>

namespace kvstream::gpu {
namespace {

std::vector<DeviceRange> Map(const BlockLayout& layout, const std::vector<uint32_t>& blocks,
                             uint64_t offset, uint64_t bytes) {
  std::vector<DeviceRange> ranges;
  layout.Map(blocks, offset, bytes, SIZE_MAX, &ranges);
  return ranges;
}

// Keys and values apart, as (2, blocks, 100 bytes), of two layers.
std::vector<TensorLayout> KeysAndValues() {
  return {{0, 100, {{0, 100}, {1000, 100}}}, {2000, 100, {{0, 100}, {1000, 100}}}};
}

TEST(BlockLayoutTest, BytesAreBlockMajor) {
  const auto layout = *BlockLayout::Make(KeysAndValues(), 10, 4000);
  EXPECT_EQ(layout.block_bytes(), 400u);
  EXPECT_EQ(layout.fragment_bytes(), 100u);
  EXPECT_EQ(Map(layout, {7, 2}, 0, 800), (std::vector<DeviceRange>{{700, 100},
                                                                   {1700, 100},
                                                                   {2700, 100},
                                                                   {3700, 100},
                                                                   {200, 100},
                                                                   {1200, 100},
                                                                   {2200, 100},
                                                                   {3200, 100}}));
}

TEST(BlockLayoutTest, ARangeMayBeginAndEndAnywhere) {
  const auto layout = *BlockLayout::Make(KeysAndValues(), 10, 4000);
  EXPECT_EQ(Map(layout, {7, 2}, 150, 100), (std::vector<DeviceRange>{{1750, 50}, {2700, 50}}));
  EXPECT_EQ(Map(layout, {7, 2}, 399, 2), (std::vector<DeviceRange>{{3799, 1}, {200, 1}}));
  EXPECT_EQ(Map(layout, {7, 2}, 799, 1), (std::vector<DeviceRange>{{3299, 1}}));
}

TEST(BlockLayoutTest, NeighboursAreOneRange) {
  // A block is one piece, and blocks follow each other.
  const std::vector<TensorLayout> tensors = {{64, 200, {{0, 100}, {100, 100}}}};
  const auto layout = *BlockLayout::Make(tensors, 10, 2064);
  EXPECT_EQ(layout.fragment_bytes(), 200u);
  EXPECT_EQ(Map(layout, {3, 4, 5, 1}, 0, 800), (std::vector<DeviceRange>{{664, 600}, {264, 200}}));
}

TEST(BlockLayoutTest, NoMoreRangesThanAreWantedAreMade) {
  const auto layout = *BlockLayout::Make(KeysAndValues(), 10, 4000);
  std::vector<DeviceRange> ranges;
  layout.Map(std::vector<uint32_t>{7, 2}, 150, 600, 2, &ranges);
  EXPECT_EQ(ranges, (std::vector<DeviceRange>{{1750, 50}, {2700, 100}}));
}

TEST(BlockLayoutTest, AnySplitOfAChunkIsTheSameAsTheWhole) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<TensorLayout> tensors;
    uint64_t end = 0;
    const uint32_t blocks_in_all = 1 + random() % 8;
    for (uint32_t t = 1 + random() % 4; t > 0; --t) {
      TensorLayout tensor{end, 256, {}};
      for (uint64_t at = random() % 8; at + 64 <= 256; at += 8 + random() % 128) {
        const uint64_t length = 1 + random() % 8;
        tensor.runs.push_back({at, length});
      }
      if (tensor.runs.empty()) tensor.runs.push_back({0, 256});
      end += 256 * blocks_in_all;
      tensors.push_back(tensor);
    }
    const auto layout = *BlockLayout::Make(tensors, blocks_in_all, end);
    std::vector<uint32_t> blocks(blocks_in_all);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), random);
    const uint64_t bytes = layout.block_bytes() * blocks.size();
    const auto whole = Map(layout, blocks, 0, bytes);
    std::vector<DeviceRange> parts;
    for (uint64_t at = 0; at < bytes;) {
      const uint64_t length = std::min<uint64_t>(bytes - at, 1 + random() % 64);
      layout.Map(blocks, at, length, SIZE_MAX, &parts);
      at += length;
    }
    ASSERT_EQ(parts, whole) << "round " << round;
  }
}

TEST(BlockLayoutTest, WhatLiesOutsideIsRefused) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  const std::vector<std::vector<TensorLayout>> bad = {
      {},
      {{0, 100, {}}},
      {{0, 100, {{0, 0}}}},
      {{1, 100, {{0, 100}}}},
      {{0, 101, {{0, 100}}}},
      {{0, 100, {{901, 100}}}},
      {{kMax, 100, {{1, 100}}}},
      {{0, kMax, {{0, 100}}}},
      {{0, 100, {{kMax - 10, 100}}}},
      {{0, 100, {{0, kMax}}}},
      {{0, kMax / 4, {{0, 100}}}},
      {{0, 50, {{0, 100}}}},  // Blocks overlap.
      {{0, 64, {{0, 64}, {64, 64}}}},
      {{0, 50, {{0, 50}}}, {0, 50, {{0, 50}}}},  // Tensors do.
      {{0, 100, {{10, 20}, {0, 11}}}},
  };
  EXPECT_TRUE(BlockLayout::Make(std::vector<TensorLayout>{{0, 100, {{0, 100}}}}, 10, 1000).ok());
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(BlockLayout::Make(bad[i], 10, 1000).status().code(),
              absl::StatusCode::kInvalidArgument)
        << i;
  }
  EXPECT_FALSE(BlockLayout::Make(std::vector<TensorLayout>{{0, 1, {{0, 1}}}}, 0, 1000).ok());
}

// Runs that name the same bytes again and again add up to any number.
TEST(BlockLayoutTest, ABlockOfMoreBytesThan64BitsCountIsRefused) {
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  const std::vector<TensorLayout> once = {{0, 0, {{0, kHalf}}}};
  const std::vector<TensorLayout> twice = {{0, 0, {{0, kHalf}, {0, kHalf}}}};
  EXPECT_TRUE(BlockLayout::Make(once, 1, kHalf).ok());
  EXPECT_EQ(BlockLayout::Make(twice, 1, kHalf).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvstream::gpu
