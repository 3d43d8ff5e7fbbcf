// The engine over tiers that hang when the test wants them to.
#include "server/engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "server/base/clock.h"
#include "server/store/chunk_format.h"
#include "server/store/chunk_key.h"
#include "tests/engine/engine_rig.h"
#include "tests/support/log_recorder.h"

namespace kvstream::engine {
namespace {

class EngineTest : public testing::Test {
 protected:
  EngineTest() { session_ = rig_.Open(sink_); }

  void Put(const std::vector<uint64_t>& keys) {
    rig_.Fill(session_, keys);
    Store store = rig_.StoreOf(next_op_, keys);
    store.want_durable = true;
    Send(std::move(store));
    EXPECT_TRUE(sink_->Wait<Quiesced>(next_op_++).status.ok());
    rig_.WaitUntil([this] { return rig_.stats().staged_bytes.Get() == 0; }, "all is written");
  }
  RequestDone Get(const std::vector<uint64_t>& keys) {
    rig_.Poison(session_);
    Send(rig_.StepOf(next_op_, keys));
    sink_->Wait<Quiesced>(next_op_);
    return sink_->Wait<RequestDone>(next_op_++);
  }
  // Both tiers are asked for key 1 and do not answer; then a scrub finds the first one's file
  // damaged, and publishes it anew.
  void RepairUnderARead(const OneFile& file) {
    for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateReads(true);
    rig_.Poison(session_);
    Send(rig_.StepOf(next_op_, Keys(1, 1)));
    rig_.WaitUntil([this] { return rig_.tier(0).reads_held() > 0; }, "the tier reads");
    rig_.engine().Post(file.Damaged(TierId{0}));
    rig_.engine().Post(FileRepaired{TierId{0}, 0, file.key, file.name_space, file.header});
    rig_.WaitUntil([this] { return rig_.stats().unhandled_events.Get() == 0; }, "the loop knows");
  }
  void Send(SessionMessage message) { rig_.Send(session_, *sink_, std::move(message)); }

