// What the room's canonical encodings share: little-endian integers, length-prefixed strings and
// the 128-bit digest over the result. Stateless; any thread.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "server/base/types.h"

namespace kvstream::store {

template <std::unsigned_integral Int>
void StoreLe(Int value, std::byte* to) {
  for (size_t i = 0; i < sizeof value; ++i) {
    to[i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
  }
}

template <std::unsigned_integral Int>
Int LoadLe(const std::byte* from) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Int); ++i) {
    value |= static_cast<uint64_t>(from[i]) << (8 * i);
  }
  return static_cast<Int>(value);
}

template <std::unsigned_integral Int>
void AppendLe(Int value, std::string* out) {
  for (size_t i = 0; i < sizeof value; ++i) {
    out->push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
  }
}

template <typename Tag>
void AppendDigest(const Digest128<Tag>& digest, std::string* out) {
  out->append(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
}

template <typename Tag>
Digest128<Tag> LoadDigest(const std::byte* from) {
  Digest128<Tag> digest;
  std::memcpy(digest.bytes.data(), from, digest.bytes.size());
  return digest;
}

// The length as 4 bytes, then the bytes.
void AppendString(std::string_view text, std::string* out);

// XXH3-128, unseeded, in xxHash's canonical (big-endian) byte order: what xxh128sum prints.
std::array<uint8_t, 16> Xxh3Digest(std::string_view bytes);

}  // namespace kvstream::store
