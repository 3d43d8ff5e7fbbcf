// Tiers that are filled ten times over.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <system_error>
#include <vector>

#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kChunkBytes = 64 * 1024;
constexpr size_t kPrefix = 32;  // Chunks of a prompt.

class CapacityTest : public testing::Test {
 protected:
  uint64_t BytesThere(size_t tier) const {
    uint64_t bytes = 0;
    for (const fs::path& file : daemon_.Files(tier)) {
      std::error_code gone;
      const uint64_t size = fs::file_size(file, gone);
      bytes += gone ? 0 : size;
    }
    return bytes;
  }
  const engine::TierEngineStats& stats(size_t tier) const { return daemon_.stats().tiers[tier]; }

  static constexpr uint64_t kCapacity[] = {16 << 20, 24 << 20};
  TestDaemon daemon_{[](config::Options& o) {
    for (size_t t = 0; t < 2; ++t) o.tiers[t].capacity_bytes = kCapacity[t];
  }};
  Worker worker_{daemon_.socket(),
                 {.chunk_bytes = kChunkBytes,
                  .segment_bytes = 16 * 1024,
                  .buffer_bytes = kPrefix * kChunkBytes}};
};

TEST_F(CapacityTest, FilledTenTimesOverATierHasWhatItSaysAndServesWhatItHas) {
  std::mt19937 random(8);
  const size_t prompts = 10 * kCapacity[1] / (kPrefix * kChunkBytes);
  size_t hits = 0;
  for (size_t prompt = 0; prompt < prompts; ++prompt) {
    ASSERT_TRUE(worker_.Put(Keys(1 + 1000 * prompt, kPrefix)).ok());
    // One of the last ten is there, or its end is not.
    const size_t other = prompt - std::min<size_t>(prompt, random() % 10);
    const auto keys = Keys(1 + 1000 * other, kPrefix);
    const uint32_t found = worker_.Look(keys);
    if (found == 0) continue;
    const std::vector<uint64_t> run(keys.begin(), keys.begin() + found);
    const v1::RequestDone done = worker_.Get(run);
    for (size_t i = 0; i < done.leading_valid(); ++i) ASSERT_TRUE(worker_.Holds(run[i], i));
    hits += done.leading_valid();
    EXPECT_TRUE(other != prompt || found == kPrefix);
  }
  EXPECT_GT(hits, prompts * kPrefix / 2);
  daemon_.WaitWritten();
  for (size_t t = 0; t < 2; ++t) {
    daemon_.WaitUntil([&] { return BytesThere(t) == stats(t).chunk_bytes.Get(); },
                      "what is given up is gone");
    EXPECT_EQ(daemon_.Files(t).size(), stats(t).chunk_files.Get());
    EXPECT_LE(BytesThere(t), kCapacity[t]);
    EXPECT_GT(BytesThere(t), kCapacity[t] * 3 / 4);
    EXPECT_GT(stats(t).bytes_evicted.Get(), 8 * kCapacity[t]);
    EXPECT_EQ(stats(t).eviction_failures.Get(), 0u);
    EXPECT_EQ(stats(t).corrupt_reads.Get(), 0u);
  }
}

}  // namespace
}  // namespace kvstream
