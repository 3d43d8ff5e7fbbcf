#include "client/region_layout.h"

#include <algorithm>
#include <string>

namespace kvstream {
namespace {

void Append(const Extent& extent, size_t first, std::vector<Extent>* extents) {
  if (extents->size() > first && extents->back().offset + extents->back().length == extent.offset) {
    extents->back().length += extent.length;
  } else {
    extents->push_back(extent);
  }
}

}  // namespace

RegionLayout::RegionLayout(const v1::RegisterMemoryRequest& request)
    : block_count_(request.block_count()) {
  for (const v1::TensorLayout& tensor : request.tensors()) {
    for (const v1::ByteRun& run : tensor.runs()) {
      if (run.length() == 0) continue;
      runs_.push_back({block_bytes_, tensor.tensor_offset() + run.offset(), tensor.block_stride(),
                       run.length()});
      block_bytes_ += run.length();
    }
  }
}

absl::Status RegionLayout::Expand(absl::Span<const uint32_t> blocks, uint64_t chunk_offset,
                                  uint64_t length, std::vector<Extent>* extents) const {
  const uint64_t chunk_bytes = blocks.size() * block_bytes_;
  if (chunk_offset > chunk_bytes || length > chunk_bytes - chunk_offset) {
    return absl::InvalidArgumentError("place piece: " + std::to_string(length) + " bytes from " +
                                      std::to_string(chunk_offset) + " do not lie in a chunk of " +
                                      std::to_string(chunk_bytes));
  }
  if (length == 0) return absl::OkStatus();
  const uint64_t first_block = chunk_offset / block_bytes_;
  const uint64_t last_block = (chunk_offset + length - 1) / block_bytes_;
  for (uint64_t i = first_block; i <= last_block; ++i) {
    if (blocks[i] < block_count_) continue;
    return absl::InvalidArgumentError("place piece: block " + std::to_string(blocks[i]) +
                                      " is not one of " + std::to_string(block_count_));
  }
  // A neighbour of an earlier piece may lie elsewhere in the part: only this piece's are merged.
  const size_t first = extents->size();
  uint64_t within = chunk_offset % block_bytes_;
  auto run = std::upper_bound(runs_.begin(), runs_.end(), within,
                              [](uint64_t at, const Run& r) { return at < r.block_offset; }) -
             1;
  for (uint64_t i = first_block; length > 0; ++i, within = 0, run = runs_.begin()) {
    for (; run != runs_.end() && length > 0; ++run) {
      const uint64_t skip = within - run->block_offset;
      const uint64_t bytes = std::min(run->length - skip, length);
      Append({run->offset + blocks[i] * run->stride + skip, bytes}, first, extents);
      within += bytes;
      length -= bytes;
    }
  }
  return absl::OkStatus();
}

}  // namespace kvstream
