#include "tests/gpu/kv_layouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "client/region_layout.h"

namespace kvstream {
namespace {

class KvLayoutTest : public testing::TestWithParam<std::string> {};

KvShape Small() { return {.layers = 3, .blocks = 8, .tokens = 4, .heads = 2, .head_dim = 8}; }

TEST_P(KvLayoutTest, BlocksShareNoByteAndLieInTheAllocation) {
  const auto pool = MakeKvPool(GetParam(), Small());
  ASSERT_TRUE(pool.ok());
  std::vector<bool> taken(pool->allocation_bytes);
  for (uint32_t block = 0; block < pool->block_count; ++block) {
    uint64_t bytes = 0;
    ForEachRun(*pool, block, [&](uint64_t offset, uint64_t length) {
      ASSERT_LE(offset + length, taken.size());
      for (uint64_t i = offset; i < offset + length; ++i) {
        ASSERT_FALSE(taken[i]) << "byte " << i << " of block " << block;
        taken[i] = true;
      }
      bytes += length;
    });
    EXPECT_EQ(bytes, pool->block_bytes());
  }
}

TEST_P(KvLayoutTest, RegionLayoutSaysTheSame) {
  const auto pool = MakeKvPool(GetParam(), Small());
  ASSERT_TRUE(pool.ok());
  v1::RegisterMemoryRequest request;
  request.set_block_count(pool->block_count);
  for (const v1::TensorLayout& tensor : pool->tensors) *request.add_tensors() = tensor;
  const RegionLayout layout(request);
  ASSERT_EQ(layout.block_bytes(), pool->block_bytes());
  const std::vector<uint32_t> blocks = {5, 6, 0, 3};
  std::vector<uint64_t> expected;
  for (const uint32_t block : blocks) {
    ForEachRun(*pool, block, [&](uint64_t offset, uint64_t length) {
      for (uint64_t i = 0; i < length; ++i) expected.push_back(offset + i);
    });
  }
  std::vector<Extent> extents;
  for (uint64_t at = 0; at < expected.size(); at += 97) {
    const uint64_t length = std::min<uint64_t>(97, expected.size() - at);
    ASSERT_TRUE(layout.Expand(blocks, at, length, &extents).ok());
  }
  std::vector<uint64_t> found;
  for (const Extent& extent : extents) {
    for (uint64_t i = 0; i < extent.length; ++i) found.push_back(extent.offset + i);
  }
  EXPECT_EQ(found, expected);
}

INSTANTIATE_TEST_SUITE_P(All, KvLayoutTest, testing::ValuesIn(KvLayoutNames()), [](const auto& i) {
  std::string name = i.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(KvPoolTest, RunsAreAsLongAsTheOrderAllows) {
  const KvShape shape = Small();
  const auto runs = [&](const char* layout) {
    return MakeKvPool(layout, shape)->tensors[0].runs();
  };
  EXPECT_EQ(runs("split").size(), 2);
  EXPECT_EQ(runs("paired").size(), 1);
  EXPECT_EQ(runs("LBHNC").size(), 1);
  EXPECT_EQ(runs("LBNHC").size(), 1);
  EXPECT_EQ(runs("BLNHC").size(), 1);
  // Heads lie outside the blocks, or outside the layers.
  EXPECT_EQ(runs("LHBNC").size(), 2);
  EXPECT_EQ(runs("BHLNC").size(), 2);
  EXPECT_EQ(MakeKvPool("cross-layer", shape)->tensors.size(), 1);
  EXPECT_FALSE(MakeKvPool("unheard-of", shape).ok());
}

}  // namespace
}  // namespace kvstream
