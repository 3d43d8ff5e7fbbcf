#include "client/region_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <vector>

namespace kvstream {

void PrintTo(const Extent& extent, std::ostream* out) {
  *out << extent.offset << "+" << extent.length;
}

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

void AddTensor(v1::RegisterMemoryRequest* request, uint64_t offset, uint64_t stride,
               const std::vector<Extent>& runs) {
  v1::TensorLayout* tensor = request->add_tensors();
  tensor->set_tensor_offset(offset);
  tensor->set_block_stride(stride);
  for (const Extent& run : runs) {
    tensor->add_runs()->set_offset(run.offset);
    tensor->mutable_runs()->rbegin()->set_length(run.length);
  }
}

// Keys and values of a layer apart, 100 bytes each a block; two layers.
v1::RegisterMemoryRequest Split() {
  v1::RegisterMemoryRequest request;
  request.set_block_count(10);
  AddTensor(&request, 0, 100, {{0, 100}, {1000, 100}});
  AddTensor(&request, 5000, 100, {{0, 100}, {1000, 100}});
  return request;
}

std::vector<Extent> Expanded(const v1::RegisterMemoryRequest& request,
                             const std::vector<uint32_t>& blocks, uint64_t offset,
                             uint64_t length) {
  std::vector<Extent> extents;
  EXPECT_TRUE(RegionLayout(request).Expand(blocks, offset, length, &extents).ok());
  return extents;
}

TEST(RegionLayoutTest, BlockIsTensorAfterTensorAndRunAfterRun) {
  EXPECT_EQ(RegionLayout(Split()).block_bytes(), 400);
  EXPECT_THAT(Expanded(Split(), {3}, 0, 400), ElementsAre(Extent{300, 100}, Extent{1300, 100},
                                                          Extent{5300, 100}, Extent{6300, 100}));
}

TEST(RegionLayoutTest, ChunkIsBlockAfterBlockInTheGivenOrder) {
  v1::RegisterMemoryRequest request;
  request.set_block_count(10);
  AddTensor(&request, 64, 100, {{0, 80}});
  EXPECT_THAT(Expanded(request, {7, 2, 2}, 0, 240),
              ElementsAre(Extent{764, 80}, Extent{264, 80}, Extent{264, 80}));
}

TEST(RegionLayoutTest, PieceMayBeginAndEndInsideRuns) {
  EXPECT_THAT(Expanded(Split(), {3, 5}, 150, 100), ElementsAre(Extent{1350, 50}, Extent{5300, 50}));
  EXPECT_THAT(Expanded(Split(), {3, 5}, 399, 2), ElementsAre(Extent{6399, 1}, Extent{500, 1}));
  EXPECT_THAT(Expanded(Split(), {3, 5}, 700, 100), ElementsAre(Extent{6500, 100}));
  EXPECT_THAT(Expanded(Split(), {3, 5}, 310, 20), ElementsAre(Extent{6310, 20}));
}

TEST(RegionLayoutTest, NeighboursBecomeOne) {
  v1::RegisterMemoryRequest request;
  request.set_block_count(10);
  AddTensor(&request, 0, 100, {{0, 40}, {40, 60}});
  EXPECT_THAT(Expanded(request, {4, 5, 6, 2}, 10, 390),
              ElementsAre(Extent{410, 290}, Extent{200, 100}));
}

TEST(RegionLayoutTest, PiecesAreNotMergedWithEarlierOnes) {
  v1::RegisterMemoryRequest request;
  request.set_block_count(10);
  AddTensor(&request, 0, 100, {{0, 100}});
  const RegionLayout layout(request);
  std::vector<Extent> extents;
  ASSERT_TRUE(layout.Expand({4}, 0, 100, &extents).ok());
  ASSERT_TRUE(layout.Expand({5}, 0, 100, &extents).ok());
  EXPECT_THAT(extents, ElementsAre(Extent{400, 100}, Extent{500, 100}));
}

TEST(RegionLayoutTest, EmptyPieceHasNoExtents) {
  EXPECT_THAT(Expanded(Split(), {3}, 0, 0), IsEmpty());
  EXPECT_THAT(Expanded(Split(), {3}, 400, 0), IsEmpty());
  EXPECT_THAT(Expanded(Split(), {}, 0, 0), IsEmpty());
  EXPECT_THAT(Expanded({}, {}, 0, 0), IsEmpty());
}

TEST(RegionLayoutTest, WhatIsNotThereIsRefused) {
  const RegionLayout layout(Split());
  std::vector<Extent> extents;
  const auto refused = [&](const std::vector<uint32_t>& blocks, uint64_t offset, uint64_t length) {
    return absl::IsInvalidArgument(layout.Expand(blocks, offset, length, &extents));
  };
  EXPECT_TRUE(refused({3}, 0, 401));
  EXPECT_TRUE(refused({3}, 401, 0));
  EXPECT_TRUE(refused({3}, 1, UINT64_MAX));
  EXPECT_TRUE(refused({}, 0, 1));
  EXPECT_TRUE(refused({3, 10}, 0, 401));
  EXPECT_THAT(extents, IsEmpty());
  // A block outside the piece is not looked at.
  EXPECT_THAT(Expanded(Split(), {3, 10}, 0, 1), ElementsAre(Extent{300, 1}));
}

TEST(RegionLayoutTest, PiecesOfAnySizeCoverTheChunkByteByByte) {
  const std::vector<uint32_t> blocks = {9, 0, 4};
  std::vector<uint64_t> whole;
  for (const Extent& extent : Expanded(Split(), blocks, 0, 1200)) {
    for (uint64_t i = 0; i < extent.length; ++i) whole.push_back(extent.offset + i);
  }
  ASSERT_EQ(whole.size(), 1200);
  for (const uint64_t step : {1, 7, 16, 99, 100, 101, 399, 400, 401, 1199}) {
    std::vector<uint64_t> pieces;
    for (uint64_t at = 0; at < 1200; at += step) {
      for (const Extent& extent :
           Expanded(Split(), blocks, at, std::min<uint64_t>(step, 1200 - at))) {
        for (uint64_t i = 0; i < extent.length; ++i) pieces.push_back(extent.offset + i);
      }
    }
    EXPECT_EQ(pieces, whole) << "in pieces of " << step;
  }
}

}  // namespace
}  // namespace kvstream
