#include "client/replay/content.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvstream::replay {
namespace {

constexpr uint64_t kIndexBits = 28;
constexpr uint64_t kIndexMask = (uint64_t{1} << kIndexBits) - 1;
constexpr uint64_t kFirst = 0x9fb21c651e98df25;
constexpr uint64_t kSecond = 0xd6e8feb86659fd93;
constexpr uint64_t kWordBytes = sizeof(uint64_t);
// Words that are compared before anything is decided: long enough to run at memory speed.
constexpr uint64_t kBlockWords = 512;

// Odd numbers have an inverse modulo 2^64; each round of Newton's method doubles its right bits.
constexpr uint64_t Inverse(uint64_t odd) {
  uint64_t inverse = odd;
  for (int i = 0; i < 6; ++i) inverse *= 2 - odd * inverse;
  return inverse;
}
static_assert(kFirst * Inverse(kFirst) == 1 && kSecond * Inverse(kSecond) == 1);

constexpr uint64_t Mix(uint64_t v) {
  v *= kFirst;
  v ^= v >> 32;
  v *= kSecond;
  return v ^ (v >> 32);
}

constexpr uint64_t Unmix(uint64_t v) {
  v ^= v >> 32;
  v *= Inverse(kSecond);
  v ^= v >> 32;
  return v * Inverse(kFirst);
}
static_assert(Unmix(Mix(0x0123456789abcdef)) == 0x0123456789abcdef);

uint64_t Load(const std::byte* from, uint64_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, from, bytes);
  return word;
}

}  // namespace

Content::Content(uint64_t seed, uint64_t chunk_bytes, uint64_t ids_end)
    : seed_(Mix(seed + 1)), chunk_bytes_(chunk_bytes), ids_end_(ids_end) {}

uint64_t Content::Word(uint64_t id, uint64_t index) const {
  return Mix((id << kIndexBits | index) ^ seed_);
}

void Content::Fill(uint64_t id, std::span<std::byte> chunk) const {
  const uint64_t words = chunk.size() / kWordBytes;
  for (uint64_t i = 0; i < words; ++i) {
    const uint64_t word = Word(id, i);
    std::memcpy(chunk.data() + i * kWordBytes, &word, kWordBytes);
  }
  const uint64_t last = Word(id, words);
  std::memcpy(chunk.data() + words * kWordBytes, &last, chunk.size() % kWordBytes);
}

std::optional<WrongContent> Content::Verify(uint64_t id, std::span<const std::byte> chunk) const {
  WrongContent wrong;
  const uint64_t words = (chunk.size() + kWordBytes - 1) / kWordBytes;
  const uint64_t whole = chunk.size() / kWordBytes;
  for (uint64_t block = 0; block < words; block += kBlockWords) {
    const uint64_t end = std::min(block + kBlockWords, words);
    uint64_t difference = 0;
    for (uint64_t i = block; i < std::min(end, whole); ++i) {
      difference |= Load(chunk.data() + i * kWordBytes, kWordBytes) ^ Word(id, i);
    }
    if (difference == 0 && end <= whole) continue;
    for (uint64_t i = block; i < end; ++i) {
      const uint64_t bytes = std::min(kWordBytes, chunk.size() - i * kWordBytes);
      const uint64_t mask = ~uint64_t{0} >> (64 - 8 * bytes);
      const uint64_t held = Load(chunk.data() + i * kWordBytes, bytes);
      const uint64_t expected = Word(id, i) & mask;
      if (held == expected) continue;
      if (wrong.wrong_bytes == 0) {
        wrong.offset = i * kWordBytes;
        wrong.held = bytes == kWordBytes ? Attribute(held, expected) : "part of a word";
      }
      for (uint64_t b = 0; b < bytes; ++b) {
        wrong.wrong_bytes += ((held ^ expected) >> (8 * b) & 0xff) != 0 ? 1 : 0;
      }
    }
  }
  if (wrong.wrong_bytes == 0) return std::nullopt;
  return wrong;
}

std::string Content::Attribute(uint64_t held, uint64_t expected) const {
  if (held == 0xabababababababab) return "the poison from before the read";
  if (held == 0) return "zeroes";
  if (std::popcount(held ^ expected) <= 2) return "the right word with flipped bits";
  const uint64_t plain = Unmix(held) ^ seed_;
  const uint64_t id = plain >> kIndexBits;
  const uint64_t offset = (plain & kIndexMask) * kWordBytes;
  if (id < ids_end_ && offset < chunk_bytes_) {
    return "the word at offset " + std::to_string(offset) + " of chunk " + std::to_string(id);
  }
  return "a word of no chunk of this trace";
}

}  // namespace kvstream::replay
