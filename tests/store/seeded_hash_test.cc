#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <vector>

#include "server/store/xxh3.h"

namespace kvstream::store {
namespace {

// What a stack does to a state: it is made where one of the same seed was, and other calls have
// written over a part of it since.
TEST(SeededHashTest, WhatLiesInItsMemoryMeansNothing) {
  std::vector<std::byte> bytes(100000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 131 + i / 777);
  alignas(SeededHash) std::byte memory[sizeof(SeededHash)];
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{0x9E3779B97F4A7C15}}) {
    const uint64_t expected = XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
    for (size_t dirty_from = 0; dirty_from < sizeof memory; dirty_from += 64) {
      new (memory) SeededHash(seed);
      std::memset(memory + dirty_from, 0xAA, 64);
      asm volatile("" : : "r"(memory) : "memory");  // The compiler may not think it away.
      auto* hash = new (memory) SeededHash(seed);
      hash->Update(bytes.data(), 3);
      hash->Update(bytes.data() + 3, bytes.size() - 3);
      ASSERT_EQ(hash->Digest(), expected) << "seed " << seed << ", dirty from " << dirty_from;
    }
  }
}

}  // namespace
}  // namespace kvstream::store
