// Where the bytes of a chunk lie in a region: its blocks in order, each block tensor after tensor,
// each tensor run after run, as RegisterMemoryRequest describes them.
//
// Thread rule: constant after construction; any thread. Ownership: copies what it needs.
// Errors: INVALID_ARGUMENT for a range or a block that is not there.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvstream/v1/kvstream.pb.h"

namespace kvstream {

// `length` bytes from `offset` of the allocation.
struct Extent {
  uint64_t offset = 0;
  uint64_t length = 0;
};

inline bool operator==(const Extent& a, const Extent& b) {
  return a.offset == b.offset && a.length == b.length;
}

class RegionLayout {
 public:
  // Of the request's tensors and block_count. The daemon has validated them: no sum overflows.
  explicit RegionLayout(const v1::RegisterMemoryRequest& request);

  // Bytes that a block adds to a chunk.
  uint64_t block_bytes() const { return block_bytes_; }
  uint32_t block_count() const { return block_count_; }

  // Appends the extents of `length` bytes from `chunk_offset` of the chunk that `blocks` make, in
  // the chunk's order; what is adjacent in both becomes one. Appends nothing on an error.
  absl::Status Expand(absl::Span<const uint32_t> blocks, uint64_t chunk_offset, uint64_t length,
                      std::vector<Extent>* extents) const;

 private:
  // Run of a block: `length` bytes from `block_offset` of the block's part of a chunk lie at
  // offset + block * stride.
  struct Run {
    uint64_t block_offset = 0;
    uint64_t offset = 0;
    uint64_t stride = 0;
    uint64_t length = 0;
  };

  uint64_t block_bytes_ = 0;
  uint32_t block_count_ = 0;
  // By block_offset; none is empty.
  std::vector<Run> runs_;
};

}  // namespace kvstream
