#include "server/sched/slot_allocator.h"

#include <bit>

#include "server/base/check.h"

namespace kvstream::sched {

BitTree::BitTree(uint64_t size) {
  do {
    size = (size + 63) / 64;
    levels_.emplace_back(size > 0 ? size : 1);
  } while (size > 1);
}

void BitTree::Set(uint64_t i) {
  for (auto& level : levels_) {
    level[i / 64] |= uint64_t{1} << (i % 64);
    i /= 64;
  }
}

void BitTree::Clear(uint64_t i) {
  for (auto& level : levels_) {
    level[i / 64] &= ~(uint64_t{1} << (i % 64));
    if (level[i / 64] != 0) return;
    i /= 64;
  }
}

std::optional<uint64_t> BitTree::First() const {
  if (levels_.back()[0] == 0) return std::nullopt;
  uint64_t i = 0;
  for (size_t level = levels_.size(); level-- > 0;) {
    i = i * 64 + static_cast<uint64_t>(std::countr_zero(levels_[level][i]));
  }
  return i;
}

BuddyArena::BuddyArena(uint64_t begin, uint64_t bytes)
    : begin_(begin), end_(begin + bytes / kBlockMin * kBlockMin) {
  for (uint32_t order = 0; order < kOrders; ++order) {
    free_.emplace_back(size() / (kBlockMin << order) + 1);
  }
  uint64_t at = 0;
  while (at < size()) {  // Cover the arena with the largest aligned blocks that fit.
    uint32_t order = kOrders - 1;
    while (at % (kBlockMin << order) != 0 || at + (kBlockMin << order) > size()) --order;
    free_[order].Set(at / (kBlockMin << order));
    at += kBlockMin << order;
  }
}

uint32_t BuddyArena::OrderOf(uint64_t bytes) {
  KV_CHECK(bytes > 0 && bytes <= kBlockMax);
  return static_cast<uint32_t>(
      std::countr_zero(std::bit_ceil(bytes < kBlockMin ? kBlockMin : bytes)) -
      std::countr_zero(kBlockMin));
}

std::optional<Slot> BuddyArena::Allocate(uint64_t bytes) {
  const uint32_t wanted = OrderOf(bytes);
  for (uint32_t order = wanted; order < kOrders; ++order) {
    const auto block = free_[order].First();
    if (!block) continue;
    free_[order].Clear(*block);
    uint64_t index = *block;
    for (uint32_t o = order; o > wanted; --o) {  // Split: keep the lower half, free the upper.
      index *= 2;
      free_[o - 1].Set(index + 1);
    }
    used_ += kBlockMin << wanted;
    return Slot{begin_ + index * (kBlockMin << wanted), bytes};
  }
  return std::nullopt;
}

void BuddyArena::Free(const Slot& slot) {
  uint32_t order = OrderOf(slot.bytes);
  KV_CHECK(Contains(slot) && (slot.offset - begin_) % (kBlockMin << order) == 0);
  uint64_t index = (slot.offset - begin_) / (kBlockMin << order);
  KV_CHECK(!free_[order].Test(index) && used_ >= kBlockMin << order);
  used_ -= kBlockMin << order;
  while (order + 1 < kOrders && free_[order].Test(index ^ 1)) {
    free_[order].Clear(index ^ 1);
    index /= 2;
    ++order;
  }
  free_[order].Set(index);
}

}  // namespace kvstream::sched
