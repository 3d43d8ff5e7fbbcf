// What keeps careless clients from filling the daemon: streams that are read no further, calls that
// are refused, connections that never say Hello.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "server/base/clock.h"
#include "tests/rpc/rig.h"
#include "tests/support/log_recorder.h"

namespace kvstream::rpc {
namespace {

using ::testing::HasSubstr;

using ClientStream = grpc::ClientReaderWriter<v1::ClientMessage, v1::ServerMessage>;

v1::ClientMessage HelloWith(const std::string& token) {
  v1::ClientMessage message;
  message.mutable_hello()->set_token(token);
  message.mutable_hello()->set_protocol_version(1);
  return message;
}

v1::ClientMessage Heartbeat(uint64_t sequence) {
  v1::ClientMessage message;
  message.mutable_heartbeat()->set_sequence(sequence);
  return message;
}

void WaitUntil(const std::function<bool()>& condition) {
  const TimeNs deadline = Now() + absl::ToInt64Nanoseconds(kPatience);
  while (!condition()) {
    ASSERT_LT(Now(), deadline) << "waited in vain";
    std::this_thread::yield();
  }
}

// A session with an open stream; the test holds what the engine would handle.
class BackpressureTest : public ::testing::Test {
 protected:
  void Open(const Limits& limits = TestLimits()) {
    rig_ = std::make_unique<Rig>(limits);
    std::string token = rig_->Connect(&handoff_, &session_);
    stream_ = rig_->kvcache->Session(&context_);
    ASSERT_TRUE(stream_->Write(HelloWith(token)));
    sink_ = rig_->poster.Next<engine::StreamOpened>().sink;
  }

  void TearDown() override {
    unhandled_.clear();
    if (stream_ != nullptr) {
      context_.TryCancel();
      stream_->Finish();
    }
    sink_ = nullptr;
  }

  // Takes messages until the stream is held, and expects it to be at `count`.
  void TakeUntilHeld(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      unhandled_.push_back(rig_->poster.Next<engine::MessageArrived>());
    }
    ++holds_;
    WaitUntil([&] { return rig_->rpc_stats.streams_held.Get() == holds_; });
    EXPECT_TRUE(rig_->poster.empty());
  }

  std::unique_ptr<Rig> rig_;
  std::unique_ptr<HandoffClient> handoff_;
  SessionId session_;
  grpc::ClientContext context_;
  std::unique_ptr<ClientStream> stream_;
  std::shared_ptr<engine::SessionSink> sink_;
  std::deque<engine::MessageArrived> unhandled_;
  uint64_t holds_ = 0;
};

TEST_F(BackpressureTest, AStreamIsReadNoFurtherThanItsMessagesAreHandled) {
  Open();
  const uint64_t room = rig_->limits.unhandled_messages_max;
  for (uint64_t i = 0; i < 3 * room; ++i) ASSERT_TRUE(stream_->Write(Heartbeat(i)));
  TakeUntilHeld(room);
  unhandled_.pop_front();
  TakeUntilHeld(1);
  unhandled_.clear();
  // All the rest, in order, the last of which fill the room again.
  for (uint64_t i = room + 1; i < 3 * room; ++i) {
    const auto next = rig_->poster.Next<engine::MessageArrived>();
    EXPECT_EQ(std::get<engine::Heartbeat>(next.message).sequence, i);
  }
}

TEST_F(BackpressureTest, BytesHoldAStreamAsMessagesDo) {
  Open();
  v1::ClientMessage store;
  store.mutable_store()->set_operation_id(1);
  store.mutable_store()->set_salt(std::string(kMiB, 's'));
  ASSERT_TRUE(stream_->Write(store));
  ASSERT_TRUE(stream_->Write(Heartbeat(1)));
  TakeUntilHeld(1);
  unhandled_.clear();
  EXPECT_EQ(
      std::get<engine::Heartbeat>(rig_->poster.Next<engine::MessageArrived>().message).sequence,
      1u);
}

TEST_F(BackpressureTest, AHeldStreamEndsWhenTheClientIsGoneAndLateCreditsAreHarmless) {
  Open();
  for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(stream_->Write(Heartbeat(i)));
  TakeUntilHeld(rig_->limits.unhandled_messages_max);
  context_.TryCancel();
  EXPECT_EQ(rig_->poster.Next<engine::StreamClosed>().sink, sink_.get());
  stream_->Finish();
  stream_ = nullptr;
  WaitUntil([&] { return rig_->rpc_stats.streams_open.Get() == 0; });
  sink_ = nullptr;
  unhandled_.clear();
  EXPECT_TRUE(rig_->poster.empty());
}

TEST_F(BackpressureTest, CreditsMayOutliveTheServer) {
  Open();
  ASSERT_TRUE(stream_->Write(Heartbeat(1)));
  unhandled_.push_back(rig_->poster.Next<engine::MessageArrived>());
  rig_->server->Shutdown(0);
  stream_->Finish();
  stream_ = nullptr;
  sink_ = nullptr;
  rig_->server.reset();
  unhandled_.clear();
}

TEST_F(BackpressureTest, CreditsMayComeBackWhileTheStreamEnds) {
  for (int round = 0; round < 20; ++round) {
    Limits limits = TestLimits();
    limits.unhandled_messages_max = 1;
    Rig rig(limits);
    std::unique_ptr<HandoffClient> handoff;
    SessionId session;
    const std::string token = rig.Connect(&handoff, &session);
    grpc::ClientContext context;
    auto stream = rig.kvcache->Session(&context);
    ASSERT_TRUE(stream->Write(HelloWith(token)));
    rig.poster.Next<engine::StreamOpened>();
    for (uint64_t i = 0; i < 50; ++i) ASSERT_TRUE(stream->Write(Heartbeat(i)));
    absl::Notification over;
    rig.poster.Answer([&](engine::Event& event) {
      if (std::holds_alternative<engine::StreamClosed>(event)) over.Notify();
      return false;
    });
    std::thread canceller([&] { context.TryCancel(); });
    // Returns credits until the stream says that it is over.
    while (!over.HasBeenNotified()) {
      if (!rig.poster.empty()) rig.poster.Drop();
    }
    canceller.join();
    stream->Finish();
  }
}

v1::LookupRequest LookupOf(const std::string& namespace_id, size_t hashes) {
  v1::LookupRequest request;
  request.set_namespace_id(namespace_id);
  request.set_prefix_hashes(std::string(16 * hashes, 'a'));
  request.set_prefix_hash_bytes(16);
  return request;
}

// Lookups that the engine has not answered.
class CallGateTest : public ::testing::Test {
 protected:
  void SetUp() override { id_ = rig_.Register(); }

