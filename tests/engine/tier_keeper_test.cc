// Tiers whose reads or writes fail or hang, in the whole engine: what they cost, and what is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "server/base/clock.h"
#include "tests/engine/engine_rig.h"
#include "tests/support/log_recorder.h"

namespace kvstream::engine {
namespace {

class TierKeeperTest : public testing::Test {
 protected:
  // On a busy machine the writes of a healthy tier may be silent for a while.
  explicit TierKeeperTest(bool replicate_all = true, uint32_t failures = 8,
                          TimeNs writes_stuck = 60 * kSecond)
      : rig_([=](EngineOptions& options) {
          options.tier_health.failures = failures;
          options.tier_health.writes_stuck = writes_stuck;
          options.tier_health.first_probe = 20 * kMillisecond;
          options.tier_health.most_between_probes = 40 * kMillisecond;
          options.writes.replicate_all = replicate_all;
          options.writes.max_defer = 0;
          for (auto& lane : options.writes.lanes) lane.window_bytes = 512 * kKiB;
        }) {}

  // Stores, and waits for the durable outcome.
  absl::StatusCode Put(const std::vector<uint64_t>& keys) {
    const uint64_t op = ++last_op_;
    rig_.Fill(session_, keys);
    Store store = rig_.StoreOf(op, keys);
    store.want_durable = true;
    rig_.Send(session_, *sink_, std::move(store));
    return sink_->Wait<Quiesced>(op).status.code();
  }
  RequestDone Get(const std::vector<uint64_t>& keys) {
    const uint64_t op = ++last_op_;
    rig_.Poison(session_);
    rig_.Send(session_, *sink_, rig_.StepOf(op, keys));
    const RequestDone done = sink_->Wait<RequestDone>(op);
    sink_->Wait<Quiesced>(op);
    return done;
  }
  void AwaitWritten() {
    rig_.WaitUntil([&] { return rig_.stats().staged_bytes.Get() == 0; }, "all is written");
  }
  const TierEngineStats& stats(size_t tier) const { return rig_.stats().tiers[tier]; }

