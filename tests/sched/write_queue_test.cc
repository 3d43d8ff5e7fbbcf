#include "server/sched/write_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvstream::sched {
namespace {

constexpr TierId kNvme{0};
constexpr TierId kPfs{1};
constexpr TimeNs kMinute = 60 * kSecond;

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

Polled Poll(WriteQueue& queue, TierSet demand, bool room_wanted, TimeNs now) {
  Polled polled;
  for (const WriteCommand& command : queue.Poll(demand, room_wanted, now)) {
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

TEST(WriteQueueTest, ATierOutOfServiceStartsNothingAndItsSecondCopiesWaitForIt) {
  WriteQueue queue(TwoTiers());
  queue.Add(StagedId{1}, kMiB, 0, 0);
  EXPECT_EQ(Poll(queue, {}, false, 0).started, (Pairs{{1, 0}, {1, 1}}));
  queue.SetTierInService(kPfs, false);
  queue.Add(StagedId{2}, kMiB, UINT64_MAX, 0);
  EXPECT_EQ(Poll(queue, {}, false, 0).started, (Pairs{{2, 0}}));
  queue.OnWritten(StagedId{1}, kNvme, true, 1);
  queue.OnWritten(StagedId{1}, kPfs, true, 1);  // It was under way: it counts.
  queue.OnWritten(StagedId{2}, kNvme, true, 1);
  EXPECT_EQ(Poll(queue, {}, false, 1).finished, (Pairs{{1, 3}}));
  EXPECT_EQ(queue.backlog(kPfs), kMiB);
  queue.SetTierInService(kPfs, true);
  EXPECT_EQ(Poll(queue, {}, false, 2).started, (Pairs{{2, 1}}));
  queue.OnWritten(StagedId{2}, kPfs, true, 3);
  EXPECT_EQ(Poll(queue, {}, false, 3).finished, (Pairs{{2, 3}}));
}

TEST(WriteQueueTest, WithNoTierInServiceChunksStayStagedUntilOneIsBack) {
  for (const bool replicate_all : {true, false}) {
    WriteQueueOptions options = TwoTiers();
    options.replicate_all = replicate_all;
    WriteQueue queue(options);
    queue.SetTierInService(kNvme, false);
    queue.Add(StagedId{1}, kMiB, 0, 0);  // Staged for the other tier, then that goes too.
    queue.SetTierInService(kPfs, false);
    queue.Add(StagedId{2}, kMiB, 0, 0);
    const Polled none = Poll(queue, {}, true, kMinute);
    EXPECT_TRUE(none.started.empty() && none.dropped.empty() && none.finished.empty());
    EXPECT_EQ(queue.staged_bytes(), 2 * kMiB);
    queue.SetTierInService(kNvme, true);
    EXPECT_EQ(Poll(queue, {}, false, kMinute).started, (Pairs{{1, 0}, {2, 0}}));
  }
}

TEST(WriteQueueTest, AnOnlyCopyMovesFromAHomeTierThatIsTakenOut) {
  WriteQueueOptions options = TwoTiers();
  options.replicate_all = false;
  WriteQueue queue(options);
  queue.Add(StagedId{1}, kMiB, UINT64_MAX, 0);
  queue.Add(StagedId{2}, kMiB, 0, 0);
  queue.SetTierInService(kPfs, false);
  queue.SetTierInService(kPfs, false);
  EXPECT_EQ(queue.backlog(kPfs), 0u);
  EXPECT_EQ(Poll(queue, {}, false, 0).started, (Pairs{{1, 0}, {2, 0}}));  // The oldest first.
  queue.SetTierInService(kPfs, true);
  queue.OnWritten(StagedId{1}, kNvme, true, 1);
  queue.OnWritten(StagedId{2}, kNvme, true, 1);
  EXPECT_EQ(Poll(queue, {}, false, 1).finished, (Pairs{{1, 1}, {2, 1}}));
}

TEST(WriteQueueTest, AFailedFirstCopyWaitsForATierThatIsOut) {
  WriteQueueOptions options = TwoTiers();
  options.replicate_all = false;
  WriteQueue queue(options);
  queue.Add(StagedId{1}, kMiB, 0, 0);
  Poll(queue, {}, false, 0);
  queue.SetTierInService(kPfs, false);
  queue.OnWritten(StagedId{1}, kNvme, false, 1);
  EXPECT_TRUE(Poll(queue, {}, false, 1).finished.empty());
  queue.SetTierInService(kPfs, true);
  EXPECT_EQ(Poll(queue, {}, false, 2).started, (Pairs{{1, 1}}));
  queue.OnWritten(StagedId{1}, kPfs, false, 3);
  EXPECT_EQ(Poll(queue, {}, false, 3).finished, (Pairs{{1, 0}}));
}

TEST(WriteQueueTest, SecondCopiesOfATierThatIsOutGoWhenStoresWaitOrTheDaemonStops) {
  WriteQueueOptions options = TwoTiers();
  options.lanes[1].window_bytes = 2 * kMiB;
  WriteQueue queue(options);
  queue.SetTierInService(kPfs, false);
  for (uint64_t i = 1; i <= 4; ++i) {
    queue.Add(StagedId{i}, kMiB, 0, static_cast<TimeNs>(i) * kSecond);
    Poll(queue, {}, false, static_cast<TimeNs>(i) * kSecond);
    queue.OnWritten(StagedId{i}, kNvme, true, static_cast<TimeNs>(i) * kSecond);
  }
  // None is old, but the tier does not come for them: a window of them makes room.
  const Polled pressed = Poll(queue, {}, true, 4 * kSecond);
  EXPECT_EQ(pressed.dropped, (Pairs{{1, 1}, {2, 1}}));
  EXPECT_EQ(pressed.finished, (Pairs{{1, 1}, {2, 1}}));
  queue.Add(StagedId{5}, kMiB, 0, 4 * kSecond);
  queue.OpenGateForGood();
  const Polled stopping = Poll(queue, {}, false, 4 * kSecond);
  EXPECT_EQ(stopping.dropped, (Pairs{{3, 1}, {4, 1}}));  // The fifth has no copy yet.
  EXPECT_EQ(queue.staged_bytes(), kMiB);
}

TEST(WriteQueueTest, ChunksThatWaitForATierThatIsOutDoNotOpenTheGate) {
  WriteQueueOptions options = TwoTiers();
  options.watermark_bytes = 2 * kMiB;
  WriteQueue queue(options);
  queue.SetTierInService(kPfs, false);
  for (uint64_t i = 1; i <= 4; ++i) {
    queue.Add(StagedId{i}, kMiB, 0, 0);
    Poll(queue, {}, false, 0);
    queue.OnWritten(StagedId{i}, kNvme, true, 0);
  }
  queue.Add(StagedId{5}, kMiB, 0, 0);
  EXPECT_TRUE(Poll(queue, Both(), false, 0).started.empty());
  queue.SetTierInService(kPfs, true);
  EXPECT_EQ(Poll(queue, Both(), false, 0).started.size(), 5u);
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
// writes have ended, and the books balance. A chunk is lost only when every tier failed to write
// it, and no write starts on a tier that is out.
class WriteQueueWorld {
 public:
  explicit WriteQueueWorld(uint64_t seed) : random_(seed), queue_(Options()) {}

  void Run() {
    for (int step = 0; step < 300; ++step) {
      now_ += static_cast<TimeNs>(random_() % (50 * kMillisecond));
      if (random_() % 2 == 0)
        queue_.Add(StagedId{++id_}, 1 + random_() % (2 * kMiB), random_(), now_);
      if (!running_.empty() && random_() % 2 == 0) Complete();
      if (random_() % outage_every_ == 0) Toggle(random_() % 2, random_() % 2 == 0);
      PollNow(TierSet::FromBits(random_() % 4), random_() % 4 == 0);
    }
    for (uint32_t tier = 0; tier < 2; ++tier) Toggle(tier, true);
    queue_.OpenGateForGood();
    PollNow({}, false);
    while (!running_.empty()) {
      Complete();
      PollNow({}, false);
    }
    EXPECT_EQ(finished_.size(), id_);
    EXPECT_TRUE(queue_.empty());
    EXPECT_EQ(queue_.staged_bytes(), 0u);
    EXPECT_EQ(queue_.backlog(kNvme) + queue_.backlog(kPfs), 0u);
  }

 private:
  WriteQueueOptions Options() {
    WriteQueueOptions options = TwoTiers();
    options.replicate_all = random_() % 2 == 0;
    options.watermark_bytes = 4 * kMiB;
    options.lanes[1].backlog_bytes = 4 * kMiB;
    return options;
  }
  void Toggle(uint32_t tier, bool in_service) {
    queue_.SetTierInService(TierId{tier}, in_service);
    in_service ? out_.Remove(TierId{tier}) : out_.Add(TierId{tier});
  }
  void Complete() {
    const size_t at = random_() % running_.size();
    const auto [chunk, tier] = running_[at];
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(at));
    const bool ok = random_() % 5 != 0;
    (ok ? written_ : failed_)[chunk] |= 1u << tier;
    queue_.OnWritten(StagedId{chunk}, TierId{tier}, ok, now_);
  }
  void PollNow(TierSet demand, bool room_wanted) {
    const Polled polled = Poll(queue_, demand, room_wanted, now_);
    for (const auto& start : polled.started) {
      EXPECT_FALSE(out_.Has(TierId{start.second}));
      EXPECT_EQ((written_[start.first] | failed_[start.first]) & 1u << start.second, 0u);
      running_.push_back(start);
    }
    for (const auto& drop : polled.dropped) EXPECT_NE(written_[drop.first], 0u);
    for (const auto& [chunk, tiers] : polled.finished) {
      EXPECT_TRUE(finished_.insert(chunk).second);
      EXPECT_EQ(tiers, written_[chunk]);
      EXPECT_TRUE(tiers != 0 || failed_[chunk] == 3u);
      for (const auto& r : running_) EXPECT_NE(r.first, chunk);
    }
  }

  std::mt19937_64 random_;
  WriteQueue queue_;
  const uint64_t outage_every_ = 2 + random_() % 40;
  TimeNs now_ = 0;
  uint64_t id_ = 0;
  TierSet out_;
  Pairs running_;
  std::set<uint64_t> finished_;
  std::map<uint64_t, uint32_t> written_;  // Tiers, as bits.
  std::map<uint64_t, uint32_t> failed_;
};

TEST(WriteQueueTest, BooksBalanceAndNothingIsLostUnderRandomEvents) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    WriteQueueWorld(seed).Run();
    if (HasFailure()) return;
  }
}

TEST(WriteQueueTest, AShareOfTheChunksGetsACopyOnEveryTierWhateverItsHome) {
  constexpr double kChunks = 10000;
  for (const bool home_first : {true, false}) {
    for (const double share : {0.0, 0.3, 1.0}) {
      WriteQueueOptions options = TwoTiers();
      options.home_first = home_first;
      WriteQueue queue(options);
      queue.set_replicated(share);
      std::mt19937_64 random(7);
      for (uint64_t i = 1; i <= kChunks; ++i) queue.Add(StagedId{i}, 1, random(), 0);
      const double away = home_first ? 0 : (1 - share) / 2;  // Of the first tier.
      EXPECT_NEAR(queue.backlog(kNvme), (1 - away) * kChunks, 200);
      EXPECT_NEAR(queue.backlog(kPfs), (share + away) * kChunks, 200);
    }
  }
}

}  // namespace
}  // namespace kvstream::sched
