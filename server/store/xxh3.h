// XXH3, in the variant that the processor does best: the library's plain symbols are compiled for
// the oldest x86, its dispatching ones ask once what the processor can do. The values are the same.
#pragma once

#include <cstddef>
#include <cstdint>

#define XXH_STATIC_LINKING_ONLY  // The hash state on the stack: no allocation for each segment.
#include <xxhash.h>

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // Redefines the names that hash.
#endif

namespace kvstream::store {

// XXH3-64 with a seed, over bytes that come in parts. The library's own reset takes a state whose
// old seed is the new one for ready, so a state in memory that was one before, a stack's say, would
// hash with whatever lies there by now: the old seed has to go first.
class SeededHash {
 public:
  explicit SeededHash(uint64_t seed) {
    XXH3_INITSTATE(&state_);
    XXH3_64bits_reset_withSeed(&state_, seed);
  }
  void Update(const std::byte* data, size_t bytes) { XXH3_64bits_update(&state_, data, bytes); }
  uint64_t Digest() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

}  // namespace kvstream::store
