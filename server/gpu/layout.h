// The layout of KV in a worker's allocation, as data: where the bytes of a block are. It knows no
// attention semantics. Pure.
//
// The bytes of a chunk are block-major: block after block in the chunk's order, each block tensor
// after tensor, each tensor run after run. So a chunk is one contiguous file, whatever the engine's
// layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace kvstream::gpu {

// Bytes of a block, relative to its start.
struct ByteRun {
  uint64_t offset = 0;
  uint64_t length = 0;
};

// Block b of the tensor starts at offset + b * block_stride of the allocation.
struct TensorLayout {
  uint64_t offset = 0;
  uint64_t block_stride = 0;
  std::vector<ByteRun> runs;
};

// Bytes of an allocation.
struct DeviceRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;

  bool operator==(const DeviceRange&) const = default;
};

class BlockLayout {
 public:
  // INVALID_ARGUMENT when a byte of some block would lie outside the allocation, when blocks of a
  // run overlap, when runs overlap in the first block, or when there are none.
  static absl::StatusOr<BlockLayout> Make(std::span<const TensorLayout> tensors,
                                          uint32_t block_count, uint64_t allocation_bytes);

  uint32_t block_count() const { return block_count_; }
  uint64_t block_bytes() const { return block_bytes_; }
  // The mean length of what one copy moves: neighbouring runs of a block count as one.
  uint64_t fragment_bytes() const { return block_bytes_ / runs_.size(); }

  // Appends where bytes [offset, offset + bytes) of a chunk that lies in `blocks` are, in order,
  // until there are `most` ranges; neighbours are merged, also with what is in `ranges` already.
  // REQUIRES: the bytes lie within blocks.size() * block_bytes(), and each block is below
  // block_count().
  void Map(std::span<const uint32_t> blocks, uint64_t offset, uint64_t bytes, size_t most,
           std::vector<DeviceRange>* ranges) const;

 private:
  struct Run {
    uint64_t offset = 0;  // Of block 0, in the allocation.
    uint64_t stride = 0;
    uint64_t length = 0;
    uint64_t at = 0;  // Of its first byte, in a block's bytes.
  };

  uint32_t block_count_ = 0;
  uint64_t block_bytes_ = 0;
  std::vector<Run> runs_;
};

}  // namespace kvstream::gpu
