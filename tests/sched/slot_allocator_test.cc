#include "server/sched/slot_allocator.h"

#include <algorithm>
#include <bit>
#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/types.h"
#include "tests/support/sim_random.h"

namespace kvstream::sched {
namespace {

uint64_t Rounded(uint64_t bytes) { return std::bit_ceil(std::max(bytes, BuddyArena::kBlockMin)); }

// The slots that are out, and what must hold of them.
class NaiveArena {
 public:
  NaiveArena(uint64_t begin, uint64_t end) : begin_(begin), end_(end) {}

  void Add(const Slot& slot) {
    const uint64_t bytes = Rounded(slot.bytes);
    EXPECT_GE(slot.offset, begin_);
    EXPECT_LE(slot.offset + bytes, end_);
    EXPECT_EQ((slot.offset - begin_) % bytes, 0u) << "not aligned to its size";
    const auto after = out_.lower_bound(slot.offset);
    if (after != out_.end()) {
      EXPECT_GE(after->first, slot.offset + bytes) << "overlaps the next";
    }
    if (after != out_.begin()) {
      const Slot& before = std::prev(after)->second;
      EXPECT_LE(before.offset + Rounded(before.bytes), slot.offset) << "overlaps the one before";
    }
    out_[slot.offset] = slot;
    used_ += bytes;
  }
  Slot Remove(uint64_t number) {
    const auto at = std::next(out_.begin(), static_cast<int64_t>(number));
    const Slot slot = at->second;
    used_ -= Rounded(slot.bytes);
    out_.erase(at);
    return slot;
  }
  // Whether an aligned block of this size is free.
  bool HasRoom(uint64_t bytes) const {
    const uint64_t block = Rounded(bytes);
    for (uint64_t at = begin_; at + block <= end_; at += block) {
      const auto next = out_.lower_bound(at);
      if (next != out_.end() && next->first < at + block) continue;
      if (next != out_.begin()) {
        const Slot& before = std::prev(next)->second;
        if (before.offset + Rounded(before.bytes) > at) continue;
      }
      return true;
    }
    return false;
  }
  size_t size() const { return out_.size(); }
  uint64_t used() const { return used_; }

