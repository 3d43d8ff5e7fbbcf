// The operator's controls, over tiers that hang when the test wants them to.
#include "server/engine/controls.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <vector>

#include "server/base/clock.h"
#include "tests/engine/engine_rig.h"
#include "tests/support/log_recorder.h"

namespace kvstream::engine {
namespace {

constexpr TierId kNvme{0};
constexpr TierId kPfs{1};
constexpr TimeNs kMinute = 60 * kSecond;

class ControlsTest : public testing::Test {
 protected:
  ControlsTest() { session_ = rig_.Open(sink_); }

  uint64_t Begin(const std::vector<uint64_t>& keys) {
    rig_.Fill(session_, keys);
    Store store = rig_.StoreOf(next_op_, keys);
    store.want_durable = true;
    rig_.Send(session_, *sink_, std::move(store));
    return next_op_++;
  }
  void Put(const std::vector<uint64_t>& keys) {
    EXPECT_TRUE(sink_->Wait<Quiesced>(Begin(keys)).status.ok());
  }
  void WaitWritten() {
    rig_.WaitUntil([this] { return rig_.stats().staged_bytes.Get() == 0; }, "all is written");
  }
  RequestDone Get(const std::vector<uint64_t>& keys) {
    rig_.Poison(session_);
    rig_.Send(session_, *sink_, rig_.StepOf(next_op_, keys));
    sink_->Wait<Quiesced>(next_op_);
    RequestDone done = sink_->Wait<RequestDone>(next_op_++);
    EXPECT_TRUE(done.leading_valid < keys.size() || rig_.Holds(session_, keys));
    return done;
  }
  LookupResult Look(const std::vector<uint64_t>& keys) {
    std::promise<LookupResult> answer;
    Lookup lookup;
    const ReadStep step = rig_.StepOf(1, keys);
    for (const ReadChunk& chunk : step.requests[0].chunks) {
      lookup.digests.push_back(chunk.key);
    }
    lookup.reply = [&answer](absl::StatusOr<LookupResult> r) { answer.set_value(*std::move(r)); };
    rig_.engine().Post(std::move(lookup));
    return answer.get_future().get();
  }
  // Whether it is in service then.
  bool Set(TierId tier, bool in_service) {
    std::promise<bool> answer;
    rig_.engine().Post(SetTierInService{tier, in_service, [&](bool r) { answer.set_value(r); }});
    return answer.get_future().get();
  }
  std::future<absl::StatusOr<DrainResult>> Drain(TimeNs timeout) {
    auto answer = std::make_shared<std::promise<absl::StatusOr<DrainResult>>>();
    rig_.engine().Post(engine::Drain{
        timeout, [answer](absl::StatusOr<DrainResult> r) { answer->set_value(std::move(r)); }});
    return answer->get_future();
  }
  const TierEngineStats& tier(TierId id) const { return rig_.stats().tiers[id.value]; }

