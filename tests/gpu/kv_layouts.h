// The paged KV layouts of inference engines, each as one allocation with its tensors described for
// RegisterMemory: what a connector would derive from shapes and strides.
//
//   split        (2, blocks, tokens, heads, dim) for each layer: keys and values apart
//   paired       (blocks, 2, tokens, heads, dim) for each layer
//   packed       (blocks, heads, tokens, 2 dim) for each layer
//   LBHNC ...    the six physical orders of [layers, blocks, heads, tokens, content]
//   mla          (blocks, tokens, dim) for each layer
//   mamba        two state tensors for each layer, of odd sizes, in padded pages
//   cross-layer  (blocks, layers, 2, tokens, heads, dim): a block is one run
//   interior     paired, with the layers at odd places of one large allocation
//   two-tensors  keys and values of each layer as tensors of their own
//
// Pure; any thread. Errors: INVALID_ARGUMENT for a name that is none of these.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvstream/v1/kvstream.pb.h"

namespace kvstream {

struct KvShape {
  uint32_t layers = 4;
  uint32_t blocks = 64;
  // Of a block.
  uint32_t tokens = 16;
  uint32_t heads = 2;
  uint32_t head_dim = 64;
  // Of an element; 2 is bf16.
  uint32_t element_bytes = 2;
};

struct KvPool {
  std::string layout;
  uint32_t block_count = 0;
  uint64_t allocation_bytes = 0;
  std::vector<v1::TensorLayout> tensors;

  // Bytes that a block adds to a chunk.
  uint64_t block_bytes() const;
};

const std::vector<std::string>& KvLayoutNames();

// REQUIRES: nothing of the shape is 0.
absl::StatusOr<KvPool> MakeKvPool(const std::string& layout, const KvShape& shape);

// Calls `visit(offset, length)` for each run of a block, in the chunk's order; offsets are those of
// the allocation. Simple on purpose: what the tests compare with.
template <typename Visit>
void ForEachRun(const KvPool& pool, uint32_t block, const Visit& visit) {
  for (const v1::TensorLayout& tensor : pool.tensors) {
    for (const v1::ByteRun& run : tensor.runs()) {
      visit(tensor.tensor_offset() + block * tensor.block_stride() + run.offset(), run.length());
    }
  }
}

}  // namespace kvstream
