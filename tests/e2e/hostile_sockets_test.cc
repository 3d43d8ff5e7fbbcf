// Peers that do not speak the protocol: noise, halves of it, silence, other versions.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/raw_session.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

// The client's preface of HTTP/2 and an empty SETTINGS frame.
std::string Preface() {
  return std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string("\0\0\0\4\0\0\0\0\0", 9);
}

std::string Frame(uint32_t length, char type, char flags, uint32_t stream,
                  const std::string& body) {
  std::string frame;
  for (int shift : {16, 8, 0}) frame.push_back(static_cast<char>(length >> shift));
  frame.push_back(type);
  frame.push_back(flags);
  for (int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(stream >> shift));
  return frame + body;
}

std::string Noise(std::mt19937& random, size_t bytes) {
  std::string noise(bytes, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  return noise;
}

void Send(const UniqueFd& fd, const std::string& bytes) {
  // A peer that has hung up already is an answer too.
  [[maybe_unused]] const ssize_t sent =
      send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Reads until the daemon closes.
bool IsClosed(const UniqueFd& fd) {
  char bytes[4096];
  while (true) {
    pollfd entry{fd.get(), POLLIN, 0};
    if (poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) <= 0) return false;
    if (recv(fd.get(), bytes, sizeof bytes, 0) <= 0) return true;
  }
}

// What else may be open meanwhile: the tiers' files, and what gRPC has not let go of yet.
constexpr size_t kOthersFds = 32;

class HostileSocketsTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(worker_.Put(Keys(1, 8)).ok()); }
  void Work() {
    ASSERT_EQ(worker_.Get(Keys(1, 8)).leading_valid(), 8u);
    for (uint64_t slot = 0; slot < 8; ++slot) ASSERT_TRUE(worker_.Holds(1 + slot, slot));
  }

  TestDaemon daemon_;
  Worker worker_{daemon_.socket()};
};

TEST_F(HostileSocketsTest, NoiseOnTheGrpcSocketHarmsNobody) {
  std::mt19937 random(1);
  const size_t before = CountFds();
  for (int round = 0; round < 300; ++round) {
    const UniqueFd fd = ConnectTo(daemon_.socket(), SOCK_STREAM);
    switch (round % 5) {
      case 0:
        Send(fd, Noise(random, 1 + random() % 5000));
        break;
      case 1:  // Half a preface.
        Send(fd, Preface().substr(0, random() % Preface().size()));
        break;
      case 2:  // A good beginning, then noise.
        Send(fd, Preface() + Noise(random, 1 + random() % 5000));
        break;
      case 3:  // Frames of any type that promise more than comes.
        Send(fd, Preface() + Frame(random() % (1 << 24), static_cast<char>(random() % 12),
                                   static_cast<char>(random()), random() % 4,
                                   Noise(random, random() % 200)));
        break;
      case 4:  // Whole frames of noise.
        Send(fd, Preface() + Frame(64, static_cast<char>(random() % 12),
                                   static_cast<char>(random()), random() % 8, Noise(random, 64)));
        break;
    }
    if (round % 50 == 0) Work();
  }
  Work();
  daemon_.WaitUntil([&] { return CountFds() <= before + kOthersFds; }, "the descriptors are back");
}

TEST_F(HostileSocketsTest, NoiseOnTheHandoffSocketEndsThatConnectionAlone) {
  std::mt19937 random(2);
  const size_t before = CountFds();
  v1::HandoffRequest create;
  create.set_request_id(1);
  create.mutable_create_host_buffer()->set_bytes(1 << 20);
  const std::string valid = create.SerializeAsString();
  for (int round = 0; round < 300; ++round) {
    const UniqueFd fd = ConnectTo(daemon_.options().handoff_socket, SOCK_SEQPACKET);
    Send(fd, round % 2 == 0 ? Noise(random, 1 + random() % 5000)
                            : valid.substr(0, 1 + random() % valid.size()));
    if (round % 50 == 0) Work();
  }
  Work();
  daemon_.WaitUntil([&] { return daemon_.stats().sessions_open.Get() == 1; }, "they have ended");
  daemon_.WaitUntil([&] { return CountFds() <= before + kOthersFds; }, "the descriptors are back");
}

TEST_F(HostileSocketsTest, HalfAMessageOnAStreamEndsWithItsClient) {
  // HTTP/2 by hand goes no further than its first frames; halves of gRPC messages are the matter of
  // a call whose client vanishes between two packets of one message.
  std::vector<std::unique_ptr<RawSession>> sessions;
  for (int i = 0; i < 20; ++i) {
    sessions.push_back(std::make_unique<RawSession>(daemon_));
    v1::ClientMessage message;
    message.mutable_store()->set_salt(std::string(16 << 20, 's'));
    std::thread vanishing([&] { sessions.back()->Cancel(); });
    sessions.back()->Write(message);
    vanishing.join();
  }
  sessions.clear();
  Work();
  daemon_.WaitUntil([&] { return daemon_.stats().sessions_open.Get() == 1; }, "they have ended");
}

TEST_F(HostileSocketsTest, AThousandIdleConnectionsCostNobodyAnything) {
  const size_t before = CountFds();
  {
    // The worker has one session of 1024.
    std::vector<UniqueFd> idle;
    for (int i = 0; i < 1000; ++i) {
      idle.push_back(ConnectTo(daemon_.socket(), SOCK_STREAM));
      if (i % 2 == 0) Send(idle.back(), Preface());
      idle.push_back(ConnectTo(daemon_.options().handoff_socket, SOCK_SEQPACKET));
    }
    Work();
    Worker newcomer(daemon_.socket());
    EXPECT_TRUE(newcomer.Put({50}).ok());
  }
  Work();
  daemon_.WaitUntil([&] { return daemon_.stats().sessions_open.Get() == 1; }, "they have ended");
  daemon_.WaitUntil([&] { return CountFds() <= before + kOthersFds; }, "the descriptors are back");
}

TEST(HostileHelloTest, SilentConnectionsAreClosedAndOthersStay) {
  TestDaemon daemon([](config::Options& o) { o.hello_max = 200 * kMillisecond; });
  const UniqueFd grpc = ConnectTo(daemon.socket(), SOCK_STREAM);
  const UniqueFd handoff = ConnectTo(daemon.options().handoff_socket, SOCK_SEQPACKET);
  Worker worker(daemon.socket());
  EXPECT_TRUE(IsClosed(handoff));
  EXPECT_TRUE(IsClosed(grpc));
  EXPECT_GE(daemon.daemon().rpc_stats().hellos_missed.Get(), 1u);
  EXPECT_TRUE(worker.Put({1}).ok());
}

TEST(HostileHelloTest, OtherProtocolVersionsAreRefusedByName) {
  TestDaemon daemon;
  for (const uint32_t version : {0u, 2u, UINT32_MAX}) {
    v1::ClientMessage hello = RawSession::GoodHello();
    hello.mutable_hello()->set_protocol_version(version);
    RawSession session(daemon, hello);
    EXPECT_EQ(session.id(), 0u);
    const grpc::Status end = session.Finish();
    EXPECT_EQ(end.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(end.error_message(),
              "hello.protocol_version: " + std::to_string(version) + ", this daemon speaks 1");
  }
  const auto handoff = HandoffConnection::Connect(daemon.options().handoff_socket, kPatience);
  ASSERT_TRUE(handoff.ok());
  EXPECT_EQ((*handoff)->welcome().protocol_version(), 1u);
}

}  // namespace
}  // namespace kvstream