 private:
  const uint64_t begin_;
  const uint64_t end_;
  std::map<uint64_t, Slot> out_;
  uint64_t used_ = 0;
};

// The largest blocks that cover `bytes`, as a fresh arena must have them.
std::vector<uint64_t> FreshBlocks(uint64_t bytes) {
  std::vector<uint64_t> blocks;
  for (; bytes >= BuddyArena::kBlockMax; bytes -= BuddyArena::kBlockMax) {
    blocks.push_back(BuddyArena::kBlockMax);
  }
  for (uint64_t block = BuddyArena::kBlockMax / 2; block >= BuddyArena::kBlockMin; block /= 2) {
    if (bytes & block) blocks.push_back(block);
  }
  return blocks;
}

TEST(BitTreeTest, FirstIsTheSmallestMemberAtEverySize) {
  for (const uint64_t size : {1u, 63u, 64u, 65u, 4095u, 4096u, 4097u, 300'000u}) {
    BitTree tree(size);
    EXPECT_EQ(tree.First(), std::nullopt);
    tree.Set(size - 1);
    EXPECT_EQ(tree.First(), size - 1);
    tree.Set(size / 2);
    EXPECT_EQ(tree.First(), size / 2);
    tree.Clear(size / 2);
    if (size > 1) {
      EXPECT_EQ(tree.First(), size - 1);
      EXPECT_TRUE(tree.Test(size - 1));
      tree.Clear(size - 1);
    }
    EXPECT_EQ(tree.First(), std::nullopt);
  }
}

TEST(BuddyArenaTest, AgreesWithANaiveModelForEverySeed) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimRandom random(seed);
    const uint64_t begin = random.Below(100) * BuddyArena::kBlockMin;
    const uint64_t bytes = random.Below(4 * kMiB);
    BuddyArena arena(begin, bytes);
    ASSERT_EQ(arena.size(), bytes / BuddyArena::kBlockMin * BuddyArena::kBlockMin);
    NaiveArena naive(begin, begin + arena.size());
    for (int i = 0; i < 300; ++i) {
      if (naive.size() > 0 && random.Chance(0.45)) {
        arena.Free(naive.Remove(random.Below(naive.size())));
      } else {
        const uint64_t wanted = 1 + random.Below(random.Chance(0.9) ? 200 * kKiB : 2 * kMiB);
        const auto slot = arena.Allocate(wanted);
        ASSERT_EQ(slot.has_value(), naive.HasRoom(wanted)) << wanted;
        if (!slot) continue;
        EXPECT_EQ(slot->bytes, wanted);
        EXPECT_TRUE(arena.Contains(*slot));
        naive.Add(*slot);
      }
      ASSERT_EQ(arena.used(), naive.used());
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST(BuddyArenaTest, CoalescesToTheFullArenaAtOddSizes) {
  for (const uint64_t bytes :
       {4096u, 12'288u, 1'000'000u, 7'340'032u, 134'217'727u, 201'330'688u}) {
    SCOPED_TRACE(bytes);
    BuddyArena arena(8192, bytes);
    std::vector<Slot> pieces;
    while (const auto slot = arena.Allocate(BuddyArena::kBlockMin)) pieces.push_back(*slot);
    EXPECT_EQ(pieces.size(), bytes / BuddyArena::kBlockMin);
    for (size_t i = 0; i < pieces.size(); i += 2) arena.Free(pieces[i]);
    for (size_t i = 1; i < pieces.size(); i += 2) arena.Free(pieces[i]);
    EXPECT_EQ(arena.used(), 0u);
    for (const uint64_t block : FreshBlocks(arena.size())) {
      EXPECT_TRUE(arena.Allocate(block).has_value()) << block;
    }
    EXPECT_EQ(arena.used(), arena.size());
  }
}

TEST(BuddyArenaTest, EmptyArenaHasNothing) {
  BuddyArena arena(0, 4095);
  EXPECT_EQ(arena.size(), 0u);
  EXPECT_EQ(arena.Allocate(1), std::nullopt);
}

TEST(BuddyArenaTest, TakesTheLowestBlockFirst) {
  BuddyArena arena(0, kMiB);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(arena.Allocate(64 * kKiB)->offset, i * 64 * kKiB);
}

TEST(BuddyArenaDeathTest, FreeingASlotTwiceEndsTheProcess) {
  BuddyArena arena(0, kMiB);
  const Slot slot = *arena.Allocate(kMiB / 2);
  arena.Allocate(kMiB / 2);
  arena.Free(slot);
  EXPECT_DEATH(arena.Free(slot), "");
}

TEST(SlotAllocatorTest, ReadsTakeTheReservedArenaFirstAndThenTheSharedOne) {
  SlotAllocator slots(3 * kMiB, kMiB);
  EXPECT_EQ(slots.AllocateRead(kMiB)->offset, 0u);
  EXPECT_EQ(slots.shared_used(), 0u);
  EXPECT_EQ(slots.AllocateRead(kMiB)->offset, kMiB);
  EXPECT_EQ(slots.shared_used(), kMiB);
}

TEST(SlotAllocatorTest, WritesNeverTakeTheReservedArena) {
  SlotAllocator slots(3 * kMiB, kMiB);
  EXPECT_EQ(slots.AllocateWrite(kMiB)->offset, kMiB);
  EXPECT_EQ(slots.AllocateWrite(kMiB)->offset, 2 * kMiB);
  EXPECT_EQ(slots.AllocateWrite(1), std::nullopt);
  EXPECT_TRUE(slots.AllocateRead(kMiB).has_value());
}

TEST(SlotAllocatorTest, SlotsReturnToTheArenaThatTheyCameFrom) {
  SlotAllocator slots(3 * kMiB + 5000, kMiB + 100);  // Neither is a multiple of a block.
  EXPECT_EQ(slots.reserved_bytes(), kMiB);
  EXPECT_EQ(slots.shared_bytes(), 2 * kMiB + 4096);
  std::vector<Slot> out;
  while (const auto slot = slots.AllocateRead(64 * kKiB)) out.push_back(*slot);
  EXPECT_EQ(slots.used(), 3 * kMiB);
  for (const Slot& slot : out) slots.Free(slot);
  EXPECT_EQ(slots.used(), 0u);
  EXPECT_EQ(slots.AllocateRead(kMiB)->offset, 0u);
  EXPECT_TRUE(slots.AllocateWrite(2 * kMiB).has_value());
}

}  // namespace
}  // namespace kvstream::sched
