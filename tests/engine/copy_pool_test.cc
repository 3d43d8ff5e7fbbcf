#include "server/engine/copy_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "server/base/mutex.h"
#include "server/store/chunk_format.h"

namespace kvstream::engine {
namespace {

TEST(CopyPoolTest, EveryJobCopiesToAllItsDestinationsAndReportsTheChecksum) {
  Mutex mu;
  std::map<uint64_t, uint64_t> checksums;
  std::vector<std::byte> source(100000);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7);
  KeyDigest key;
  key.bytes[0] = 1;
  std::vector<std::vector<std::byte>> copies(64, std::vector<std::byte>(source.size() + 96));
  {
    CopyPool pool(3, [&](const CopyResult& result) {
      MutexLock lock(&mu);
      EXPECT_TRUE(checksums.emplace(result.id, result.checksum).second);
      EXPECT_EQ(result.part, result.id % 5);
    });
    for (uint64_t id = 0; id < 32; ++id) {
      copies[2 * id].back() = std::byte{0xFF};  // The padding must be zeroed.
      pool.Submit({.kind = id % 3 == 0 ? CopyKind::kStore : CopyKind::kSegment,
                   .id = id,
                   .part = static_cast<uint32_t>(id % 5),
                   .key = key,
                   .segment = 4,
                   .source = source,
                   .destinations = {copies[2 * id].data(), copies[2 * id + 1].data()},
                   .pad_bytes = 96});
    }
  }  // The pool finishes what was submitted.
  ASSERT_EQ(checksums.size(), 32u);
  for (const auto& [id, checksum] : checksums) {
    EXPECT_EQ(checksum, store::SegmentChecksum(key, 4, source));
  }
  for (const auto& copy : copies) {
    EXPECT_TRUE(std::equal(source.begin(), source.end(), copy.begin()));
    EXPECT_EQ(copy.back(), std::byte{0});
  }
}

}  // namespace
}  // namespace kvstream::engine
