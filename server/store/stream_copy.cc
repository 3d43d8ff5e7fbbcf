#include "server/store/stream_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kvstream::store {

#if defined(__SSE2__)

void StreamCopy(std::byte* destination, const std::byte* source, size_t bytes) {
  constexpr size_t kLine = 64;
  constexpr size_t kVectors = kLine / sizeof(__m128i);
  // Up to the first whole cache line of the destination: half-filled lines stream slowly.
  const size_t head = -reinterpret_cast<uintptr_t>(destination) % kLine;
  if (bytes < head + kLine) {
    std::memcpy(destination, source, bytes);
    return;
  }
  std::memcpy(destination, source, head);
  size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    __m128i line[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      line[v] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + at) + v);
    }
    for (size_t v = 0; v < kVectors; ++v) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(destination + at) + v, line[v]);
    }
  }
  std::memcpy(destination + at, source + at, bytes - at);
  // Streamed stores are not ordered with a later release of a lock but by this.
  _mm_sfence();
}

#else

void StreamCopy(std::byte* destination, const std::byte* source, size_t bytes) {
  std::memcpy(destination, source, bytes);
}

#endif

}  // namespace kvstream::store
