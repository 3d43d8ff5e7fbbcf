#include "server/base/chunk_shape.h"

#include <gtest/gtest.h>

namespace kvstream {
namespace {

TEST(ChunkShapeTest, OneByteIsOneSegmentOfOnePaddedBlock) {
  const ChunkShape shape{.payload_bytes = 1, .segment_bytes = 8192};
  EXPECT_EQ(shape.segments(), 1u);
  EXPECT_EQ(shape.BytesOf(0), 1u);
  EXPECT_EQ(shape.PaddedBytesOf(0), 4096u);
  EXPECT_EQ(shape.file_bytes(), 8192u);
}

TEST(ChunkShapeTest, ExactMultipleHasNoShortSegment) {
  const ChunkShape shape{.payload_bytes = 3 * 8192, .segment_bytes = 8192};
  EXPECT_EQ(shape.segments(), 3u);
  EXPECT_EQ(shape.BytesOf(2), 8192u);
  EXPECT_EQ(shape.file_bytes(), 4096u + 3 * 8192);
}

TEST(ChunkShapeTest, OnlyTheLastSegmentIsShort) {
  const ChunkShape shape{.payload_bytes = 8192 + 4097, .segment_bytes = 8192};
  EXPECT_EQ(shape.segments(), 2u);
  EXPECT_EQ(shape.BytesOf(0), 8192u);
  EXPECT_EQ(shape.BytesOf(1), 4097u);
  EXPECT_EQ(shape.PaddedBytesOf(1), 8192u);
  EXPECT_EQ(shape.FileOffsetOf(1), 4096u + 8192);
  EXPECT_EQ(shape.file_bytes(), shape.FileOffsetOf(1) + shape.PaddedBytesOf(1));
}

}  // namespace
}  // namespace kvstream
