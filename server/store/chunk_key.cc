#include "server/store/chunk_key.h"

#include <cstring>

#include "server/base/check.h"
#include "server/store/encoding.h"

namespace kvstream::store {

SaltDigest DigestOfSalt(std::string_view salt) { return {Xxh3Digest(salt)}; }

std::string EncodeKey(const ChunkKey& key) {
  KV_CHECK(key.prefix_hash.size() >= kPrefixHashBytesMin &&
           key.prefix_hash.size() <= kPrefixHashBytesMax);
  std::string out;
  out.reserve(kEncodedKeyBytesMax);
  AppendDigest(key.name_space, &out);
  AppendLe(key.group, &out);
  AppendLe(key.shard, &out);
  AppendLe(key.shards, &out);
  AppendDigest(key.salt, &out);
  AppendLe(static_cast<uint8_t>(key.prefix_hash.size()), &out);
  out.append(key.prefix_hash);
  return out;
}

KeyDigest DigestOfKey(const ChunkKey& key) { return DigestOfEncodedKey(EncodeKey(key)); }

KeyDigest DigestOfEncodedKey(std::string_view encoded) { return {Xxh3Digest(encoded)}; }

SiblingsId SiblingsOf(const ChunkKey& key) { return SiblingsOfEncodedKey(EncodeKey(key)); }

SiblingsId SiblingsOfEncodedKey(std::string_view encoded) {
  constexpr size_t kNamespaceBytes = sizeof(NamespaceId);
  constexpr size_t kShardBytes = 3 * sizeof(uint32_t);
  KV_CHECK(encoded.size() > kNamespaceBytes + kShardBytes);
  std::string shared(encoded.substr(0, kNamespaceBytes));
  shared.append(encoded.substr(kNamespaceBytes + kShardBytes));
  const auto digest = Xxh3Digest(shared);
  SiblingsId id;
  std::memcpy(&id.value, digest.data(), sizeof id.value);
  return id;
}

}  // namespace kvstream::store
