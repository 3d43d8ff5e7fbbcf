#include "server/sched/write_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace kvstream::sched {
namespace {

constexpr TierId kNvme{0};
constexpr TierId kPfs{1};

WriteQueueOptions TwoTiers() {
  WriteQueueOptions options;
  options.lanes = {{.window_bytes = 4 * kMiB, .backlog_bytes = kGiB},
                   {.window_bytes = 4 * kMiB, .backlog_bytes = kGiB}};
  options.max_defer = 2 * kSecond;
  options.watermark_bytes = 64 * kMiB;
  return options;
}

TierSet Both() { return TierSet::FromBits(3); }

struct Polled {
  std::vector<std::pair<uint64_t, uint32_t>> started;
  std::vector<std::pair<uint64_t, uint32_t>> dropped;
  std::vector<std::pair<uint64_t, uint32_t>> finished;  // With the tiers written, as bits.
};

Polled Poll(WriteQueue& queue, TierSet demand, bool stores_wait, TimeNs now) {
  Polled polled;
  for (const WriteCommand& command : queue.Poll(demand, stores_wait, now)) {
    if (const auto* start = std::get_if<StartWrite>(&command)) {
      polled.started.emplace_back(start->chunk.value, start->tier.value);
    } else if (const auto* drop = std::get_if<CopyDropped>(&command)) {
      polled.dropped.emplace_back(drop->chunk.value, drop->tier.value);
    } else {
      const auto& done = std::get<ChunkFinished>(command);
      polled.finished.emplace_back(done.chunk.value, done.written.bits());
    }
  }
  return polled;
}

using Pairs = std::vector<std::pair<uint64_t, uint32_t>>;

TEST(WriteQueueTest, IdleTiersWriteAtOnceAndTheChunkFinishesWithItsLastCopy) {
  WriteQueue queue(TwoTiers());
  queue.Add(StagedId{1}, kMiB, 0, 0);
  EXPECT_EQ(Poll(queue, {}, false, 0).started, (Pairs{{1, 0}, {1, 1}}));
  queue.OnWritten(StagedId{1}, kNvme, true, 10);
  EXPECT_TRUE(Poll(queue, {}, false, 10).finished.empty());
  EXPECT_FALSE(queue.empty());
  queue.OnWritten(StagedId{1}, kPfs, true, 20);
  EXPECT_EQ(Poll(queue, {}, false, 20).finished, (Pairs{{1, 3}}));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.staged_bytes(), 0u);
  EXPECT_EQ(queue.backlog(kNvme), 0u);
}

TEST(WriteQueueTest, WritesWaitForReadsOfTheirTierAlone) {
  WriteQueue queue(TwoTiers());
  queue.Add(StagedId{1}, kMiB, 0, 0);
  EXPECT_EQ(Poll(queue, TierSet::Of(kNvme), false, 0).started, (Pairs{{1, 1}}));
  EXPECT_EQ(queue.NextDeadline(), 2 * kSecond);
  EXPECT_EQ(Poll(queue, {}, false, 1).started, (Pairs{{1, 0}}));
}

TEST(WriteQueueTest, AnOldWriteNoLongerWaitsForReads) {
  WriteQueue queue(TwoTiers());
  queue.Add(StagedId{1}, kMiB, 0, 0);
  EXPECT_TRUE(Poll(queue, Both(), false, 2 * kSecond - 1).started.empty());
  EXPECT_EQ(Poll(queue, Both(), false, 2 * kSecond).started.size(), 2u);
}

TEST(WriteQueueTest, StagedBytesPastTheWatermarkOpenTheGate) {
  WriteQueueOptions options = TwoTiers();
  options.watermark_bytes = kMiB;
  WriteQueue queue(options);
  queue.Add(StagedId{1}, kMiB, 0, 0);
  EXPECT_TRUE(Poll(queue, Both(), false, 0).started.empty());
  queue.Add(StagedId{2}, kMiB, 0, 0);
  EXPECT_EQ(Poll(queue, Both(), false, 0).started.size(), 4u);
}

TEST(WriteQueueTest, ForwardBeganOpensTheGateForWhatWasStagedBefore) {
  WriteQueue queue(TwoTiers());
  queue.Add(StagedId{1}, kMiB, 0, 0);
  queue.OpenGate();
  queue.Add(StagedId{2}, kMiB, 0, 0);
  EXPECT_EQ(Poll(queue, Both(), false, 0).started, (Pairs{{1, 0}, {1, 1}}));
}

