// Who holds which bytes of the staging pool. Pure: it hands out offsets, never addresses.
//
// Slots that are only kept, as those of the DRAM cache, are in use like others, and are given up
// when a slot is wanted.
//
// The pool is two arenas. Reads take from the reserved arena first, then from the shared one;
// writes take from the shared one alone. So reads always have an arena that only reads can
// fragment, and a read in flight ends without waiting for any other slot: admission cannot
// deadlock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace kvstream::sched {

// A piece of the pool.
struct Slot {
  uint64_t offset = 0;
  uint64_t bytes = 0;

  bool operator==(const Slot&) const = default;
};

// A set of small integers with find-first in a few steps: 64-way summaries over a bitmap.
class BitTree {
 public:
  explicit BitTree(uint64_t size);
  void Set(uint64_t i);
  void Clear(uint64_t i);
  bool Test(uint64_t i) const { return (levels_[0][i / 64] >> (i % 64)) & 1; }
  // The smallest member.
  std::optional<uint64_t> First() const;

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

// A buddy allocator over [begin, begin + bytes): sizes round up to a power of two, blocks are
// aligned to their size relative to `begin`, the lowest free block is taken first.
class BuddyArena {
 public:
  static constexpr uint64_t kBlockMin = 4096;
  static constexpr uint32_t kOrders = 15;  // 4 KiB .. 64 MiB
  static constexpr uint64_t kBlockMax = kBlockMin << (kOrders - 1);

  // `bytes` is rounded down to kBlockMin.
  BuddyArena(uint64_t begin, uint64_t bytes);

  // Nothing when no free block is large enough. REQUIRES: 0 < bytes <= kBlockMax.
  std::optional<Slot> Allocate(uint64_t bytes);
  // REQUIRES: a slot of this arena that is not free.
  void Free(const Slot& slot);

  bool Contains(const Slot& slot) const { return slot.offset >= begin_ && slot.offset < end_; }
  uint64_t size() const { return end_ - begin_; }
  // Bytes of blocks that are out, rounding included.
  uint64_t used() const { return used_; }
  // What a slot of so many bytes takes up.
  static uint64_t BlockBytes(uint64_t bytes) { return kBlockMin << OrderOf(bytes); }

 private:
  static uint32_t OrderOf(uint64_t bytes);

  const uint64_t begin_;
  const uint64_t end_;
  uint64_t used_ = 0;
  std::vector<BitTree> free_;  // One a size; a bit for each block of it.
};

// Slots of both, or of the shared one alone.
enum class Arena : uint8_t { kAny, kShared };

class SlotAllocator {
 public:
  // Frees one or some of the slots that are only kept, one of `arena` among them; false when there
  // is none.
  using Reclaim = std::function<bool(Arena arena)>;

  SlotAllocator(uint64_t pool_bytes, uint64_t reserved_bytes)
      : reserved_(0, reserved_bytes), shared_(reserved_.size(), pool_bytes - reserved_.size()) {}

  // Called when a slot is wanted and none is free, until one is. Set once, before the first.
  void SetReclaim(Reclaim reclaim) { reclaim_ = std::move(reclaim); }

  std::optional<Slot> AllocateRead(uint64_t bytes) {
    do {
      if (auto slot = reserved_.Allocate(bytes)) return slot;
      if (auto slot = shared_.Allocate(bytes)) return slot;
    } while (reclaim_ != nullptr && reclaim_(Arena::kAny));
    return std::nullopt;
  }
  std::optional<Slot> AllocateWrite(uint64_t bytes) {
    do {
      if (auto slot = shared_.Allocate(bytes)) return slot;
    } while (reclaim_ != nullptr && reclaim_(Arena::kShared));
    return std::nullopt;
  }
  bool IsShared(const Slot& slot) const { return shared_.Contains(slot); }
  void Free(const Slot& slot) { (reserved_.Contains(slot) ? reserved_ : shared_).Free(slot); }

  uint64_t used() const { return reserved_.used() + shared_.used(); }
  uint64_t shared_used() const { return shared_.used(); }
  uint64_t reserved_bytes() const { return reserved_.size(); }
  uint64_t shared_bytes() const { return shared_.size(); }

 private:
  BuddyArena reserved_;
  BuddyArena shared_;
  Reclaim reclaim_;
};

}  // namespace kvstream::sched
