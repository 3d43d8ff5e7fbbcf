#include "client/cuda/copy_kernel.h"

namespace kvstream::cuda {
namespace {

constexpr unsigned kLanes = 32;

// Whole words that are aligned on both sides, by one warp; four in flight for each lane. The bytes
// are touched once, so they should not push the engine's out of the caches.
template <typename Word>
__device__ void CopyWords(const char* src, char* dst, uint64_t words, unsigned lane) {
  const Word* from = reinterpret_cast<const Word*>(src);
  Word* to = reinterpret_cast<Word*>(dst);
  uint64_t i = lane;
  for (; i + 3 * kLanes < words; i += 4 * kLanes) {
    const Word a = __ldcs(from + i);
    const Word b = __ldcs(from + i + kLanes);
    const Word c = __ldcs(from + i + 2 * kLanes);
    const Word d = __ldcs(from + i + 3 * kLanes);
    __stcs(to + i, a);
    __stcs(to + i + kLanes, b);
    __stcs(to + i + 2 * kLanes, c);
    __stcs(to + i + 3 * kLanes, d);
  }
  for (; i < words; i += kLanes) __stcs(to + i, __ldcs(from + i));
}

// Both sides have the same address modulo the word: bytes up to a whole word, words, bytes.
template <typename Word>
__device__ void CopyRange(const char* src, char* dst, uint64_t bytes, unsigned lane) {
  uint64_t head = (0 - reinterpret_cast<uint64_t>(src)) & (sizeof(Word) - 1);
  if (head > bytes) head = bytes;
  const uint64_t words = (bytes - head) / sizeof(Word);
  const uint64_t tail = head + words * sizeof(Word);
  // Fewer than 16 bytes each: a lane has one at most.
  if (lane < head) dst[lane] = src[lane];
  CopyWords<Word>(src + head, dst + head, words, lane);
  if (tail + lane < bytes) dst[tail + lane] = src[tail + lane];
}

// One warp for each copy.
__global__ void __launch_bounds__(1024) CopyRanges(const Copy* copies, uint32_t count) {
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned warps = gridDim.x * blockDim.x / kLanes;
  const unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) / kLanes;
  for (uint32_t i = warp; i < count; i += warps) {
    const Copy copy = copies[i];
    const char* src = reinterpret_cast<const char*>(copy.src);
    char* dst = reinterpret_cast<char*>(copy.dst);
    const unsigned skew = static_cast<unsigned>(copy.src ^ copy.dst);
    if (skew % 16 == 0) {
      CopyRange<uint4>(src, dst, copy.bytes, lane);
    } else if (skew % 8 == 0) {
      CopyRange<uint2>(src, dst, copy.bytes, lane);
    } else if (skew % 4 == 0) {
      CopyRange<unsigned int>(src, dst, copy.bytes, lane);
    } else if (skew % 2 == 0) {
      CopyRange<unsigned short>(src, dst, copy.bytes, lane);
    } else {
      CopyWords<unsigned char>(src, dst, copy.bytes, lane);
    }
  }
}

}  // namespace

cudaError_t LaunchCopies(const Copy* copies, uint32_t count, CopyGrid grid, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  CopyRanges<<<grid.blocks, grid.threads, 0, stream>>>(copies, count);
  return cudaGetLastError();
}

}  // namespace kvstream::cuda