TEST(WriteQueueTest, WindowBoundsWritesInFlightButAlwaysLetsOneThrough) {
  WriteQueue queue(TwoTiers());
  queue.Add(StagedId{1}, 16 * kMiB, 0, 0);
  queue.Add(StagedId{2}, kMiB, 0, 0);
  EXPECT_EQ(Poll(queue, {}, false, 0).started, (Pairs{{1, 0}, {1, 1}}));
  queue.OnWritten(StagedId{1}, kNvme, true, 5);
  EXPECT_EQ(Poll(queue, {}, false, 5).started, (Pairs{{2, 0}}));
}

TEST(WriteQueueTest, OneCopyGoesToTheHomeTierAndToAnotherWhenThatFails) {
  WriteQueueOptions options = TwoTiers();
  options.replicate_all = false;
  WriteQueue queue(options);
  queue.Add(StagedId{1}, kMiB, UINT64_MAX, 0);  // The upper end of the hash: the last tier.
  EXPECT_EQ(Poll(queue, {}, false, 0).started, (Pairs{{1, 1}}));
  queue.OnWritten(StagedId{1}, kPfs, false, 1);
  EXPECT_EQ(Poll(queue, {}, false, 1).started, (Pairs{{1, 0}}));
  queue.OnWritten(StagedId{1}, kNvme, true, 2);
  EXPECT_EQ(Poll(queue, {}, false, 2).finished, (Pairs{{1, 1}}));
}

TEST(WriteQueueTest, AChunkWhoseEveryWriteFailedFinishesUnwritten) {
  WriteQueue queue(TwoTiers());
  queue.Add(StagedId{1}, kMiB, 0, 0);
  Poll(queue, {}, false, 0);
  queue.OnWritten(StagedId{1}, kNvme, false, 1);
  queue.OnWritten(StagedId{1}, kPfs, false, 1);
  EXPECT_EQ(Poll(queue, {}, false, 1).finished, (Pairs{{1, 0}}));
}

TEST(WriteQueueTest, WaitingStoresDropOldSecondCopiesAndNeverFirstOnes) {
  WriteQueueOptions options = TwoTiers();
  options.lanes[1].window_bytes = kMiB;
  WriteQueue queue(options);
  queue.Add(StagedId{1}, kMiB, 0, 0);
  queue.Add(StagedId{2}, kMiB, 0, 0);
  queue.Add(StagedId{3}, kMiB, 0, 0);
  Poll(queue, {}, false, 0);  // All on the NVMe, the first on the PFS.
  queue.OnWritten(StagedId{2}, kNvme, true, 1);
  EXPECT_TRUE(Poll(queue, {}, true, kSecond).dropped.empty());
  const Polled polled = Poll(queue, {}, true, 3 * kSecond);
  EXPECT_EQ(polled.dropped, (Pairs{{2, 1}}));  // The third has no copy yet.
  EXPECT_EQ(polled.finished, (Pairs{{2, 1}}));
}

TEST(WriteQueueTest, AFullBacklogDropsSecondCopies) {
  WriteQueueOptions options = TwoTiers();
  options.lanes[1] = {.window_bytes = kMiB, .backlog_bytes = kMiB};
  WriteQueue queue(options);
  for (uint64_t i = 1; i <= 4; ++i) queue.Add(StagedId{i}, kMiB, 0, 0);
  Poll(queue, {}, false, 0);
  queue.OnWritten(StagedId{2}, kNvme, true, 1);
  queue.OnWritten(StagedId{3}, kNvme, true, 1);
  EXPECT_EQ(Poll(queue, {}, false, 1).dropped, (Pairs{{2, 1}, {3, 1}}));
  EXPECT_EQ(queue.backlog(kPfs), kMiB);
}

TEST(WriteQueueTest, ATierOutOfServiceOwesNothing) {
  WriteQueue queue(TwoTiers());
  queue.SetTierInService(kPfs, false);
  queue.Add(StagedId{1}, kMiB, UINT64_MAX, 0);
  EXPECT_EQ(Poll(queue, {}, false, 0).started, (Pairs{{1, 0}}));
  queue.SetTierInService(kNvme, false);
  queue.Add(StagedId{2}, kMiB, 0, 0);
  EXPECT_EQ(Poll(queue, {}, false, 0).finished, (Pairs{{2, 0}}));
  queue.OnWritten(StagedId{1}, kNvme, true, 1);  // It was under way: it counts.
  EXPECT_EQ(Poll(queue, {}, false, 1).finished, (Pairs{{1, 1}}));
}

TEST(WriteQueueTest, TakingATierOutForgivesWhatItOwed) {
  WriteQueueOptions options = TwoTiers();
  options.lanes[1].window_bytes = 1;
  WriteQueue queue(options);
  queue.Add(StagedId{1}, kMiB, 0, 0);
  queue.Add(StagedId{2}, kMiB, 0, 0);
  Poll(queue, {}, false, 0);
  queue.OnWritten(StagedId{2}, kNvme, true, 1);
  queue.SetTierInService(kPfs, false);
  EXPECT_EQ(Poll(queue, {}, false, 1).finished, (Pairs{{2, 1}}));
  EXPECT_EQ(queue.backlog(kPfs), 0u);
}

