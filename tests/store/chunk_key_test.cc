#include "server/store/chunk_key.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "tests/store/sample.h"

namespace kvstream::store {
namespace {

TEST(ChunkKeyTest, EveryFieldChangesTheDigest) {
  const std::function<void(ChunkKey*)> changes[] = {
      [](ChunkKey*) {},
      [](ChunkKey* k) { k->name_space.bytes[15] ^= 1; },
      [](ChunkKey* k) { k->group += 1; },
      [](ChunkKey* k) { k->shard += 1; },
      [](ChunkKey* k) { k->shards += 1; },
      [](ChunkKey* k) { k->salt = DigestOfSalt(""); },
      [](ChunkKey* k) { k->salt = DigestOfSalt("tenant2"); },
      [](ChunkKey* k) { k->prefix_hash.back() ^= 1; },
      [](ChunkKey* k) { k->prefix_hash.push_back('\0'); },
      [](ChunkKey* k) { std::swap(k->group, k->shard); },
  };
  std::set<KeyDigest> digests;
  for (const auto& change : changes) {
    ChunkKey key = SampleKey();
    change(&key);
    EXPECT_TRUE(digests.insert(DigestOfKey(key)).second);
  }
}

TEST(ChunkKeyTest, LongestKeyFitsItsLimit) {
  ChunkKey key = SampleKey();
  key.prefix_hash.assign(kPrefixHashBytesMax, '\xff');
  EXPECT_EQ(EncodeKey(key).size(), kEncodedKeyBytesMax);
}

TEST(ChunkKeyTest, DigestOfTheEncodingIsTheDigestOfTheKey) {
  EXPECT_EQ(DigestOfEncodedKey(EncodeKey(SampleKey())), DigestOfKey(SampleKey()));
}

TEST(ChunkKeyDeathTest, PrefixHashOutsideItsLimitsIsNeverEncoded) {
  ChunkKey key = SampleKey();
  key.prefix_hash.assign(kPrefixHashBytesMin - 1, 'x');
  EXPECT_DEATH(EncodeKey(key), "kPrefixHashBytesMin");
  key.prefix_hash.assign(kPrefixHashBytesMax + 1, 'x');
  EXPECT_DEATH(EncodeKey(key), "kPrefixHashBytesMax");
}

}  // namespace
}  // namespace kvstream::store
