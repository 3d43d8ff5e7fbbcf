// What a chunk is called: the full key, its canonical encoding, and the digest that names it in the
// index and on disk.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/base/types.h"

namespace kvstream::store {

inline constexpr size_t kPrefixHashBytesMin = 16;
inline constexpr size_t kPrefixHashBytesMax = 64;

// A full chunk key. Two keys that differ in any field name different chunks.
struct ChunkKey {
  NamespaceId name_space;
  uint32_t group = 0;
  // Shard `shard` of `shards`; 0 of 1 for a replicated group.
  uint32_t shard = 0;
  uint32_t shards = 1;
  // Digest of the request's salt (tenant, adapter). An empty salt has a digest too.
  Digest128<struct SaltTag> salt;
  // The engine's chained prefix hash, raw, kPrefixHashBytesMin .. kPrefixHashBytesMax bytes.
  std::string prefix_hash;

  bool operator==(const ChunkKey&) const = default;
};

using SaltDigest = decltype(ChunkKey::salt);

// XXH3-128 of the salt.
SaltDigest DigestOfSalt(std::string_view salt);

// The canonical encoding: fixed-width little-endian fields, then the prefix hash with its length.
// At most kEncodedKeyBytesMax bytes. FORMAT.md has the table.
inline constexpr size_t kEncodedKeyBytesMax = 16 + 4 + 4 + 4 + 16 + 1 + kPrefixHashBytesMax;
std::string EncodeKey(const ChunkKey& key);

// XXH3-128 of the canonical encoding. Not a defence against someone who can choose raw key bytes:
// those come from the engine, which hashes tokens, and every file carries its full key.
KeyDigest DigestOfKey(const ChunkKey& key);
KeyDigest DigestOfEncodedKey(std::string_view encoded);

// Of the key without its group, shard and number of shards.
SiblingsId SiblingsOf(const ChunkKey& key);
// REQUIRES: an encoding.
SiblingsId SiblingsOfEncodedKey(std::string_view encoded);

}  // namespace kvstream::store