  test::LogRecorder log_;  // Before the threads that log.
  EngineRig rig_;
  std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
  const SessionId session_ = rig_.Open(sink_);
  uint64_t last_op_ = 0;
};

TEST_F(TierKeeperTest, ReadsThatFailPutATierOutUntilItWorksAgain) {
  ASSERT_EQ(Put(Keys(1, 32)), absl::StatusCode::kOk);
  AwaitWritten();
  rig_.tier(0).failing().read = EIO;
  while (stats(0).out.Get() == 0) {
    EXPECT_EQ(Get(Keys(1, 32)).leading_valid, 32u) << "the other one serves";
    ASSERT_TRUE(rig_.Holds(session_, Keys(1, 32)));
  }
  EXPECT_EQ(stats(0).failing.Get(), 1u);
  EXPECT_EQ(stats(0).held_out.Get(), 0u);
  EXPECT_EQ(stats(0).times_out.Get(), 1u);
  EXPECT_EQ(log_.Count("a tier whose reads fail goes out of service: tier=0"), 1u);
  EXPECT_EQ(log_.Count("a read failed: tier=0"), 1u) << "of many that failed";
  // Why is told, and that it was tried again in vain: once.
  const TierCauses& causes = rig_.stats().causes[0];
  EXPECT_EQ(causes.reads.Get(), "Input/output error");
  EXPECT_EQ(causes.writes.Get(), "");
  rig_.WaitUntil([&] { return stats(0).probes.Get() >= 3; }, "it is tried again and again");
  EXPECT_EQ(causes.probe.Get(), "it fails, says the test");
  const std::string in_vain = "tried again in vain, and will be: tier=0 cause=it fails";
  EXPECT_EQ(log_.Count(in_vain), 1u);
  rig_.tier(0).failing().read = 0;
  rig_.WaitUntil([&] { return stats(0).out.Get() == 0; }, "it is back");
  EXPECT_EQ(log_.Count(in_vain), 1u);
  EXPECT_EQ(causes.probe.Get(), "");
  EXPECT_EQ(log_.Count("a tier whose reads fail works again: tier=0"), 1u);
  EXPECT_EQ(stats(0).degraded.Get(), 1u) << "that is remembered for a while";
  ASSERT_EQ(Put(Keys(100, 8)), absl::StatusCode::kOk);
  AwaitWritten();
  EXPECT_EQ(Get(Keys(100, 8)).leading_valid, 8u);
}

// Each chunk has four segments, so twelve reads fail, of three files: that may be theirs alone.
TEST_F(TierKeeperTest, AFewFilesThatCannotBeReadPutNoTierOut) {
  ASSERT_EQ(Put(Keys(1, 16)), absl::StatusCode::kOk);
  AwaitWritten();
  for (size_t tier : {0, 1}) rig_.tier(tier).failing().read = EIO;
  EXPECT_EQ(Get(Keys(1, 3)).code, absl::StatusCode::kUnavailable);
  for (size_t tier : {0, 1}) rig_.tier(tier).failing().read = 0;
  EXPECT_EQ(stats(0).out.Get() + stats(1).out.Get(), 0u);
  EXPECT_EQ(Get(Keys(4, 13)).leading_valid, 13u);
}

TEST_F(TierKeeperTest, WritesThatFailLeaveTheReadsAndTheOtherTierAlone) {
  ASSERT_EQ(Put(Keys(1, 8)), absl::StatusCode::kOk);
  AwaitWritten();
  rig_.tier(0).failing().write = ENOSPC;
  for (uint64_t first = 100; stats(0).writes_out.Get() == 0; first += 4) {
    EXPECT_EQ(Put(Keys(first, 4)), absl::StatusCode::kOk);
  }
  EXPECT_EQ(stats(0).out.Get(), 0u);
  for (uint64_t first = 1000; first < 1040; first += 4) {
    EXPECT_EQ(Put(Keys(first, 4)), absl::StatusCode::kOk);
  }
  // Those that put it out, and what was in flight then.
  EXPECT_LE(stats(0).failed_writes.Get(), 16u) << "it is not asked any more";
  EXPECT_EQ(log_.Count("a tier whose writes fail takes no more of them: tier=0"), 1u);
  EXPECT_EQ(log_.Count("writes fail: tier=0"), 1u) << "of many that failed";
  EXPECT_EQ(rig_.stats().causes[0].writes.Get(), "No space left on device");
  EXPECT_EQ(Get(Keys(1, 8)).leading_valid, 8u);
  rig_.tier(0).failing().write = 0;
  rig_.WaitUntil([&] { return stats(0).writes_out.Get() == 0; }, "it takes writes again");
  AwaitWritten();
}

TEST_F(TierKeeperTest, AChunkWhoseEveryWriteFailsIsWithdrawnAndTold) {
  for (size_t tier : {0, 1}) rig_.tier(tier).failing().write = EIO;
  for (uint64_t first = 100; first < 140; first += 4) {  // So many that both writes are out.
    EXPECT_EQ(Put(Keys(first, 4)), absl::StatusCode::kUnavailable);
  }
  const uint64_t lost = rig_.stats().chunks_lost.Get();
  EXPECT_EQ(Put(Keys(1, 4)), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      sink_->Wait<StoreDurable>(last_op_).results,
      testing::Each(testing::Field(&StoreDurable::Result::code, absl::StatusCode::kUnavailable)));
  EXPECT_EQ(rig_.stats().chunks_lost.Get(), lost + 4);
  for (const char* tier : {"tier=0", "tier=1"}) {
    EXPECT_EQ(log_.Count(std::string("writes fail: ") + tier), 1u) << "of many that failed";
  }
  EXPECT_EQ(log_.Count("stored chunks are lost, every write of them failed"), 1u) << "of all";
  EXPECT_EQ(Get(Keys(1, 4)).code, absl::StatusCode::kNotFound);
  for (size_t tier : {0, 1}) rig_.tier(tier).failing().write = 0;
  EXPECT_EQ(Put(Keys(1, 4)), absl::StatusCode::kOk) << "nothing of it is left";
  EXPECT_EQ(Get(Keys(1, 4)).leading_valid, 4u);
  EXPECT_TRUE(rig_.Holds(session_, Keys(1, 4)));
}

TEST_F(TierKeeperTest, AShortageOfDescriptorsForgetsNothing) {
  ASSERT_EQ(Put(Keys(1, 8)), absl::StatusCode::kOk);
  AwaitWritten();
  for (size_t tier : {0, 1}) rig_.tier(tier).failing().open = EMFILE;
  EXPECT_EQ(Get(Keys(1, 8)).leading_valid, 0u);
  for (size_t tier : {0, 1}) rig_.tier(tier).failing().open = 0;
  EXPECT_EQ(Get(Keys(1, 8)).leading_valid, 8u) << "the files are where they were";
  EXPECT_EQ(stats(0).out.Get() + stats(1).out.Get(), 0u);
}

class PatientTest : public TierKeeperTest {
 protected:
  // Failures put no tier out.
  PatientTest() : TierKeeperTest(/*replicate_all=*/true, /*failures=*/1000) {}

