// What the chunks of a replay hold. Every word of 8 bytes is an invertible mix of the seed, the
// chunk's id and the word's place in it: so each byte can be verified without keeping any, and a
// word that is wrong tells where it came from.
//
// Thread rule: immutable; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace kvstream::replay {

// What a buffer holds before a read, so that bytes which were never written are seen.
inline constexpr std::byte kPoison{0xAB};

struct WrongContent {
  uint64_t wrong_bytes = 0;
  // Of the first wrong word.
  uint64_t offset = 0;
  // What it holds instead, in words.
  std::string held;
};

class Content {
 public:
  // Places of words fit into 28 bits.
  static constexpr uint64_t kChunkBytesMax = uint64_t{1} << 31;

  // `ids_end`: one more than the largest id, at most kIdMax + 1. REQUIRES: chunk_bytes at most
  // kChunkBytesMax.
  Content(uint64_t seed, uint64_t chunk_bytes, uint64_t ids_end);

  void Fill(uint64_t id, std::span<std::byte> chunk) const;
  // Nothing when every byte is right.
  std::optional<WrongContent> Verify(uint64_t id, std::span<const std::byte> chunk) const;

 private:
  uint64_t Word(uint64_t id, uint64_t index) const;
  std::string Attribute(uint64_t held, uint64_t expected) const;

  const uint64_t seed_;
  const uint64_t chunk_bytes_;
  const uint64_t ids_end_;
};

}  // namespace kvstream::replay
