#include "server/rpc/session_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/rpc/rig.h"
#include "tests/support/log_recorder.h"

namespace kvstream::rpc {
namespace {

using ::testing::HasSubstr;

using ClientStream = grpc::ClientReaderWriter<v1::ClientMessage, v1::ServerMessage>;

v1::ClientMessage HelloWith(const std::string& token, uint32_t version = 1) {
  v1::ClientMessage message;
  message.mutable_hello()->set_token(token);
  message.mutable_hello()->set_protocol_version(version);
  message.mutable_hello()->set_client_name("worker");
  return message;
}

// A session with an open stream.
class SessionStreamTest : public ::testing::Test {
 protected:
  void Open() {
    token_ = rig_.Connect(&handoff_, &session_);
    stream_ = rig_.kvcache->Session(&context_);
    ASSERT_TRUE(stream_->Write(HelloWith(token_)));
    auto opened = rig_.poster.Next<engine::StreamOpened>();
    EXPECT_EQ(opened.session, session_);
    EXPECT_EQ(opened.client_name, "worker");
    sink_ = opened.sink;
    ASSERT_NE(sink_, nullptr);
  }

  v1::ServerMessage Read() {
    v1::ServerMessage message;
    EXPECT_TRUE(stream_->Read(&message));
    return message;
  }

  // The status of a stream whose first message is this.
  grpc::Status EndOf(const v1::ClientMessage& first) {
    grpc::ClientContext context;
    auto stream = rig_.kvcache->Session(&context);
    stream->Write(first);
    v1::ServerMessage message;
    EXPECT_FALSE(stream->Read(&message));
    return stream->Finish();
  }

