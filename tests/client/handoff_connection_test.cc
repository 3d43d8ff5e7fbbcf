#include "client/handoff_connection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/synchronization/notification.h"

namespace kvstream {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);

// A handoff socket whose other side the test plays.
class HandoffConnectionTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "handoff.XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    path_ = folder + "/s";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    ASSERT_LT(path_.size(), sizeof address.sun_path);
    std::memcpy(address.sun_path, path_.data(), path_.size());
    listener_ = OwnedFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(listen(listener_.get(), 8), 0);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static void Say(int peer, const v1::HandoffReply& reply) {
    const std::string bytes = reply.SerializeAsString();
    ASSERT_EQ(send(peer, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  static v1::HandoffReply WelcomeReply() {
    v1::HandoffReply reply;
    reply.mutable_welcome()->set_token("token");
    return reply;
  }
  // Connects, the other side answering with `first`, and keeps it in peer_.
  absl::StatusOr<std::unique_ptr<HandoffConnection>> Connect(const v1::HandoffReply& first) {
    std::thread daemon([&] {
      peer_ = OwnedFd(accept(listener_.get(), nullptr, nullptr));
      Say(peer_.get(), first);
    });
    auto connection = HandoffConnection::Connect(path_, kLong);
    daemon.join();
    return connection;
  }
  v1::HandoffRequest Hear() {
    std::array<char, 4096> bytes;
    v1::HandoffRequest request;
    const ssize_t n = recv(peer_.get(), bytes.data(), bytes.size(), 0);
    EXPECT_GT(n, 0);
    EXPECT_TRUE(request.ParseFromArray(bytes.data(), static_cast<int>(n)));
    return request;
  }

  std::string folder_;
  std::string path_;
  OwnedFd listener_;
  OwnedFd peer_;
};

TEST_F(HandoffConnectionTest, WelcomeIsTaken) {
  const auto connection = Connect(WelcomeReply());
  ASSERT_TRUE(connection.ok()) << connection.status();
  EXPECT_EQ((*connection)->welcome().token(), "token");
}

TEST_F(HandoffConnectionTest, RefusalInsteadOfAWelcomeIsTheError) {
  v1::HandoffReply refusal;
  refusal.set_code(v1::RESOURCE_EXHAUSTED);
  refusal.set_message("8 sessions are open already");
  const absl::Status status = Connect(refusal).status();
  EXPECT_EQ(status,
            absl::ResourceExhaustedError("connect to " + path_ + ": 8 sessions are open already"));
}

TEST_F(HandoffConnectionTest, NoSocketIsNotFound) {
  const absl::Status status = HandoffConnection::Connect(path_ + "x", kLong).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
}

TEST_F(HandoffConnectionTest, DaemonThatSaysNothingIsGivenUp) {
  const absl::Status status = HandoffConnection::Connect(path_, absl::Milliseconds(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

TEST_F(HandoffConnectionTest, AnswersFindTheirCallInAnyOrder) {
  auto connection = Connect(WelcomeReply());
  ASSERT_TRUE(connection.ok()) << connection.status();
  (*connection)->Start([] {});
  std::thread daemon([&] {
    const uint64_t first = Hear().request_id();
    const uint64_t second = Hear().request_id();
    for (const uint64_t id : {second, first}) {
      v1::HandoffReply reply;
      reply.set_request_id(id);
      reply.mutable_host_buffer()->set_buffer_id(100 + id);
      Say(peer_.get(), reply);
    }
  });
  const auto call = [&] {
    v1::HandoffRequest request;
    request.mutable_create_host_buffer()->set_bytes(1);
    const auto answer = (*connection)->Call(request, -1, kLong);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->reply.host_buffer().buffer_id(), 100 + answer->reply.request_id());
  };
  std::thread other(call);
  call();
  other.join();
  daemon.join();
}

TEST_F(HandoffConnectionTest, EndOfFileFailsCallsAndIsTold) {
  auto connection = Connect(WelcomeReply());
  ASSERT_TRUE(connection.ok()) << connection.status();
  absl::Notification ended;
  (*connection)->Start([&] { ended.Notify(); });
  std::thread daemon([&] {
    Hear();
    peer_ = OwnedFd();
  });
  v1::HandoffRequest request;
  request.mutable_drop_host_buffer()->set_buffer_id(1);
  EXPECT_EQ((*connection)->Call(request, -1, kLong).status().code(),
            absl::StatusCode::kUnavailable);
  daemon.join();
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(kLong));
  EXPECT_TRUE((*connection)->WaitClosed(kLong));
}

TEST_F(HandoffConnectionTest, HalfCloseWaitsForTheDaemonsOwnClose) {
  auto connection = Connect(WelcomeReply());
  ASSERT_TRUE(connection.ok()) << connection.status();
  (*connection)->Start([] {});
  (*connection)->HalfClose();
  char byte;
  EXPECT_EQ(recv(peer_.get(), &byte, 1, 0), 0);
  EXPECT_FALSE((*connection)->WaitClosed(absl::ZeroDuration()));
  peer_ = OwnedFd();
  EXPECT_TRUE((*connection)->WaitClosed(kLong));
}

TEST_F(HandoffConnectionTest, DaemonThatDiesWithRequestsUnreadIsEndOfFile) {
  auto connection = Connect(WelcomeReply());
  ASSERT_TRUE(connection.ok()) << connection.status();
  v1::HandoffRequest request;
  request.mutable_drop_host_buffer()->set_buffer_id(1);
  EXPECT_EQ((*connection)->Call(request, -1, absl::ZeroDuration()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  peer_ = OwnedFd();  // The other side reads ECONNRESET.
  absl::Notification ended;
  (*connection)->Start([&] { ended.Notify(); });
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(kLong));
  EXPECT_TRUE((*connection)->WaitClosed(kLong));
}

// The descriptor of this process that is connected to `path`.
int ConnectedTo(const std::string& path) {
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_un address{};
    socklen_t length = sizeof address;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
        address.sun_path == path) {
      return fd;
    }
  }
  return -1;
}

TEST_F(HandoffConnectionTest, AFailureToReceiveIsNotTheDaemonsEnd) {
  auto connection = Connect(WelcomeReply());
  ASSERT_TRUE(connection.ok()) << connection.status();
  // Another file in the socket's place: readable, and every receive fails with ENOTSOCK.
  const int socket = ConnectedTo(path_);
  ASSERT_GE(socket, 0);
  const OwnedFd kept(fcntl(socket, F_DUPFD_CLOEXEC, 0));
  const OwnedFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  ASSERT_EQ(dup2(null.get(), socket), socket);
  absl::Notification ended;
  (*connection)->Start([&] { ended.Notify(); });
  EXPECT_FALSE((*connection)->WaitClosed(absl::Milliseconds(50)));
  EXPECT_FALSE(ended.HasBeenNotified());
  ASSERT_EQ(dup2(kept.get(), socket), socket);
  peer_ = OwnedFd();
  EXPECT_TRUE((*connection)->WaitClosed(kLong));
}

TEST_F(HandoffConnectionTest, NonsenseGivesTheSessionUpWithoutEndingIt) {
  auto connection = Connect(WelcomeReply());
  ASSERT_TRUE(connection.ok()) << connection.status();
  (*connection)->Start([] {});
  ASSERT_EQ(send(peer_.get(), "\xff\xff", 2, 0), 2);
  char byte;
  EXPECT_EQ(recv(peer_.get(), &byte, 1, 0), 0);
  EXPECT_FALSE((*connection)->WaitClosed(absl::ZeroDuration()));
}

}  // namespace
}  // namespace kvstream