  // On this tier alone.
  void PutOn(size_t tier, const std::vector<uint64_t>& keys) {
    rig_.tier(1 - tier).failing().write = EIO;
    EXPECT_EQ(Put(keys), absl::StatusCode::kOk);
    AwaitWritten();
    rig_.tier(1 - tier).failing().write = 0;
  }
};

TEST_F(PatientTest, OneFailedReadFailsItsChunkAlone) {
  constexpr uint64_t kBad = 13;  // The fifth of the second request.
  for (uint64_t key = 1; key <= 24; ++key) PutOn(key == kBad ? 1 : 0, {key});
  rig_.tier(1).failing().read = EIO;
  rig_.Poison(session_);
  ReadStep step = rig_.StepOf(++last_op_, Keys(1, 24));
  const std::vector<ReadChunk> chunks = std::move(step.requests[0].chunks);
  step.requests.resize(3, step.requests[0]);
  for (size_t r = 0; r < 3; ++r) {
    step.requests[r].request_id = r;
    step.requests[r].chunks.assign(chunks.begin() + 8 * r, chunks.begin() + 8 * (r + 1));
  }
  rig_.Send(session_, *sink_, std::move(step));
  EXPECT_EQ(sink_->Wait<Quiesced>(last_op_).status.code(), absl::StatusCode::kUnavailable);
  const auto done = sink_->All<RequestDone>(last_op_);
  ASSERT_EQ(done.size(), 3u);
  for (const RequestDone& request : done) {
    const bool bad = request.request_id == 1;
    EXPECT_EQ(request.code, bad ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk);
    EXPECT_EQ(request.leading_valid, bad ? 4u : 8u);
    EXPECT_EQ(request.other_valid,
              bad ? (std::vector<uint32_t>{5, 6, 7}) : std::vector<uint32_t>());
  }
  for (uint64_t key = 1; key <= 24; ++key) {
    EXPECT_EQ(rig_.Holds(session_, key, key - 1), key != kBad) << key;
  }
  EXPECT_TRUE(rig_.IsPoisoned(session_, kBad - 1));
  EXPECT_EQ(rig_.stats().chunks_delivered.Get(), 23u);
  EXPECT_EQ(rig_.stats().chunks_failed.Get(), 1u);
  EXPECT_EQ(stats(1).failed_reads.Get(), 1u);
  rig_.tier(1).failing().read = 0;
}

class OneCopyTest : public TierKeeperTest {
 protected:
  OneCopyTest() : TierKeeperTest(/*replicate_all=*/false, /*failures=*/8, 2 * kSecond) {}
};

TEST_F(OneCopyTest, ATierWhoseWritesHangHoldsNoStoreUp) {
  rig_.tier(1).GateWrites(true);
  // Several times what the pool holds, half of it meant for the tier that hangs.
  uint64_t stored = 0;
  for (uint64_t first = 1; first <= 256; first += 16) {
    const uint64_t op = ++last_op_;
    rig_.Fill(session_, Keys(first, 16));
    Store store = rig_.StoreOf(op, Keys(first, 16));
    store.admission_deadline = Now() + 30 * kSecond;
    rig_.Send(session_, *sink_, std::move(store));
    stored += sink_->Wait<Quiesced>(op).status.ok() ? 16 : 0;
  }
  EXPECT_EQ(stored, 256u);
  EXPECT_EQ(stats(1).writes_out.Get(), 1u);
  EXPECT_EQ(stats(1).writes_hang.Get(), 1u);
  EXPECT_EQ(log_.Count("a tier whose writes do not end takes no more of them: tier=1"), 1u);
  EXPECT_EQ(stats(1).out.Get(), 0u);
  rig_.tier(1).GateWrites(false);
  rig_.WaitUntil([&] { return stats(1).writes_out.Get() == 0; }, "it takes writes again");
  AwaitWritten();
  EXPECT_EQ(Get(Keys(1, 16)).leading_valid, 16u);
}

TEST(FullPoolTest, SecondCopiesMakeRoomForReadsThatHaveNone) {
  EngineRig rig([](EngineOptions& options) {
    options.pool_reserved_bytes = EngineRig::kSegmentBytes;
    options.router.hedge_after = 20 * kMillisecond;
    options.writes.max_defer = 0;
    for (auto& lane : options.writes.lanes) lane.window_bytes = 512 * kKiB;
  });
  const auto sink = std::make_shared<RecordingSink>();
  const SessionId session = rig.Open(sink);
  uint64_t op = 0;
  const auto put = [&](const std::vector<uint64_t>& keys) {
    rig.Fill(session, keys);
    Store store = rig.StoreOf(++op, keys);
    store.want_durable = true;
    rig.Send(session, *sink, std::move(store));
    EXPECT_TRUE(sink->Wait<Quiesced>(op).status.ok());
  };
  const auto wanted = Keys(201, 16);
  put(wanted);
  rig.WaitUntil([&] { return rig.stats().staged_bytes.Get() == 0; }, "all is written");
  // All that writes may use waits for the second tier.
  rig.tier(1).GateWrites(true);
  put(Keys(2, 63));
  put(Keys(65, 64));
  // A few reads take what is left, and hang.
  for (size_t t = 0; t < 2; ++t) rig.tier(t).GateReads(true);
  rig.Poison(session);
  rig.Send(session, *sink, rig.StepOf(++op, wanted));
  rig.WaitUntil([&] { return rig.stats().tiers[1].writes_dropped.Get() > 0; }, "there is room");
  for (size_t t = 0; t < 2; ++t) rig.tier(t).GateReads(false);
  EXPECT_EQ(sink->Wait<RequestDone>(op).leading_valid, 16u);
  EXPECT_TRUE(rig.Holds(session, wanted));
  rig.tier(1).GateWrites(false);
}

}  // namespace
}  // namespace kvstream::engine
