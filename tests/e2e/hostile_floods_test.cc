// Clients that send as fast as they can and read nothing: what they fill is bounded, and the others
// go on.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "tests/e2e/raw_session.h"
#include "tests/support/log_recorder.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

constexpr int kFlood = 100'000;

v1::ClientMessage Heartbeat(int i) {
  v1::ClientMessage message;
  message.mutable_heartbeat()->set_sequence(static_cast<uint64_t>(i));
  return message;
}

v1::ClientMessage Cancel(int i) {
  v1::ClientMessage message;
  message.mutable_cancel()->set_operation_id(static_cast<uint64_t>(i));
  return message;
}

class HostileFloodsTest : public testing::Test {
 protected:
  static constexpr uint64_t kUnhandledMax = 64;

  void SetUp() override { ASSERT_TRUE(worker_.Put(Keys(1, 8)).ok()); }

  // Sends `make(0)`, `make(1)` and so on until the stream ends, at most `messages`, reading
  // nothing, while the worker works and the mailbox stays bounded.
  void Flood(RawSession& session, int messages, const std::function<v1::ClientMessage(int)>& make) {
    std::atomic<bool> sent{false};
    std::thread sender([&] {
      for (int i = 0; i < messages && session.Write(make(i)); ++i) {
      }
      sent = true;
    });
    uint64_t most = 0;
    for (int reads = 0; !sent || reads < 5; ++reads) {
      EXPECT_EQ(worker_.Get(Keys(1, 8)).leading_valid(), 8u);
      most = std::max(most, daemon_.stats().unhandled_events.Get());
    }
    sender.join();
    // What the flood may leave unhandled, and a few events of the worker and the sockets.
    EXPECT_LE(most, kUnhandledMax + 16);
  }

  test::LogRecorder log_;  // Before the threads that log.
  TestDaemon daemon_{[](config::Options& o) {
    o.unhandled_messages_per_session_max = kUnhandledMax;
    o.unread_events_bytes_max = 256 * kKiB;
  }};
  Worker worker_{daemon_.socket()};
};

TEST_F(HostileFloodsTest, MessagesWithoutAnswersAreHeldBackAndAllHandled) {
  RawSession session(daemon_);
  Flood(session, kFlood, Cancel);
  EXPECT_TRUE(session.Try(Heartbeat(1), 0).has_value());
}

TEST_F(HostileFloodsTest, AClientThatReadsNothingLosesItsSession) {
  RawSession session(daemon_);
  // Each is refused, with a sentence.
  Flood(session, kFlood, [](int i) {
    v1::ClientMessage message;
    message.mutable_prefetch()->set_operation_id(static_cast<uint64_t>(i) + 1);
    return message;
  });
  while (session.Next().has_value()) {
  }
  const grpc::Status end = session.Finish();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(end.error_message().find("unread"), std::string::npos) << end.error_message();
  EXPECT_EQ(daemon_.daemon().rpc_stats().sessions_overrun.Get(), 1u);
  EXPECT_EQ(worker_.client().GetStatus()->sessions().overrun(), 1u);
  EXPECT_EQ(log_.Count("a session was ended, its client does not read its events"), 1u);
}

}  // namespace
}  // namespace kvstream
