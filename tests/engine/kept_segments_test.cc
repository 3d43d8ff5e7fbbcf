#include "server/engine/kept_segments.h"

#include <gtest/gtest.h>

namespace kvstream::engine {
namespace {

constexpr uint64_t kBytes = 4096;

class KeptSegmentsTest : public testing::Test {
 protected:
  static ContentId Content(uint8_t number) {
    ContentId content;
    content.bytes.fill(number);
    return content;
  }
  bool Add(uint8_t content, uint32_t segment, bool shared = false) {
    const sched::Slot slot = shared ? *slots_.AllocateWrite(kBytes) : *slots_.AllocateRead(kBytes);
    if (kept_.Add(Content(content), segment, 3, slot, &whole_)) return true;
    slots_.Free(slot);
    return false;
  }

  sched::SlotAllocator slots_{16 * kBytes, 8 * kBytes};
  KeptSegments kept_{&slots_};
  std::vector<sched::Slot> whole_;
};

TEST_F(KeptSegmentsTest, TheLastSegmentMakesTheChunkWhole) {
  EXPECT_TRUE(Add(1, 2));
  EXPECT_TRUE(Add(1, 0));
  EXPECT_TRUE(whole_.empty());
  EXPECT_TRUE(Add(1, 1));
  ASSERT_EQ(whole_.size(), 3u);
  // By segment, not as they came.
  EXPECT_LT(whole_[2].offset, whole_[0].offset);
  EXPECT_LT(whole_[0].offset, whole_[1].offset);
  EXPECT_FALSE(kept_.GiveUpOne(sched::Arena::kAny)) << "they are the caller's";
  EXPECT_TRUE(Add(1, 1)) << "it begins again";
}

TEST_F(KeptSegmentsTest, ASegmentThatComesTwiceIsKeptOnce) {
  EXPECT_TRUE(Add(1, 0));
  EXPECT_FALSE(Add(1, 0));
  EXPECT_EQ(slots_.used(), kBytes);
}

TEST_F(KeptSegmentsTest, WhatCameLastIsGivenUpFirstAndStaysSoUntilItIsForgotten) {
  Add(1, 0);
  Add(2, 0);
  Add(1, 1);
  EXPECT_TRUE(kept_.GiveUpOne(sched::Arena::kAny));
  EXPECT_EQ(slots_.used(), 2 * kBytes);
  EXPECT_FALSE(Add(2, 1));
  kept_.Forget(Content(2));
  EXPECT_TRUE(Add(2, 1));
  kept_.Forget(Content(2));
  kept_.Forget(Content(2));
  EXPECT_TRUE(kept_.GiveUpOne(sched::Arena::kAny));
  EXPECT_FALSE(kept_.GiveUpOne(sched::Arena::kAny));
  EXPECT_EQ(slots_.used(), 0u);
}

TEST_F(KeptSegmentsTest, ForTheSharedArenaOnlyItsSlotsCount) {
  Add(1, 0, /*shared=*/true);
  Add(2, 0);
  EXPECT_TRUE(kept_.GiveUpOne(sched::Arena::kShared));
  EXPECT_EQ(slots_.shared_used(), 0u);
  EXPECT_EQ(slots_.used(), kBytes);
  EXPECT_FALSE(kept_.GiveUpOne(sched::Arena::kShared));
}

}  // namespace
}  // namespace kvstream::engine
