// Lookups alone, over an index and a router that the test fills.
#include "server/engine/lookups.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace kvstream::engine {
namespace {

constexpr uint32_t kShards = 4;
constexpr TierId kNvme{0};
constexpr TierId kPfs{1};

sched::RouterOptions TwoLanes() {
  sched::RouterOptions options;
  options.lanes.resize(2);
  return options;
}

class LookupsTest : public testing::Test {
 protected:
  static KeyDigest Digest(uint64_t chunk, uint32_t shard) {
    KeyDigest digest;
    std::memcpy(digest.bytes.data(), &chunk, sizeof chunk);
    std::memcpy(digest.bytes.data() + sizeof chunk, &shard, sizeof shard);
    return digest;
  }
  void Add(uint64_t chunk, uint32_t shard, TierId tier) {
    const std::vector<uint64_t> checksums{1};
    index_.AddReplica({Digest(chunk, shard), {chunk + 1}, {}, {4096, 4096}, {}, checksums}, tier);
  }
  // All shards of all chunks, on both tiers.
  void Fill(uint64_t chunks) {
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
      for (uint32_t shard = 0; shard < kShards; ++shard) {
        for (const TierId tier : {kNvme, kPfs}) Add(chunk, shard, tier);
      }
    }
  }
  void Lose(uint64_t chunk, uint32_t shard, TierId tier) {
    index_.RemoveReplicas(Digest(chunk, shard), tier);
  }

  LookupResult Look(uint64_t chunks, bool per_key) {
    Lookup lookup;
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
      for (uint32_t shard = 0; shard < kShards; ++shard) {
        lookup.digests.push_back(Digest(chunk, shard));
      }
    }
    lookup.members = kShards;
    lookup.per_key = per_key;
    std::optional<LookupResult> answer;
    lookup.reply = [&answer](absl::StatusOr<LookupResult> result) { answer = *std::move(result); };
    lookups_.Begin(std::move(lookup), 0);
    for (turns_ = 0; !lookups_.empty(); ++turns_) lookups_.Pump(0);
    lookups_.SendReplies();
    EXPECT_TRUE(answer.has_value());
    return answer.value_or(LookupResult());
  }
  // That the run ends before the chunk, whichever way it is asked, and what is said of each chunk.
  void ExpectRunOf(uint64_t run, uint64_t chunks, uint64_t on_nvme, uint64_t on_pfs) {
    for (const bool per_key : {false, true}) {
      const LookupResult found = Look(chunks, per_key);
      EXPECT_EQ(found.leading_run, run);
      EXPECT_EQ(found.tier_chunks, (std::vector<uint32_t>{static_cast<uint32_t>(on_nvme),
                                                          static_cast<uint32_t>(on_pfs)}));
      EXPECT_EQ(found.staged, 0u);
      if (!per_key) continue;
      std::string present(chunks, '\1');
      if (run < chunks) present[run] = '\0';
      EXPECT_EQ(found.present, present);
    }
  }

  store::ChunkIndex index_;
  sched::SlotAllocator slots_{kMiB, kMiB};
  sched::Router router_{TwoLanes(), &slots_};
  EngineStats stats_;
  Lookups lookups_{{.index = &index_, .stats = &stats_, .router = &router_, .tiers = 2}};
  int turns_ = 0;
};

TEST_F(LookupsTest, AShardThatIsMissingEndsTheRunForAllRanks) {
  Fill(16);
  ExpectRunOf(16, 16, 64, 64);
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    for (const TierId tier : {kNvme, kPfs}) Lose(5, shard, tier);
    ExpectRunOf(5, 16, 20, 20);
    for (const TierId tier : {kNvme, kPfs}) Add(5, shard, tier);
  }
  ExpectRunOf(16, 16, 64, 64);
}

TEST_F(LookupsTest, AShardOfATierThatIsOutIsMissing) {
  Fill(16);
  Lose(5, 2, kNvme);
  ExpectRunOf(16, 16, 63, 64);
  router_.SetTierInService(kPfs, false, 0);
  ExpectRunOf(5, 16, 20, 0);
  router_.SetTierInService(kPfs, true, 0);
  ExpectRunOf(16, 16, 63, 64);
}

TEST_F(LookupsTest, ALookupOfManyTurnsSaysTheSame) {
  Fill(5000);
  for (const TierId tier : {kNvme, kPfs}) Lose(4500, 3, tier);
  ExpectRunOf(4500, 5000, 18000, 18000);
  EXPECT_GT(turns_, 1);
}

}  // namespace
}  // namespace kvstream::engine