  test::LogRecorder log_;  // Before the threads that log.
  EngineRig rig_{[](EngineOptions& o) { o.writes.max_defer = 50 * kMillisecond; }};
  std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
  SessionId session_;
  uint64_t next_op_ = 1;
};

TEST_F(ControlsTest, ATierTakenOutIsNotReadAndTheOtherServes) {
  const auto keys = Keys(1, 32);
  Put(keys);
  WaitWritten();
  EXPECT_FALSE(Set(kNvme, false));
  EXPECT_FALSE(Set(kNvme, false));
  EXPECT_EQ(tier(kNvme).held_out.Get(), 1u);
  EXPECT_EQ(tier(kNvme).out.Get(), 1u);
  EXPECT_EQ(tier(kNvme).times_out.Get(), 1u);
  EXPECT_EQ(log_.Count("tier=0 in_service=false"), 1u) << "asked twice";
  EXPECT_EQ(log_.Count("no tier is in service"), 0u);
  EXPECT_EQ(Get(keys).leading_valid, 32u);
  EXPECT_EQ(tier(kNvme).segments_read.Get(), 0u);
  EXPECT_TRUE(Set(kNvme, true));
  EXPECT_EQ(tier(kNvme).out.Get(), 0u);
  EXPECT_EQ(Get(keys).leading_valid, 32u);
  EXPECT_GT(tier(kNvme).segments_read.Get(), 0u);
}

TEST_F(ControlsTest, ReadsOfAHungTierThatIsTakenOutMoveToTheOther) {
  const auto keys = Keys(1, 8);
  Put(keys);
  WaitWritten();
  for (const TierId id : {kNvme, kPfs}) rig_.tier(id.value).GateReads(true);
  rig_.Send(session_, *sink_, rig_.StepOf(next_op_, keys));
  rig_.WaitUntil([&] { return rig_.tier(0).reads_held() > 0; }, "the tier reads");
  Set(kNvme, false);
  rig_.tier(1).GateReads(false);
  EXPECT_TRUE(sink_->Wait<Quiesced>(next_op_++).status.ok());
  EXPECT_TRUE(rig_.Holds(session_, keys));
  EXPECT_EQ(tier(kNvme).segments_read.Get(), 0u);
}

TEST_F(ControlsTest, WhatOnlyATierThatIsOutHoldsIsAMissUntilItIsBack) {
  const auto keys = Keys(1, 4);
  Set(kPfs, false);
  Put(keys);
  rig_.WaitUntil([&] { return tier(kNvme).chunks_written.Get() == 4; }, "the first copies");
  // The second copies wait for their tier, and can be read from the pool meanwhile.
  EXPECT_EQ(tier(kPfs).write_backlog_bytes.Get(), rig_.stats().staged_bytes.Get());
  Set(kNvme, false);
  EXPECT_EQ(Look(keys).leading_run, 4u);
  EXPECT_EQ(Get(keys).leading_valid, 4u);
  // A drain gives those second copies up: then nothing but the tier that is out holds the chunks.
  EXPECT_EQ((*Drain(kMinute).get()).unwritten_bytes, 0u);
  EXPECT_EQ(tier(kPfs).writes_dropped.Get(), 4u);
  EXPECT_EQ(Look(keys).leading_run, 0u);
  Set(kNvme, true);
  const LookupResult found = Look(keys);
  EXPECT_EQ(found.leading_run, 4u);
  EXPECT_EQ(found.tier_chunks, (std::vector<uint32_t>{4, 0}));
}

TEST_F(ControlsTest, WhatOnlyATierThatIsOutHoldsIsStoredAnew) {
  const auto keys = Keys(1, 4);
  Put(keys);
  WaitWritten();
  Set(kNvme, false);
  Set(kPfs, false);
  EXPECT_EQ(Look(keys).leading_run, 0u);
  const RequestDone miss = Get(keys);
  EXPECT_EQ(miss.code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(miss.leading_valid, 0u);
  const uint64_t store = Begin(keys);
  rig_.WaitUntil([&] { return Look(keys).staged == 4; }, "the chunks are staged");
  EXPECT_EQ(Get(keys).leading_valid, 4u);
  EXPECT_FALSE(sink_->Has<Quiesced>(store));
  Set(kPfs, true);
  EXPECT_TRUE(sink_->Wait<Quiesced>(store).status.ok());
  EXPECT_EQ(tier(kPfs).chunks_existed.Get(), 4u);
  Set(kNvme, true);
  WaitWritten();
  EXPECT_EQ(Get(keys).leading_valid, 4u);
}

TEST_F(ControlsTest, WithNoTierInServiceStoresWaitInThePoolAndNothingIsLost) {
  Set(kNvme, false);
  Set(kPfs, false);
  const auto keys = Keys(1, 16);
  const uint64_t store = Begin(keys);
  rig_.WaitUntil([&] { return rig_.stats().chunks_stored.Get() == 16; }, "all is staged");
  EXPECT_EQ(Get(keys).leading_valid, 16u);
  EXPECT_FALSE(sink_->Has<StoreDurable>(store));
  EXPECT_EQ(log_.Count("no tier is in service"), 1u);
  Set(kPfs, true);
  EXPECT_TRUE(sink_->Wait<Quiesced>(store).status.ok());
  Set(kNvme, true);
  WaitWritten();
  EXPECT_EQ(rig_.stats().chunks_lost.Get(), 0u);
  EXPECT_EQ(tier(kNvme).chunks_written.Get() + tier(kPfs).chunks_written.Get(), 32u);
}

TEST_F(ControlsTest, StoresGoOnWhenThePoolIsFullOfCopiesForATierThatIsOut) {
  Set(kPfs, false);
  // Each turn stages a quarter of what writes may use.
  for (uint64_t turn = 0; turn < 12; ++turn) Put(Keys(1 + 16 * turn, 16));
  EXPECT_GT(tier(kPfs).writes_dropped.Get(), 1u);
  EXPECT_EQ(log_.Count("second copies are given up"), 1u);
  EXPECT_EQ(rig_.stats().chunks_dropped.Get(), 0u);
  EXPECT_EQ(tier(kNvme).chunks_written.Get(), 192u);
  Set(kPfs, true);
  WaitWritten();
  EXPECT_EQ(tier(kPfs).chunks_written.Get() + tier(kPfs).writes_dropped.Get(), 192u);
}

TEST_F(ControlsTest, DrainWritesWhatIsStagedAndRefusesWhatIsNew) {
  for (const TierId id : {kNvme, kPfs}) rig_.tier(id.value).GateWrites(true);
  const uint64_t store = Begin(Keys(1, 4));
  rig_.WaitUntil([&] { return rig_.stats().chunks_stored.Get() == 4; }, "all is staged");
  auto first = Drain(kMinute);
  auto second = Drain(kMinute);
  const DrainResult early = *Drain(kMillisecond).get();
  EXPECT_GT(early.unwritten_bytes, 0u);
  EXPECT_EQ(early.running_operations, 1u);
  rig_.Send(session_, *sink_, rig_.StepOf(77, Keys(1, 4)));
  EXPECT_EQ(sink_->Wait<Quiesced>(77).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(sink_->Has<Quiesced>(store));
  for (const TierId id : {kNvme, kPfs}) rig_.tier(id.value).GateWrites(false);
  for (auto* answer : {&first, &second}) {
    const DrainResult result = *answer->get();
    EXPECT_EQ(result.unwritten_bytes, 0u);
    EXPECT_EQ(result.running_operations, 0u);
  }
  EXPECT_TRUE(sink_->Wait<Quiesced>(store).status.ok());
  EXPECT_EQ(rig_.stats().draining.Get(), 1u);
  EXPECT_EQ(log_.Count("draining: "), 3u) << "one for each call";
}

TEST_F(ControlsTest, AChunkThatNoTierInServiceTakesIsUnwrittenAtTheEndOfADrain) {
  Set(kNvme, false);
  Set(kPfs, false);
  const uint64_t store = Begin(Keys(1, 1));
  rig_.WaitUntil([&] { return rig_.stats().chunks_stored.Get() == 1; }, "it is staged");
  EXPECT_GE((*Drain(kMillisecond).get()).unwritten_bytes, EngineRig::kChunkBytes);
  Set(kNvme, true);  // Back in time for the next one.
  EXPECT_EQ((*Drain(kMinute).get()).unwritten_bytes, 0u);
  EXPECT_TRUE(sink_->Wait<Quiesced>(store).status.ok());
}

TEST_F(ControlsTest, TooManyDrainsAreRefusedAndAStopAnswersThoseThatWait) {
  rig_.tier(0).GateWrites(true);
  Begin(Keys(1, 1));
  rig_.WaitUntil([&] { return rig_.stats().chunks_stored.Get() == 1; }, "it is staged");
  std::vector<std::future<absl::StatusOr<DrainResult>>> drains;
  for (size_t i = 0; i < Controls::kDrainsMax; ++i) drains.push_back(Drain(kMinute));
  EXPECT_EQ(Drain(kMinute).get().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(rig_.engine().WaitDrained(Now()));
  EXPECT_TRUE(rig_.engine().EndSessions(Now() + kMinute));
  for (auto& drain : drains) EXPECT_GT((*drain.get()).unwritten_bytes, 0u);
}

}  // namespace
}  // namespace kvstream::engine
