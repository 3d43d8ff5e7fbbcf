#include "server/gpu/layout.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace kvstream::gpu {
namespace {

absl::Status Outside(size_t tensor, size_t run, const std::string& what) {
  return absl::InvalidArgumentError("tensors[" + std::to_string(tensor) + "].runs[" +
                                    std::to_string(run) + "]: " + what);
}

// a + b * c, or false when that does not fit.
bool AddProduct(uint64_t a, uint64_t b, uint64_t c, uint64_t* sum) {
  uint64_t product = 0;
  return !__builtin_mul_overflow(b, c, &product) && !__builtin_add_overflow(a, product, sum);
}

// Tensors given the same place by mistake meet in the first block too.
absl::Status CheckApart(std::span<const TensorLayout> tensors) {
  std::vector<std::pair<uint64_t, uint64_t>> spans;  // Of block 0: begin, end.
  for (const TensorLayout& tensor : tensors) {
    for (const ByteRun& run : tensor.runs) {
      const uint64_t begin = tensor.offset + run.offset;
      spans.emplace_back(begin, begin + run.length);
    }
  }
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].first >= spans[i - 1].second) continue;
    return absl::InvalidArgumentError("tensors: two runs hold the byte at " +
                                      std::to_string(spans[i].first));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BlockLayout> BlockLayout::Make(std::span<const TensorLayout> tensors,
                                              uint32_t block_count, uint64_t allocation_bytes) {
  BlockLayout layout;
  layout.block_count_ = block_count;
  if (block_count == 0) return absl::InvalidArgumentError("block_count: 0");
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorLayout& tensor = tensors[t];
    for (size_t r = 0; r < tensor.runs.size(); ++r) {
      const ByteRun& run = tensor.runs[r];
      uint64_t first = 0;
      uint64_t last = 0;
      uint64_t end = 0;
      if (run.length == 0 || __builtin_add_overflow(tensor.offset, run.offset, &first) ||
          !AddProduct(first, block_count - 1, tensor.block_stride, &last) ||
          __builtin_add_overflow(last, run.length, &end) || end > allocation_bytes) {
        return Outside(t, r,
                       "of block " + std::to_string(block_count - 1) +
                           " is empty or ends beyond the allocation's " +
                           std::to_string(allocation_bytes) + " bytes");
      }
      if (block_count > 1 && run.length > tensor.block_stride) {
        return Outside(t, r, "is longer than the blocks' stride: blocks would overlap");
      }
      Run* before = layout.runs_.empty() ? nullptr : &layout.runs_.back();
      if (before != nullptr && before->stride == tensor.block_stride &&
          before->offset + before->length == first) {
        before->length += run.length;
        if (block_count > 1 && before->length > before->stride) {
          return Outside(t, r, "reaches into the next block with the run before it");
        }
      } else {
        layout.runs_.push_back({first, tensor.block_stride, run.length, layout.block_bytes_});
      }
      if (__builtin_add_overflow(layout.block_bytes_, run.length, &layout.block_bytes_)) {
        return Outside(t, r, "makes a block of more bytes than 64 bits count");
      }
    }
  }
  if (layout.runs_.empty()) return absl::InvalidArgumentError("tensors: no runs");
  if (auto status = CheckApart(tensors); !status.ok()) return status;
  return layout;
}

void BlockLayout::Map(std::span<const uint32_t> blocks, uint64_t offset, uint64_t bytes,
                      size_t most, std::vector<DeviceRange>* ranges) const {
  uint64_t block = offset / block_bytes_;
  uint64_t within = offset % block_bytes_;
  auto run = std::upper_bound(runs_.begin(), runs_.end(), within,
                              [](uint64_t at, const Run& r) { return at < r.at; }) -
             1;
  while (bytes > 0) {
    const uint64_t skipped = within - run->at;
    const DeviceRange range{run->offset + blocks[block] * run->stride + skipped,
                            std::min(bytes, run->length - skipped)};
    if (!ranges->empty() && ranges->back().offset + ranges->back().bytes == range.offset) {
      ranges->back().bytes += range.bytes;
    } else if (ranges->size() == most) {
      return;
    } else {
      ranges->push_back(range);
    }
    bytes -= range.bytes;
    within += range.bytes;
    if (++run != runs_.end()) continue;
    run = runs_.begin();
    within = 0;
    ++block;
  }
}

}  // namespace kvstream::gpu
