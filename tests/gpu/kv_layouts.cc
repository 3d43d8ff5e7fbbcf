#include "tests/gpu/kv_layouts.h"

#include <algorithm>
#include <array>

namespace kvstream {
namespace {

constexpr uint64_t kAllocationAlignment = 2 * 1024 * 1024;

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

void AddTensor(KvPool* pool, uint64_t offset, uint64_t stride,
               const std::vector<std::pair<uint64_t, uint64_t>>& runs) {
  v1::TensorLayout& tensor = pool->tensors.emplace_back();
  tensor.set_tensor_offset(offset);
  tensor.set_block_stride(stride);
  for (const auto& [at, length] : runs) {
    const int last = tensor.runs_size() - 1;
    if (last >= 0 && tensor.runs(last).offset() + tensor.runs(last).length() == at) {
      tensor.mutable_runs(last)->set_length(tensor.runs(last).length() + length);
      continue;
    }
    v1::ByteRun* run = tensor.add_runs();
    run->set_offset(at);
    run->set_length(length);
  }
}

// Keys, or values, of a block of a layer.
uint64_t HalfBlock(const KvShape& s) {
  return uint64_t{s.tokens} * s.heads * s.head_dim * s.element_bytes;
}

// Tensors of one run for each block, one after the other.
void AddPlain(KvPool* pool, uint32_t tensors, uint64_t block_bytes) {
  for (uint32_t i = 0; i < tensors; ++i) {
    AddTensor(pool, pool->allocation_bytes, block_bytes, {{0, block_bytes}});
    pool->allocation_bytes += block_bytes * pool->block_count;
  }
}

void AddSplit(KvPool* pool, const KvShape& s) {
  const uint64_t half = HalfBlock(s);
  for (uint32_t layer = 0; layer < s.layers; ++layer) {
    AddTensor(pool, pool->allocation_bytes, half, {{0, half}, {half * s.blocks, half}});
    pool->allocation_bytes += 2 * half * s.blocks;
  }
}

// A tensor for each layer of [L, B, H, N, C] in the physical order that the letters give, outermost
// first. A block's runs are in the order of addresses.
void AddOrder(KvPool* pool, const std::string& order, const KvShape& s) {
  const std::string letters = "LBHNC";
  const std::array<uint64_t, 5> sizes = {s.layers, s.blocks, s.heads, s.tokens,
                                         2 * uint64_t{s.head_dim} * s.element_bytes};
  std::array<uint64_t, 5> strides = {};
  uint64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const size_t dimension = letters.find(order[i]);
    strides[dimension] = stride;
    stride *= sizes[dimension];
  }
  const bool heads_outside = order.find('H') < order.find('N');
  const size_t outer = heads_outside ? 2 : 3;
  const size_t inner = heads_outside ? 3 : 2;
  std::vector<std::pair<uint64_t, uint64_t>> runs;
  for (uint64_t i = 0; i < sizes[outer]; ++i) {
    for (uint64_t j = 0; j < sizes[inner]; ++j) {
      runs.emplace_back(i * strides[outer] + j * strides[inner], sizes[4]);
    }
  }
  for (uint32_t layer = 0; layer < s.layers; ++layer) {
    AddTensor(pool, layer * strides[0], strides[1], runs);
  }
  pool->allocation_bytes = stride;
}

// Convolution states of three columns whose rows are no multiple of four bytes, and recurrent
// states of four-byte elements; pages padded, so that bytes between blocks belong to nobody.
void AddMamba(KvPool* pool, const KvShape& s) {
  const uint64_t row = uint64_t{s.heads} * s.head_dim + 5;
  const uint64_t convolution = row * 3 * s.element_bytes;
  const uint64_t recurrent = uint64_t{s.heads} * s.head_dim * 16 * 4;
  for (uint32_t layer = 0; layer < s.layers; ++layer) {
    for (const uint64_t bytes : {convolution, recurrent}) {
      const uint64_t page = RoundUp(bytes + 1, 1024);
      AddTensor(pool, pool->allocation_bytes, page, {{0, bytes}});
      pool->allocation_bytes += page * s.blocks;
    }
  }
}

void AddInterior(KvPool* pool, const KvShape& s) {
  const uint64_t block = 2 * HalfBlock(s);
  uint64_t at = 3 * 4096 + 256;
  for (uint32_t layer = 0; layer < s.layers; ++layer) {
    AddTensor(pool, at, block, {{0, block}});
    // A gap of odd 16-byte units, as an allocator's neighbours leave.
    at += block * s.blocks + 16 * (2 * layer + 1);
  }
  pool->allocation_bytes = at + 4096;
}

}  // namespace

uint64_t KvPool::block_bytes() const {
  uint64_t bytes = 0;
  ForEachRun(*this, 0, [&bytes](uint64_t, uint64_t length) { bytes += length; });
  return bytes;
}

const std::vector<std::string>& KvLayoutNames() {
  static const auto* const kNames = new std::vector<std::string>{
      "split", "paired", "packed", "LBHNC", "LBNHC",       "LHBNC",    "BLHNC",
      "BLNHC", "BHLNC",  "mla",    "mamba", "cross-layer", "interior", "two-tensors"};
  return *kNames;
}

absl::StatusOr<KvPool> MakeKvPool(const std::string& layout, const KvShape& shape) {
  const std::vector<std::string>& names = KvLayoutNames();
  if (std::find(names.begin(), names.end(), layout) == names.end()) {
    return absl::InvalidArgumentError("make KV pool: no layout \"" + layout + "\"");
  }
  KvPool pool;
  pool.layout = layout;
  pool.block_count = shape.blocks;
  if (layout == "split") {
    AddSplit(&pool, shape);
  } else if (layout == "paired" || layout == "packed") {
    AddPlain(&pool, shape.layers, 2 * HalfBlock(shape));
  } else if (layout == "mla") {
    AddPlain(&pool, shape.layers,
             uint64_t{shape.tokens} * shape.head_dim * 9 * shape.element_bytes);
  } else if (layout == "mamba") {
    AddMamba(&pool, shape);
  } else if (layout == "cross-layer") {
    AddPlain(&pool, 1, 2 * HalfBlock(shape) * shape.layers);
  } else if (layout == "interior") {
    AddInterior(&pool, shape);
  } else if (layout == "two-tensors") {
    AddPlain(&pool, 2 * shape.layers, HalfBlock(shape));
  } else {
    AddOrder(&pool, layout, shape);
  }
  pool.allocation_bytes = RoundUp(pool.allocation_bytes, kAllocationAlignment);
  return pool;
}

}  // namespace kvstream