  test::LogRecorder log_;  // Before the threads that log.
  Rig rig_;
  std::unique_ptr<HandoffClient> handoff_;
  SessionId session_;
  std::string token_;
  grpc::ClientContext context_;
  std::unique_ptr<ClientStream> stream_;
  std::shared_ptr<engine::SessionSink> sink_;
};

TEST_F(SessionStreamTest, HelloOpensTheSession) {
  Open();
  sink_->Send(engine::SessionOpened{session_});
  sink_->Flush();
  const v1::ServerMessage message = Read();
  EXPECT_EQ(message.boot_id(), std::string(16, 7));
  ASSERT_EQ(message.events_size(), 1);
  const v1::SessionOpened& opened = message.events(0).session_opened();
  EXPECT_EQ(opened.session_id(), session_.value);
  EXPECT_EQ(opened.protocol_version(), 1u);
  EXPECT_EQ(opened.daemon_version(), "test");
  EXPECT_EQ(opened.limits().deadline_ms_max(), 10000u);
}

TEST_F(SessionStreamTest, UnknownTokenIsRefused) {
  const grpc::Status end = EndOf(HelloWith("no such token"));
  EXPECT_EQ(end.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(end.error_message(), HasSubstr("hello.token"));
  EXPECT_TRUE(rig_.poster.empty());
}

TEST_F(SessionStreamTest, TokenOfAClosedConnectionIsRefused) {
  const std::string token = rig_.Connect(&handoff_, &session_);
  handoff_->Close();
  rig_.poster.Next<engine::HandoffClosed>();
  EXPECT_EQ(EndOf(HelloWith(token)).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(SessionStreamTest, AnotherProtocolVersionIsRefused) {
  const std::string token = rig_.Connect(&handoff_, &session_);
  const grpc::Status end = EndOf(HelloWith(token, 2));
  EXPECT_EQ(end.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(end.error_message(), "hello.protocol_version: 2, this daemon speaks 1");
}

TEST_F(SessionStreamTest, TheFirstMessageMustBeHello) {
  v1::ClientMessage message;
  message.mutable_heartbeat()->set_sequence(1);
  EXPECT_EQ(EndOf(message).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(rig_.poster.empty());
}

TEST_F(SessionStreamTest, TheEngineRefusesASecondStreamWithoutHarmToTheFirst) {
  Open();
  auto first_sink = sink_;
  grpc::ClientContext context;
  auto second = rig_.kvcache->Session(&context);
  ASSERT_TRUE(second->Write(HelloWith(token_)));
  auto opened = rig_.poster.Next<engine::StreamOpened>();
  ASSERT_NE(opened.sink, nullptr);
  EXPECT_NE(opened.sink, first_sink);
  opened.sink->End(absl::FailedPreconditionError("the session has a stream already"));
  v1::ServerMessage message;
  EXPECT_FALSE(second->Read(&message));
  EXPECT_EQ(second->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  // The engine ended it, so the engine hears nothing more of it.
  EXPECT_TRUE(rig_.poster.empty());
  first_sink->Send(engine::HeartbeatReply{9});
  first_sink->Flush();
  const v1::ServerMessage read = Read();
  EXPECT_EQ(read.events(0).heartbeat().sequence(), 9u);
}

TEST_F(SessionStreamTest, MessagesArriveInOrder) {
  Open();
  for (uint64_t i = 1; i <= 20; ++i) {
    v1::ClientMessage message;
    message.mutable_cancel()->set_operation_id(i);
    ASSERT_TRUE(stream_->Write(message));
  }
  for (uint64_t i = 1; i <= 20; ++i) {
    auto arrived = rig_.poster.Next<engine::MessageArrived>();
    EXPECT_EQ(arrived.session, session_);
    EXPECT_EQ(arrived.sink, sink_.get());
    EXPECT_EQ(std::get<engine::Cancel>(arrived.message).client_op, i);
  }
}

TEST_F(SessionStreamTest, ARefusedOperationIsToldToTheEngineAndTheStreamGoesOn) {
  Open();
  v1::ClientMessage message;
  message.mutable_read_step()->set_operation_id(5);
  ASSERT_TRUE(stream_->Write(message));
  message.mutable_prefetch()->set_operation_id(6);
  ASSERT_TRUE(stream_->Write(message));
  message.mutable_heartbeat()->set_sequence(3);
  ASSERT_TRUE(stream_->Write(message));
  const auto read = std::get<engine::Refused>(rig_.poster.Next<engine::MessageArrived>().message);
  EXPECT_EQ(read.client_op, 5u);
  EXPECT_EQ(read.status, absl::InvalidArgumentError("mode: 0 is not a mode"));
  const auto prefetch =
      std::get<engine::Refused>(rig_.poster.Next<engine::MessageArrived>().message);
  EXPECT_EQ(prefetch.client_op, 6u);
  EXPECT_EQ(prefetch.status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(
      std::get<engine::Heartbeat>(rig_.poster.Next<engine::MessageArrived>().message).sequence, 3u);
}

TEST_F(SessionStreamTest, AMessageOfNoKindEndsTheStream) {
  Open();
  ASSERT_TRUE(stream_->Write(v1::ClientMessage()));
  EXPECT_EQ(rig_.poster.Next<engine::StreamClosed>().sink, sink_.get());
  v1::ServerMessage message;
  EXPECT_FALSE(stream_->Read(&message));
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(SessionStreamTest, EventsOfOneFlushTravelInOneMessage) {
  Open();
  for (uint64_t i = 0; i < 100; ++i) sink_->Send(engine::HeartbeatReply{i});
  sink_->Flush();
  const v1::ServerMessage message = Read();
  ASSERT_EQ(message.events_size(), 100);
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(message.events(i).heartbeat().sequence(), i);
}

TEST_F(SessionStreamTest, EveryEventReachesTheClientWhole) {
  Open();
  sink_->Send(engine::ChunkResults{1, {{2, 3, absl::StatusCode::kDataLoss}}});
  sink_->Send(engine::RequestDone{1, 4, 5, {7, 8}, absl::StatusCode::kNotFound, "chunk 5"});
  sink_->Send(engine::StoreReleased{2, {{6, absl::StatusCode::kOk, true}}, true});
  sink_->Send(engine::StoreDurable{2, {{6, absl::StatusCode::kUnavailable}}});
  sink_->Send(engine::Quiesced{1, absl::CancelledError("asked to")});
  sink_->Flush();
  const v1::ServerMessage message = Read();
  ASSERT_EQ(message.events_size(), 5);
  EXPECT_EQ(message.events(0).chunk_results().ShortDebugString(),
            "operation_id: 1 results { request_index: 2 chunk_index: 3 code: DATA_LOSS }");
  EXPECT_EQ(message.events(1).request_done().ShortDebugString(),
            "operation_id: 1 request_id: 4 leading_valid: 5 other_valid: 7 other_valid: 8 "
            "code: NOT_FOUND message: \"chunk 5\"");
  EXPECT_EQ(message.events(2).store_released().ShortDebugString(),
            "operation_id: 2 results { chunk_index: 6 existed: true } all_released: true");
  EXPECT_EQ(message.events(3).store_durable().ShortDebugString(),
            "operation_id: 2 results { chunk_index: 6 code: UNAVAILABLE }");
  EXPECT_EQ(message.events(4).quiesced().ShortDebugString(),
            "operation_id: 1 code: CANCELLED message: \"asked to\"");
}

TEST_F(SessionStreamTest, EventsSentBeforeTheEndStillArrive) {
  Open();
  sink_->Send(engine::HeartbeatReply{1});
  sink_->End(absl::UnavailableError("the daemon is stopping"));
  sink_->Send(engine::HeartbeatReply{2});
  EXPECT_EQ(Read().events_size(), 1);
  v1::ServerMessage message;
  EXPECT_FALSE(stream_->Read(&message));
  const grpc::Status end = stream_->Finish();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(end.error_message(), "the daemon is stopping");
}

TEST_F(SessionStreamTest, HalfCloseEndsTheStream) {
  Open();
  stream_->WritesDone();
  EXPECT_EQ(rig_.poster.Next<engine::StreamClosed>().session, session_);
  EXPECT_TRUE(stream_->Finish().ok());
}

TEST_F(SessionStreamTest, ACancelledStreamIsClosedOnceAndTakesNoMoreEvents) {
  Open();
  context_.TryCancel();
  EXPECT_EQ(rig_.poster.Next<engine::StreamClosed>().sink, sink_.get());
  sink_->Send(engine::HeartbeatReply{1});
  sink_->Flush();
  sink_->End(absl::OkStatus());
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  rig_.server->Shutdown(0);
  EXPECT_TRUE(rig_.poster.empty());
}

TEST_F(SessionStreamTest, AReaderThatNeverReadsLosesItsSession) {
  Open();
  engine::ChunkResults results;
  results.results.resize(1000);
  // The transport takes some megabytes, then the queue fills.
  for (int i = 0; i < 100000 && rig_.poster.empty(); ++i) {
    sink_->Send(results);
    sink_->Flush();
  }
  EXPECT_EQ(rig_.poster.Next<engine::StreamClosed>().sink, sink_.get());
  v1::ServerMessage message;
  while (stream_->Read(&message)) {
  }
  const grpc::Status end = stream_->Finish();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(end.error_message(), HasSubstr("unread"));
}

TEST_F(SessionStreamTest, MoreStreamsThanTwiceTheSessionsAreRefused) {
  Open();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<ClientStream>> streams;
  for (uint64_t i = 1; i < 2 * rig_.limits.sessions_max; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(rig_.kvcache->Session(contexts.back().get()));
    ASSERT_TRUE(streams.back()->Write(HelloWith(token_)));
    rig_.poster.Next<engine::StreamOpened>();
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(EndOf(HelloWith(token_)).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  EXPECT_EQ(rig_.rpc_stats.streams_refused.Get(), 2u);
  EXPECT_EQ(log_.Count("a session stream was refused, too many are open"), 1u);
  for (auto& context : contexts) context->TryCancel();
  for (auto& stream : streams) stream->Finish();
}

TEST_F(SessionStreamTest, ShutdownWithAnOpenStreamReturns) {
  Open();
  rig_.server->Shutdown(50 * kMillisecond);
  EXPECT_EQ(rig_.poster.Next<engine::StreamClosed>().sink, sink_.get());
  EXPECT_FALSE(stream_->Finish().ok());
}

TEST_F(SessionStreamTest, ShutdownWithAWriteThatNobodyReadsReturns) {
  Open();
  engine::ChunkResults results;
  results.results.resize(1000);
  for (int i = 0; i < 100000 && rig_.poster.empty(); ++i) {
    sink_->Send(results);
    sink_->Flush();
  }
  rig_.server->Shutdown(50 * kMillisecond);
  rig_.poster.Next<engine::StreamClosed>();
}

}  // namespace
}  // namespace kvstream::rpc
