// The layout of blocks in a worker's memory. What the daemon's BlockLayout accepts lies inside the
// allocation, its Map agrees byte by byte with a model, and the client's RegionLayout with it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "client/region_layout.h"
#include "kvstream/v1/kvstream.pb.h"
#include "server/base/check.h"
#include "server/gpu/layout.h"
#include "tests/fuzz/input.h"

namespace kvstream::gpu {
namespace {

constexpr uint64_t kWindowBytesMax = 2048;
constexpr size_t kAllRanges = std::numeric_limits<size_t>::max();

// Mostly small, so that layouts fit; now and then at the edge of what a field holds.
uint64_t TakeNumber(fuzz::Input& input) {
  const auto size = input.Take<uint8_t>();
  if (size < 208) return size % 32;
  if (size < 240) return input.Take<uint16_t>();
  if (size < 248) return input.Take<uint64_t>();
  return std::numeric_limits<uint64_t>::max() - input.Take<uint8_t>();
}

std::vector<TensorLayout> TakeTensors(fuzz::Input& input) {
  std::vector<TensorLayout> tensors(input.Below(4));
  for (TensorLayout& tensor : tensors) {
    tensor.offset = TakeNumber(input);
    tensor.block_stride = TakeNumber(input);
    tensor.runs.resize(input.Below(5));
    for (ByteRun& run : tensor.runs) {
      run.offset = TakeNumber(input);
      run.length = TakeNumber(input);
    }
  }
  return tensors;
}

RegionLayout ClientLayout(const std::vector<TensorLayout>& tensors, uint32_t block_count) {
  v1::RegisterMemoryRequest request;
  request.set_block_count(block_count);
  for (const TensorLayout& tensor : tensors) {
    v1::TensorLayout* out = request.add_tensors();
    out->set_tensor_offset(tensor.offset);
    out->set_block_stride(tensor.block_stride);
    for (const ByteRun& run : tensor.runs) {
      v1::ByteRun* out_run = out->add_runs();
      out_run->set_offset(run.offset);
      out_run->set_length(run.length);
    }
  }
  return RegionLayout(request);
}

unsigned __int128 BlockBytes(const std::vector<TensorLayout>& tensors) {
  unsigned __int128 bytes = 0;
  for (const TensorLayout& tensor : tensors) {
    for (const ByteRun& run : tensor.runs) bytes += run.length;
  }
  return bytes;
}

// Where byte `within` of a block is.
unsigned __int128 AddressOf(const std::vector<TensorLayout>& tensors, uint32_t block,
                            uint64_t within) {
  for (const TensorLayout& tensor : tensors) {
    for (const ByteRun& run : tensor.runs) {
      if (within < run.length) {
        return static_cast<unsigned __int128>(block) * tensor.block_stride + tensor.offset +
               run.offset + within;
      }
      within -= run.length;
    }
  }
  KV_CHECK(false);
}

// The ranges are the model's bytes from `offset` on, and no two of them are one.
void CheckRanges(const std::vector<DeviceRange>& ranges, const std::vector<TensorLayout>& tensors,
                 const std::vector<uint32_t>& blocks, uint64_t offset, uint64_t bytes,
                 uint64_t allocation_bytes) {
  const auto block_bytes = static_cast<uint64_t>(BlockBytes(tensors));
  uint64_t at = offset;
  uint64_t end_before = std::numeric_limits<uint64_t>::max();
  for (const DeviceRange& range : ranges) {
    KV_CHECK(range.bytes > 0 && range.bytes <= offset + bytes - at);
    KV_CHECK(range.offset != end_before);
    for (uint64_t i = 0; i < range.bytes; ++i, ++at) {
      const auto address = AddressOf(tensors, blocks[at / block_bytes], at % block_bytes);
      KV_CHECK(address == range.offset + i && address < allocation_bytes);
    }
    end_before = range.offset + range.bytes;
  }
  KV_CHECK(at == offset + bytes);
}

void CheckMap(fuzz::Input& input, const BlockLayout& layout, const RegionLayout& client,
              const std::vector<TensorLayout>& tensors, uint64_t allocation_bytes) {
  std::vector<uint32_t> blocks(1 + input.Below(6));
  for (uint32_t& block : blocks) block = input.Take<uint32_t>() % layout.block_count();
  const unsigned __int128 chunk_bytes = BlockBytes(tensors) * blocks.size();
  if (chunk_bytes > std::numeric_limits<int64_t>::max()) return;
  const uint64_t offset = input.Take<uint64_t>() % static_cast<uint64_t>(chunk_bytes);
  const uint64_t bytes = std::min(static_cast<uint64_t>(chunk_bytes) - offset,
                                  input.Take<uint16_t>() % kWindowBytesMax);

  std::vector<DeviceRange> ranges;
  layout.Map(blocks, offset, bytes, kAllRanges, &ranges);
  CheckRanges(ranges, tensors, blocks, offset, bytes, allocation_bytes);

  std::vector<DeviceRange> some;
  const size_t most = 1 + input.Below(4);
  layout.Map(blocks, offset, bytes, most, &some);
  KV_CHECK(some.size() == std::min(most, ranges.size()));
  KV_CHECK(std::equal(some.begin(), some.end(), ranges.begin()));

  std::vector<Extent> extents;
  KV_CHECK(client.Expand(blocks, offset, bytes, &extents).ok());
  KV_CHECK(std::equal(extents.begin(), extents.end(), ranges.begin(), ranges.end(),
                      [](const Extent& extent, const DeviceRange& range) {
                        return extent.offset == range.offset && extent.length == range.bytes;
                      }));
  const auto past = static_cast<uint64_t>(chunk_bytes) - offset + 1;
  KV_CHECK(!client.Expand(blocks, offset, past, &extents).ok());
}

}  // namespace
}  // namespace kvstream::gpu

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstream;
  fuzz::Input input(data, size);
  const uint64_t allocation_bytes = gpu::TakeNumber(input);
  const auto block_count = static_cast<uint32_t>(gpu::TakeNumber(input));
  const std::vector<gpu::TensorLayout> tensors = gpu::TakeTensors(input);
  const auto layout = gpu::BlockLayout::Make(tensors, block_count, allocation_bytes);
  if (!layout.ok()) {
    KV_CHECK(absl::IsInvalidArgument(layout.status()));
    return 0;
  }
  KV_CHECK(layout->block_count() == block_count && block_count > 0);
  KV_CHECK(layout->block_bytes() == gpu::BlockBytes(tensors));
  KV_CHECK(layout->fragment_bytes() > 0 && layout->fragment_bytes() <= layout->block_bytes());
  const RegionLayout client = gpu::ClientLayout(tensors, block_count);
  KV_CHECK(client.block_bytes() == layout->block_bytes());
  gpu::CheckMap(input, *layout, client, tensors, allocation_bytes);
  return 0;
}