  // Begins a lookup of so many hashes, three keys each, on a thread of its own.
  void Begin(int hashes) {
    const uint64_t before = rig_.rpc_stats.calls_waiting.Get();
    callers_.emplace_back([this, hashes] {
      grpc::ClientContext context;
      v1::LookupReply reply;
      EXPECT_TRUE(rig_.kvcache->Lookup(&context, LookupOf(id_, hashes), &reply).ok());
    });
    WaitUntil([&] { return rig_.rpc_stats.calls_waiting.Get() == before + 1; });
  }
  grpc::Status Refused(int hashes) {
    grpc::ClientContext context;
    v1::LookupReply reply;
    return rig_.kvcache->Lookup(&context, LookupOf(id_, hashes), &reply);
  }
  void AnswerAll() {
    for (size_t i = 0; i < callers_.size(); ++i) {
      rig_.poster.Next<engine::Lookup>().reply(engine::LookupResult());
    }
    for (std::thread& caller : callers_) caller.join();
    callers_.clear();
    WaitUntil([&] { return rig_.rpc_stats.calls_waiting.Get() == 0; });
    EXPECT_EQ(rig_.rpc_stats.lookup_keys_waiting.Get(), 0u);
  }

  test::LogRecorder log_;  // Before the threads that log.
  Rig rig_;
  std::string id_;
  std::vector<std::thread> callers_;
};

TEST_F(CallGateTest, CallsThatWaitAreBoundedInNumberAndRoomComesBack) {
  for (uint64_t i = 0; i < rig_.limits.calls_max; ++i) Begin(1);
  const grpc::Status refused = Refused(1);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("calls_max"));
  v1::UnregisterMemoryReply reply;
  grpc::ClientContext context;
  EXPECT_EQ(
      rig_.kvcache->UnregisterMemory(&context, v1::UnregisterMemoryRequest(), &reply).error_code(),
      grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(rig_.rpc_stats.calls_refused.Get(), 2u);
  EXPECT_EQ(log_.Count("a call was refused, too much waits for the engine"), 1u);
  AnswerAll();
  Begin(1);
  AnswerAll();
}

TEST_F(CallGateTest, KeysThatWaitAreBoundedAndRoomComesBack) {
  Begin(4);
  Begin(3);
  const grpc::Status refused = Refused(2);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("lookup_keys_waiting_max"));
  Begin(1);
  AnswerAll();
  Begin(2);
  AnswerAll();
}

Limits Impatient() {
  Limits limits = TestLimits();
  limits.hello_max = 100 * kMillisecond;
  return limits;
}

TEST(HelloTest, AStreamThatSaysNothingEnds) {
  const test::LogRecorder log;
  Rig rig(Impatient());
  grpc::ClientContext context;
  auto stream = rig.kvcache->Session(&context);
  v1::ServerMessage message;
  EXPECT_FALSE(stream->Read(&message));
  const grpc::Status end = stream->Finish();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(end.error_message(), "hello: not received within 100 ms");
  EXPECT_EQ(rig.rpc_stats.hellos_missed.Get(), 1u);
  EXPECT_EQ(log.Count("a stream has said no hello in time and was ended"), 1u);
  EXPECT_TRUE(rig.poster.empty());
}

TEST(HelloTest, AHandoffConnectionWithoutAStreamEndsAndOneWithAStreamStays) {
  const test::LogRecorder log;
  Rig rig(Impatient());
  std::unique_ptr<HandoffClient> opened, silent;
  SessionId opened_session, silent_session;
  const std::string token = rig.Connect(&opened, &opened_session);
  grpc::ClientContext context;
  auto stream = rig.kvcache->Session(&context);
  ASSERT_TRUE(stream->Write(HelloWith(token)));
  auto sink = rig.poster.Next<engine::StreamOpened>().sink;
  const std::string unused = rig.Connect(&silent, &silent_session);
  EXPECT_EQ(rig.poster.Next<engine::HandoffClosed>().session, silent_session);
  const auto told = silent->Receive();
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->code(), v1::DEADLINE_EXCEEDED);
  rig.handoff->Close(silent_session);
  EXPECT_FALSE(silent->Receive().has_value());
  // Its token opens nothing any more.
  grpc::ClientContext late;
  auto refused = rig.kvcache->Session(&late);
  refused->Write(HelloWith(unused));
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  // The first was due before the second.
  ASSERT_TRUE(stream->Write(Heartbeat(1)));
  rig.poster.Next<engine::MessageArrived>();
  EXPECT_EQ(rig.rpc_stats.hellos_missed.Get(), 1u);
  EXPECT_EQ(log.Count("a handoff connection has said no hello in time and was ended"), 1u);
  context.TryCancel();
  stream->Finish();
}

}  // namespace
}  // namespace kvstream::rpc
