// The DRAM cache over real tiers: what stays in the pool is read from there, and makes room.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "tests/engine/engine_rig.h"
#include "tests/support/log_recorder.h"

namespace kvstream::engine {
namespace {

// Of the rig's pool; what only reads may use, and all of it.
constexpr uint64_t kSharedChunks = 4 * kMiB / EngineRig::kChunkBytes;
constexpr uint64_t kPoolChunks = 8 * kMiB / EngineRig::kChunkBytes;

class CacheTest : public testing::TestWithParam<sched::CachePolicyKind> {
 protected:
  CacheTest() { session_ = rig_.Open(sink_); }

  // Published on both tiers.
  void Put(const std::vector<uint64_t>& keys) {
    rig_.Fill(session_, keys);
    Store store = rig_.StoreOf(next_op_, keys);
    store.want_durable = true;
    rig_.Send(session_, *sink_, std::move(store));
    EXPECT_TRUE(sink_->Wait<Quiesced>(next_op_++).status.ok());
    rig_.WaitUntil([this] { return rig_.stats().staged_bytes.Get() == 0; }, "all is written");
  }
  uint32_t Get(const std::vector<uint64_t>& keys) {
    rig_.Poison(session_);
    rig_.Send(session_, *sink_, rig_.StepOf(next_op_, keys));
    sink_->Wait<Quiesced>(next_op_);
    const RequestDone done = sink_->Wait<RequestDone>(next_op_++);
    EXPECT_TRUE(done.leading_valid != keys.size() || rig_.Holds(session_, keys));
    return done.leading_valid;
  }
  // What a tier would have to read hangs.
  void Gate(bool closed) {
    for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateReads(closed);
  }
  void TakeTiers(bool in_service) {
    std::atomic<int> changed = 0;
    for (uint32_t t = 0; t < 2; ++t) {
      rig_.engine().Post(SetTierInService{TierId{t}, in_service, [&changed](bool) { ++changed; }});
    }
    rig_.WaitUntil([&changed] { return changed == 2; }, "the tiers are taken out, or back");
  }
  uint64_t ReadFromTiers() const {
    return rig_.stats().tiers[0].segments_read.Get() + rig_.stats().tiers[1].segments_read.Get();
  }

  EngineRig rig_{[](EngineOptions& o) { o.cache = GetParam(); }};
  std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
  SessionId session_;
  uint64_t next_op_ = 1;
};

TEST_P(CacheTest, WhatWasStoredIsReadFromThePoolOnceItIsPublished) {
  const auto keys = Keys(1, 16);
  Put(keys);
  rig_.WaitUntil([&] { return rig_.stats().cache_chunks.Get() == 16; }, "it is in the cache");
  EXPECT_EQ(rig_.stats().cache_bytes.Get(), 16 * EngineRig::kChunkBytes);
  EXPECT_EQ(rig_.stats().pool_used_bytes.Get(), 0u);
  Gate(true);
  EXPECT_EQ(Get(keys), 16u);
  EXPECT_EQ(rig_.stats().bytes_from_pool.Get(), 16 * EngineRig::kChunkBytes);
  EXPECT_EQ(ReadFromTiers(), 0u);
}

TEST_P(CacheTest, WhatWasReadIsReadFromThePoolTheNextTime) {
  const auto keys = Keys(1, 8);
  Put(keys);
  for (uint64_t first = 100; first < 100 + 2 * kSharedChunks; first += 16) Put(Keys(first, 16));
  // None of them is left.
  ASSERT_EQ(Get(keys), 8u);
  const uint64_t read = ReadFromTiers();
  ASSERT_EQ(read, 8 * EngineRig::kChunkBytes / EngineRig::kSegmentBytes);
  rig_.WaitUntil([&] { return rig_.stats().pool_used_bytes.Get() == 0; }, "all is let go");
  Gate(true);
  EXPECT_EQ(Get(keys), 8u);
  EXPECT_EQ(ReadFromTiers(), read);
}

TEST_P(CacheTest, StoresAndReadsOfAnySizeFindRoomInAFullCache) {
  std::vector<std::vector<uint64_t>> steps;
  for (uint64_t first = 1; first < 3 * kPoolChunks; first += 32) {
    steps.push_back(Keys(first, 32));
    Put(steps.back());
  }
  for (const auto& keys : steps) EXPECT_EQ(Get(keys), keys.size());
  const EngineStats& stats = rig_.stats();
  rig_.WaitUntil([&] { return stats.pool_used_bytes.Get() == 0; }, "all is let go");
  EXPECT_GT(stats.cache_evicted.Get(), 0u);
  EXPECT_EQ(stats.cache_inserted.Get(), stats.cache_evicted.Get() + stats.cache_chunks.Get());
  EXPECT_EQ(stats.cache_bytes.Get(), stats.cache_chunks.Get() * EngineRig::kChunkBytes);
  EXPECT_EQ(stats.chunks_dropped.Get(), 0u);
  EXPECT_LE(stats.cache_chunks.Get(), kPoolChunks);
  EXPECT_GE(stats.cache_chunks.Get(), kSharedChunks);
}

TEST_P(CacheTest, WhatOnlyTheCacheHasIsServedAndStoredAnew) {
  const auto keys = Keys(1, 4);
  Put(keys);
  TakeTiers(false);
  EXPECT_EQ(Get(keys), 4u);
  EXPECT_EQ(ReadFromTiers(), 0u);
  rig_.Fill(session_, keys);
  rig_.Send(session_, *sink_, rig_.StoreOf(next_op_, keys));
  EXPECT_TRUE(sink_->Wait<Quiesced>(next_op_).status.ok());
  for (const auto& result : sink_->Wait<StoreReleased>(next_op_++).results) {
    EXPECT_FALSE(result.existed);
  }
  EXPECT_EQ(rig_.stats().chunks_stored.Get(), 8u);
  EXPECT_EQ(Get(keys), 4u);
  TakeTiers(true);
  rig_.WaitUntil([&] { return rig_.stats().cache_chunks.Get() == 4; }, "it is in the cache again");
  EXPECT_EQ(Get(keys), 4u);
}

TEST_P(CacheTest, DamageInTheCacheIsFoundAndATierServes) {
  const auto keys = Keys(1, 1);
  rig_.Fill(session_, keys);
  const auto stored = rig_.buffer(session_).first(256);
  const std::vector<std::byte> bytes(stored.begin(), stored.end());
  Put(keys);
  rig_.WaitUntil([&] { return rig_.stats().cache_chunks.Get() == 1; }, "it is in the cache");
  const auto at = std::search(rig_.pool().begin(), rig_.pool().end(), bytes.begin(), bytes.end());
  ASSERT_NE(at, rig_.pool().end());
  *at ^= std::byte{1};
  EXPECT_EQ(Get(keys), 1u);
  EXPECT_GT(ReadFromTiers(), 0u);
  EXPECT_EQ(rig_.stats().staged_chunks_damaged.Get(), 1u);
  // The step may end before its slots are let go of.
  const EngineStats& stats = rig_.stats();
  rig_.WaitUntil([&] { return stats.cache_inserted.Get() == 2 && stats.cache_chunks.Get() == 1; },
                 "what the tier had is in the cache");
}

INSTANTIATE_TEST_SUITE_P(Policies, CacheTest,
                         testing::Values(sched::CachePolicyKind::kLru,
                                         sched::CachePolicyKind::kS3Fifo,
                                         sched::CachePolicyKind::kArc));

}  // namespace
}  // namespace kvstream::engine
