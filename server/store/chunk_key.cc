#include "server/store/chunk_key.h"

#include <array>
#include <cstddef>
#include <cstring>

#include "server/base/check.h"
#include "server/store/encoding.h"

namespace kvstream::store {

SaltDigest DigestOfSalt(std::string_view salt) { return {Xxh3Digest(salt)}; }

namespace {

// On the stack: a lookup encodes thousands.
class EncodedKey {
 public:
  explicit EncodedKey(const ChunkKey& key) {
    KV_CHECK(key.prefix_hash.size() >= kPrefixHashBytesMin &&
             key.prefix_hash.size() <= kPrefixHashBytesMax);
    Append(key.name_space.bytes.data(), key.name_space.bytes.size());
    AppendInt(key.group);
    AppendInt(key.shard);
    AppendInt(key.shards);
    Append(key.salt.bytes.data(), key.salt.bytes.size());
    AppendInt(static_cast<uint8_t>(key.prefix_hash.size()));
    Append(key.prefix_hash.data(), key.prefix_hash.size());
  }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), size_}; }

 private:
  template <typename Int>
  void AppendInt(Int value) {
    StoreLe(value, bytes_.data() + size_);
    size_ += sizeof value;
  }
  void Append(const void* from, size_t bytes) {
    std::memcpy(bytes_.data() + size_, from, bytes);
    size_ += bytes;
  }

  std::array<std::byte, kEncodedKeyBytesMax> bytes_{};
  size_t size_ = 0;
};

}  // namespace

std::string EncodeKey(const ChunkKey& key) { return std::string(EncodedKey(key).text()); }

KeyDigest DigestOfKey(const ChunkKey& key) { return DigestOfEncodedKey(EncodedKey(key).text()); }

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