  test::LogRecorder log_;  // Before the threads that log.
  EngineRig rig_{[](EngineOptions& o) { o.router.hedge_after = 10 * kMillisecond; }};
  std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
  SessionId session_;
  uint64_t next_op_ = 1;
};

TEST_F(EngineTest, StagedChunksAreReadFromThePoolBeforeAnyTierHasThem) {
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateWrites(true);
  const auto keys = Keys(1, 8);
  rig_.Fill(session_, keys);
  Store store = rig_.StoreOf(1, keys);
  store.want_durable = true;
  Send(std::move(store));
  rig_.WaitUntil([&] { return rig_.stats().chunks_stored.Get() == 8; }, "all is staged");
  next_op_ = 2;
  EXPECT_EQ(Get(keys).leading_valid, 8u);
  EXPECT_TRUE(rig_.Holds(session_, keys));
  EXPECT_EQ(rig_.stats().bytes_from_pool.Get(), 8 * EngineRig::kChunkBytes);
  EXPECT_FALSE(sink_->Has<StoreDurable>(1));
  EXPECT_FALSE(sink_->Has<Quiesced>(1));
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateWrites(false);
  EXPECT_TRUE(sink_->Wait<Quiesced>(1).status.ok());
}

TEST_F(EngineTest, ADamagedChunkInThePoolIsWithdrawnAndCounted) {
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateWrites(true);
  const auto keys = Keys(1, 1);
  rig_.Fill(session_, keys);
  const auto stored = rig_.buffer(session_).first(256);
  const std::vector<std::byte> bytes(stored.begin(), stored.end());
  Store store = rig_.StoreOf(1, keys);
  store.want_durable = true;
  Send(std::move(store));
  rig_.WaitUntil([&] { return rig_.stats().chunks_stored.Get() == 1; }, "it is staged");
  const auto at = std::search(rig_.pool().begin(), rig_.pool().end(), bytes.begin(), bytes.end());
  ASSERT_NE(at, rig_.pool().end());
  *at ^= std::byte{1};
  next_op_ = 2;
  EXPECT_EQ(Get(keys).code, absl::StatusCode::kDataLoss);
  EXPECT_EQ(rig_.stats().staged_chunks_damaged.Get(), 1u);
  EXPECT_EQ(Get(keys).code, absl::StatusCode::kNotFound) << "it is withdrawn";
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateWrites(false);
  EXPECT_FALSE(sink_->Wait<Quiesced>(1).status.ok());
  EXPECT_EQ(sink_->Wait<StoreDurable>(1).results.at(0).code, absl::StatusCode::kUnavailable);
  rig_.WaitUntil([&] { return rig_.stats().tiers[1].files_set_aside.Get() == 1; }, "no file stays");
  Put(keys);
  EXPECT_EQ(Get(keys).leading_valid, 1u);
  EXPECT_TRUE(rig_.Holds(session_, keys));
}

TEST_F(EngineTest, AHungTierIsReplacedByTheOtherAndTakenOutUntilItsReadsComeBack) {
  const auto keys = Keys(1, 32);
  Put(keys);
  rig_.tier(0).GateReads(true);
  EXPECT_EQ(Get(keys).leading_valid, 32u);
  EXPECT_TRUE(rig_.Holds(session_, keys));
  EXPECT_GT(rig_.stats().tiers[1].segments_hedged.Get(), 0u);
  rig_.WaitUntil([&] { return rig_.stats().tiers[0].out.Get() == 1; }, "the tier is out");
  EXPECT_EQ(rig_.stats().tiers[0].times_out.Get(), 1u);
  // Nothing is asked of it any more, and its slots stay where they are.
  const size_t held = rig_.tier(0).reads_held();
  EXPECT_EQ(Get(keys).leading_valid, 32u);
  EXPECT_EQ(rig_.tier(0).reads_held(), held);
  EXPECT_EQ(log_.Count("tier taken out of service: tier=0"), 1u);
  rig_.WaitUntil(
      [&] {
        return rig_.stats().tiers[0].quarantined_bytes.Get() == held * EngineRig::kSegmentBytes;
      },
      "all that it holds is quarantined");
  EXPECT_GE(rig_.stats().pool_used_bytes.Get(), held * EngineRig::kSegmentBytes);
  rig_.tier(0).GateReads(false);
  rig_.WaitUntil([&] { return rig_.stats().tiers[0].out.Get() == 0; }, "the tier is back");
  rig_.WaitUntil([&] { return rig_.stats().tiers[0].quarantined_bytes.Get() == 0; },
                 "nothing is quarantined");
  EXPECT_EQ(Get(keys).leading_valid, 32u);
}

TEST_F(EngineTest, ATierWhoseReadIsLostIsLateLongBeforeItsQuarantineIsFull) {
  const auto keys = Keys(1, 2);
  Put(keys);
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateReads(true);
  Send(rig_.StepOf(next_op_, keys));
  rig_.WaitUntil([&] { return rig_.tier(0).reads_held() > 0; }, "it reads");
  rig_.tier(1).GateReads(false);
  EXPECT_TRUE(sink_->Wait<Quiesced>(next_op_++).status.ok());
  const TierEngineStats& stats = rig_.stats().tiers[0];
  rig_.WaitUntil([&] { return stats.late.Get() == 1; }, "it is late");
  EXPECT_EQ(stats.out.Get(), 0u);
  EXPECT_EQ(Get(keys).leading_valid, 2u);
  EXPECT_EQ(stats.times_late.Get(), 1u);
  EXPECT_EQ(log_.Count("a tier may hang: tier=0"), 1u);
  rig_.tier(0).GateReads(false);
  rig_.WaitUntil([&] { return stats.late.Get() == 0; }, "it gives back what it had");
  EXPECT_EQ(log_.Count("a tier may hang: tier=0"), 1u);
}

TEST_F(EngineTest, ThatNoTierIsInServiceIsSaidAlsoWhenTheLastOneHangs) {
  const auto keys = Keys(1, 64);
  Put(keys);
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateReads(true);
  ReadStep step = rig_.StepOf(next_op_, keys);
  step.deadline = Now() + 30 * kMillisecond;
  Send(std::move(step));
  EXPECT_EQ(sink_->Wait<Quiesced>(next_op_++).status.code(), absl::StatusCode::kDeadlineExceeded);
  for (size_t t = 0; t < 2; ++t) {
    rig_.WaitUntil([&] { return rig_.stats().tiers[t].out.Get() == 1; }, "it is out");
    EXPECT_EQ(log_.Count("tier taken out of service: tier=" + std::to_string(t)), 1u);
  }
  EXPECT_EQ(log_.Count("no tier is in service"), 1u);
  EXPECT_EQ(log_.Count("again a tier is in service"), 0u);
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateReads(false);
  for (size_t t = 0; t < 2; ++t) {
    rig_.WaitUntil([&] { return rig_.stats().tiers[t].out.Get() == 0; }, "it is back");
  }
  EXPECT_EQ(log_.Count("no tier is in service"), 1u);
  EXPECT_EQ(log_.Count("again a tier is in service"), 1u);
}

TEST_F(EngineTest, WhenAllTiersHangTheDeadlineEndsTheStepAndLateBytesTouchNothing) {
  const auto keys = Keys(1, 8);
  Put(keys);
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateReads(true);
  rig_.Poison(session_);
  ReadStep step = rig_.StepOf(next_op_, keys);
  step.deadline = Now() + 30 * kMillisecond;
  Send(std::move(step));
  EXPECT_EQ(sink_->Wait<Quiesced>(next_op_).status.code(), absl::StatusCode::kDeadlineExceeded);
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateReads(false);
  rig_.WaitUntil([&] { return rig_.stats().pool_used_bytes.Get() == 0; }, "the slots are free");
  for (const std::byte b : rig_.buffer(session_)) ASSERT_EQ(b, std::byte{0xAB});
}

TEST_F(EngineTest, AnOperationIdInUseEndsTheSession) {
  const auto keys = Keys(1, 4);
  Put(keys);
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateReads(true);
  Send(rig_.StepOf(50, keys));
  Send(Refused{50, absl::InvalidArgumentError("spoilt")});
  EXPECT_EQ(sink_->WaitEnd().code(), absl::StatusCode::kInvalidArgument);
  // What ran was cancelled, and the handoff connection closed when that had quiesced.
  rig_.WaitUntil([&] { return rig_.closed(session_); }, "the session is forgotten");
  EXPECT_EQ(rig_.stats().host_buffers.Get(), 0u);
  EXPECT_FALSE(sink_->Has<Quiesced>(50));
}

TEST_F(EngineTest, AStoreThatWaitsForRoomGoesOnWhenWritesMakeSome) {
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateWrites(true);
  // 64 chunks fill the 4 MiB that writes may use; the next store waits, whole.
  const auto first = Keys(1, 64);
  rig_.Fill(session_, first);
  Send(rig_.StoreOf(1, first));
  EXPECT_TRUE(sink_->Wait<Quiesced>(1).status.ok());
  rig_.Fill(session_, Keys(100, 8));
  Send(rig_.StoreOf(2, Keys(100, 8)));
  rig_.WaitUntil([&] { return rig_.stats().stores.Get() == 2; }, "the second store has begun");
  EXPECT_FALSE(sink_->Has<Quiesced>(2));
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateWrites(false);
  EXPECT_EQ(sink_->Wait<Quiesced>(2).status.code(), absl::StatusCode::kOk);
  next_op_ = 3;
  EXPECT_EQ(Get(Keys(100, 8)).leading_valid, 8u);
  EXPECT_TRUE(rig_.Holds(session_, Keys(100, 8)));
}

TEST_F(EngineTest, ReadsGoOnWhileHungWritesFillThePool) {
  const auto old = Keys(1, 32);
  Put(old);
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateWrites(true);
  const auto staged = Keys(100, 64);
  rig_.Fill(session_, staged);
  Send(rig_.StoreOf(next_op_, staged));
  EXPECT_TRUE(sink_->Wait<Quiesced>(next_op_++).status.ok());
  const uint64_t waiting = next_op_++;
  rig_.Fill(session_, Keys(200, 8));
  Send(rig_.StoreOf(waiting, Keys(200, 8)));
  rig_.WaitUntil([&] { return rig_.stats().stores.Get() == 3; }, "the last store has begun");
  // What waits is copied from the first session's buffer only later.
  auto sink = std::make_shared<RecordingSink>();
  const SessionId reader = rig_.Open(sink);
  for (uint64_t op = 1; op <= 3; ++op) {
    rig_.Poison(reader);
    rig_.Send(reader, *sink, rig_.StepOf(op, old));
    EXPECT_TRUE(sink->Wait<Quiesced>(op).status.ok());
    EXPECT_TRUE(rig_.Holds(reader, old));
  }
  EXPECT_EQ(rig_.stats().bytes_from_pool.Get(), 0u);
  EXPECT_FALSE(sink_->Has<Quiesced>(waiting));
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateWrites(false);
  EXPECT_TRUE(sink_->Wait<Quiesced>(waiting).status.ok());
  EXPECT_EQ(Get(Keys(200, 8)).leading_valid, 8u);
  EXPECT_TRUE(rig_.Holds(session_, Keys(200, 8)));
}

TEST(EngineStoreTest, SecondCopiesThatLagAreKeptWhileThereIsRoom) {
  EngineRig rig([](EngineOptions& o) { o.writes.max_defer = 0; });
  auto sink = std::make_shared<RecordingSink>();
  const SessionId session = rig.Open(sink);
  rig.tier(1).GateWrites(true);
  for (uint64_t op = 1; op <= 40; ++op) {
    rig.Fill(session, {op});
    Store store = rig.StoreOf(op, {op});
    store.want_durable = true;
    rig.Send(session, *sink, std::move(store));
    EXPECT_TRUE(sink->Wait<Quiesced>(op).status.ok());
  }
  EXPECT_EQ(rig.stats().tiers[1].writes_dropped.Get(), 0u);
  rig.tier(1).GateWrites(false);
  rig.WaitUntil([&] { return rig.stats().staged_bytes.Get() == 0; }, "all is written");
  EXPECT_EQ(rig.stats().tiers[1].chunks_written.Get(), 40u);
}

TEST_F(EngineTest, DropBufferIsRefusedWhileAnOperationUsesIt) {
  const auto keys = Keys(1, 4);
  Put(keys);
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateReads(true);
  Send(rig_.StepOf(9, keys));
  const auto drop = [&](uint64_t buffer) {
    std::promise<absl::Status> answer;
    rig_.engine().Post(DropBuffer{session_, buffer,
                                  [&answer](absl::Status s) { answer.set_value(std::move(s)); }});
    return answer.get_future().get().code();
  };
  EXPECT_EQ(drop(1), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(drop(2), absl::StatusCode::kNotFound);
  for (size_t t = 0; t < 2; ++t) rig_.tier(t).GateReads(false);
  sink_->Wait<Quiesced>(9);
  EXPECT_EQ(drop(1), absl::StatusCode::kOk);
}

TEST_F(EngineTest, ASessionsEndWaitsForItsCopiesAndClosesTheHandoffLast) {
  const auto keys = Keys(1, 32);
  Put(keys);
  for (int round = 0; round < 50; ++round) {
    auto sink = std::make_shared<RecordingSink>();
    const SessionId session = rig_.Open(sink);
    rig_.Send(session, *sink, rig_.StepOf(1, keys));
    if (round % 2 == 0) {
      rig_.engine().Post(HandoffClosed{session});
    } else {
      rig_.engine().Post(StreamClosed{session, sink.get()});
    }
    rig_.WaitUntil([&] { return rig_.closed(session); }, "the session is forgotten");
  }
  EXPECT_EQ(rig_.stats().sessions_open.Get(), 1u);
}

// Reads the engine's numbers at the moment an end may go out, as a client would that asks for them
// right after.
class NumbersSink final : public SessionSink {
 public:
  explicit NumbersSink(const EngineStats* stats) : stats_(*stats) {}
  void Send(SessionEvent event) override {
    quiesced_ = quiesced_ || std::holds_alternative<Quiesced>(event);
  }
  void Flush() override {
    if (quiesced_) running_.set_value(stats_.operations_running.Get());
  }
  void End(absl::Status) override {}
  uint64_t RunningWhenQuiesced() { return running_.get_future().get(); }

 private:
  const EngineStats& stats_;
  bool quiesced_ = false;
  std::promise<uint64_t> running_;
};

TEST_F(EngineTest, NumbersArePublishedBeforeTheEndsThatTheyCount) {
  const auto keys = Keys(1, 4);
  Put(keys);
  auto sink = std::make_shared<NumbersSink>(&rig_.stats());
  const SessionId session = rig_.Open(sink);
  rig_.Send(session, *sink, rig_.StepOf(1, keys));
  EXPECT_EQ(sink->RunningWhenQuiesced(), 0u);
  std::promise<uint64_t> leases;
  Lookup lookup;
  lookup.digests = {rig_.StepOf(1, keys).requests[0].chunks[0].key};
  lookup.lease_for = 60 * kSecond;
  lookup.session = session_;
  lookup.reply = [&](absl::StatusOr<LookupResult> result) {
    EXPECT_TRUE(result.ok());
    leases.set_value(rig_.stats().leases.Get());
  };
  rig_.engine().Post(std::move(lookup));
  EXPECT_EQ(leases.get_future().get(), 1u);
  // Its promises go before the rig.
  rig_.engine().Post(HandoffClosed{session});
  rig_.WaitUntil([&] { return rig_.closed(session); }, "the session is forgotten");
}

TEST_F(EngineTest, AReadOfAFileThatWasReplacedMeanwhileUndoesNoRepair) {
  Put(Keys(1, 1));
  const OneFile file(rig_.tier(0).options().root);
  RepairUnderARead(file);
  rig_.tier(0).failing().read = ENOENT;  // What the read meets is on its way out.
  rig_.tier(0).GateReads(false);
  rig_.WaitUntil([this] { return rig_.stats().tiers[0].missing_files.Get() > 0; }, "it has failed");
  rig_.tier(0).failing().read = 0;
  rig_.tier(1).GateReads(false);
  sink_->Wait<Quiesced>(next_op_);
  EXPECT_EQ(sink_->Wait<RequestDone>(next_op_++).leading_valid, 1u);
  // Only the tier of the repaired file is left.
  rig_.engine().Post(file.Damaged(TierId{1}));
  EXPECT_EQ(Get(Keys(1, 1)).leading_valid, 1u);
  EXPECT_TRUE(rig_.Holds(session_, Keys(1, 1)));
}

TEST_F(EngineTest, DamageThatAnOldReadMetTakesNoRepairedFileAside) {
  Put(Keys(1, 1));
  const OneFile file(rig_.tier(0).options().root);
  RepairUnderARead(file);
  file.FlipByte();
  rig_.tier(0).GateReads(false);
  rig_.WaitUntil([this] { return rig_.stats().tiers[0].corrupt_reads.Get() > 0; }, "it is noticed");
  file.FlipByte();
  rig_.tier(1).GateReads(false);
  sink_->Wait<Quiesced>(next_op_);
  EXPECT_EQ(sink_->Wait<RequestDone>(next_op_++).leading_valid, 1u);
  EXPECT_EQ(rig_.stats().tiers[0].files_set_aside.Get(), 0u);
  rig_.engine().Post(file.Damaged(TierId{1}));
  EXPECT_EQ(Get(Keys(1, 1)).leading_valid, 1u);
  EXPECT_TRUE(rig_.Holds(session_, Keys(1, 1)));
}

}  // namespace
}  // namespace kvstream::engine