TEST(WriteQueueTest, HomeTiersFollowTheMeasuredWriteRates) {
  WriteQueueOptions options = TwoTiers();
  options.replicate_all = false;
  options.lanes = {{.window_bytes = kGiB, .backlog_bytes = 64 * kGiB},
                   {.window_bytes = kGiB, .backlog_bytes = 64 * kGiB}};
  WriteQueue queue(options);
  uint64_t id = 0;
  const auto write_one = [&](uint64_t hash, TimeNs begin, TimeNs took) {
    queue.Add(StagedId{++id}, kMiB, hash, begin);
    const Polled polled = Poll(queue, {}, false, begin);
    queue.OnWritten(StagedId{id}, TierId{polled.started.at(0).second}, true, begin + took);
    Poll(queue, {}, false, begin + took);
    return polled.started.at(0).second;
  };
  write_one(0, 0, kMillisecond);                     // NVMe: 1 MiB in 1 ms.
  write_one(UINT64_MAX, kSecond, 3 * kMillisecond);  // PFS: 1 MiB in 3 ms.
  int nvme = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    // Equal shares of the hash range; each takes as long as its tier needs.
    const uint64_t hash = i * (UINT64_MAX / 100);
    const TimeNs begin = static_cast<TimeNs>(i + 2) * kSecond;
    queue.Add(StagedId{++id}, kMiB, hash, begin);
    const uint32_t tier = Poll(queue, {}, false, begin).started.at(0).second;
    queue.OnWritten(StagedId{id}, TierId{tier}, true,
                    begin + (tier == 0 ? kMillisecond : 3 * kMillisecond));
    nvme += tier == 0 ? 1 : 0;
  }
  EXPECT_NEAR(nvme, 75, 1);
}

// Random adds, completions, failures and outages: every chunk finishes exactly once, only after its
// writes have ended, and the books balance.
TEST(WriteQueueTest, BooksBalanceUnderRandomEvents) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    WriteQueueOptions options = TwoTiers();
    options.replicate_all = random() % 2 == 0;
    options.watermark_bytes = 4 * kMiB;
    options.lanes[1].backlog_bytes = 4 * kMiB;
    WriteQueue queue(options);
    TimeNs now = 0;
    uint64_t id = 0;
    std::vector<std::pair<uint64_t, uint32_t>> running;
    std::set<uint64_t> finished;
    std::map<uint64_t, uint32_t> written;
    const auto poll = [&](TierSet demand) {
      const Polled polled = Poll(queue, demand, random() % 4 == 0, now);
      for (const auto& start : polled.started) running.push_back(start);
      for (const auto& [chunk, tiers] : polled.finished) {
        ASSERT_TRUE(finished.insert(chunk).second) << "seed " << seed;
        ASSERT_EQ(tiers, written[chunk]) << "seed " << seed;
        for (const auto& r : running) ASSERT_NE(r.first, chunk) << "seed " << seed;
      }
    };
    const auto complete = [&] {
      const size_t at = random() % running.size();
      const auto [chunk, tier] = running[at];
      running.erase(running.begin() + static_cast<ptrdiff_t>(at));
      const bool ok = random() % 5 != 0;
      if (ok) written[chunk] |= 1u << tier;
      queue.OnWritten(StagedId{chunk}, TierId{tier}, ok, now);
    };
    for (int step = 0; step < 300; ++step) {
      now += static_cast<TimeNs>(random() % (50 * kMillisecond));
      if (random() % 2 == 0) queue.Add(StagedId{++id}, 1 + random() % (2 * kMiB), random(), now);
      if (!running.empty() && random() % 2 == 0) complete();
      if (random() % 40 == 0) {
        queue.SetTierInService(TierId{static_cast<uint32_t>(random() % 2)}, random() % 2 == 0);
      }
      poll(TierSet::FromBits(random() % 4));
    }
    queue.SetTierInService(kNvme, true);
    queue.SetTierInService(kPfs, true);
    queue.OpenGateForGood();
    poll({});
    while (!running.empty()) {
      complete();
      poll({});
    }
    EXPECT_EQ(finished.size(), id) << "seed " << seed;
    EXPECT_TRUE(queue.empty()) << "seed " << seed;
    EXPECT_EQ(queue.staged_bytes(), 0u) << "seed " << seed;
    EXPECT_EQ(queue.backlog(kNvme) + queue.backlog(kPfs), 0u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvstream::sched
