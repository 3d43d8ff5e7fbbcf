#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include <cstring>

#include "server/base/clock.h"
#include "server/base/unique_fd.h"
#include "server/rpc/handoff_server.h"
#include "tests/rpc/rig.h"
#include "tests/support/log_recorder.h"

namespace kvstream::rpc {
namespace {

using ::testing::HasSubstr;

v1::HandoffRequest Create(uint64_t bytes) {
  v1::HandoffRequest request;
  request.set_request_id(11);
  request.mutable_create_host_buffer()->set_bytes(bytes);
  return request;
}

v1::HandoffRequest Attach(uint64_t bytes = 0) {
  v1::HandoffRequest request;
  request.mutable_attach_host_buffer()->set_bytes(bytes);
  return request;
}

v1::HandoffRequest Drop(uint64_t buffer_id) {
  v1::HandoffRequest request;
  request.mutable_drop_host_buffer()->set_buffer_id(buffer_id);
  return request;
}

// The handoff server alone, and one client connected.
class HandoffTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.socket.path = dir_.Path("handoff");
    options_.boot_id.bytes.fill(7);
    options_.limits = TestLimits();
    auto server = HandoffServer::Start(options_, &poster_, &stats_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    Connect();
  }

  void Connect() {
    client_ = std::make_unique<HandoffClient>(options_.socket.path);
    session_ = poster_.Next<engine::SessionConnected>().session;
    const auto reply = client_->Receive();
    ASSERT_TRUE(reply.has_value());
    welcome_ = reply->welcome();
  }

  test::LogRecorder log_;  // Before the threads that log.
  TempDir dir_;
  RpcStats stats_;
  RecordingPoster poster_;
  HandoffOptions options_;
  std::unique_ptr<HandoffServer> server_;
  std::unique_ptr<HandoffClient> client_;
  SessionId session_;
  v1::Welcome welcome_;
};

TEST_F(HandoffTest, WelcomeCarriesATokenOfThisConnectionAlone) {
  EXPECT_EQ(welcome_.token().size(), 16u);
  EXPECT_EQ(welcome_.boot_id(), std::string(16, 7));
  EXPECT_EQ(welcome_.protocol_version(), 1u);
  EXPECT_EQ(server_->tokens().Resolve(welcome_.token()), session_);
  const std::string first_token = welcome_.token();
  auto first = std::move(client_);
  Connect();
  EXPECT_NE(welcome_.token(), first_token);
}

TEST_F(HandoffTest, ASessionsNumberDoesNotTellAnother) {
  std::vector<std::unique_ptr<HandoffClient>> kept;
  std::vector<uint64_t> numbers = {session_.value};
  for (uint64_t i = 1; i < options_.limits.sessions_max; ++i) {
    kept.push_back(std::move(client_));
    Connect();
    numbers.push_back(session_.value);
  }
  std::sort(numbers.begin(), numbers.end());
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_LT(numbers[i], uint64_t{1} << 63);
    EXPECT_GT(numbers[i] - (i == 0 ? 0 : numbers[i - 1]), uint64_t{1} << 32);
  }
}

TEST_F(HandoffTest, ACreatedBufferIsSharedWithTheEngine) {
  const v1::HandoffReply reply = client_->Call(Create(5000));
  EXPECT_EQ(reply.request_id(), 11u);
  EXPECT_EQ(reply.code(), v1::OK);
  EXPECT_EQ(reply.host_buffer().bytes(), 8192u);
  auto attached = poster_.Next<engine::BufferAttached>();
  EXPECT_EQ(attached.session, session_);
  EXPECT_EQ(attached.buffer_id, reply.host_buffer().buffer_id());
  const UniqueFd fd = client_->TakeFd();
  void* mapped = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::memcpy(mapped, "shared", 6);
  EXPECT_EQ(std::memcmp(attached.memory->bytes().data(), "shared", 6), 0);
  munmap(mapped, 8192);
}

TEST_F(HandoffTest, AClientsSealedMemfdIsAttached) {
  const UniqueFd fd = MakeMemfd(true);
  const v1::HandoffReply reply = client_->Call(Attach(), {fd.get()});
  EXPECT_EQ(reply.code(), v1::OK) << reply.message();
  EXPECT_EQ(reply.host_buffer().bytes(), 8192u);
  EXPECT_EQ(poster_.Next<engine::BufferAttached>().memory->size(), 8192u);
}

TEST_F(HandoffTest, UnsealedMemoryIsRefused) {
  const UniqueFd fd = MakeMemfd(false);
  EXPECT_EQ(client_->Call(Attach(), {fd.get()}).code(), v1::INVALID_ARGUMENT);
  EXPECT_TRUE(poster_.empty());
}

TEST_F(HandoffTest, AnAttachWithoutADescriptorIsRefused) {
  const v1::HandoffReply reply = client_->Call(Attach());
  EXPECT_EQ(reply.code(), v1::INVALID_ARGUMENT);
  EXPECT_THAT(reply.message(), HasSubstr("descriptor"));
}

TEST_F(HandoffTest, BuffersAreLimitedInNumberAndBytesAndRoomComesBack) {
  EXPECT_EQ(client_->Call(Create(0)).code(), v1::INVALID_ARGUMENT);
  EXPECT_EQ(client_->Call(Create(kMiB + 1)).code(), v1::INVALID_ARGUMENT);
  EXPECT_EQ(client_->Call(Create(~uint64_t{0})).code(), v1::INVALID_ARGUMENT);
  const uint64_t first = client_->Call(Create(kMiB - 4096)).host_buffer().buffer_id();
  poster_.Next<engine::BufferAttached>();
  EXPECT_EQ(client_->Call(Create(8192)).code(), v1::RESOURCE_EXHAUSTED);
  EXPECT_EQ(client_->Call(Create(4096)).code(), v1::OK);
  poster_.Next<engine::BufferAttached>();
  EXPECT_EQ(client_->Call(Create(1)).code(), v1::RESOURCE_EXHAUSTED);

  client_->Send(Drop(first));
  auto drop = poster_.Next<engine::DropBuffer>();
  EXPECT_EQ(drop.session, session_);
  EXPECT_EQ(drop.buffer_id, first);
  drop.reply(absl::OkStatus());
  // Also without a request id, since an empty packet would look like end of file.
  const auto dropped = client_->Receive();
  ASSERT_TRUE(dropped.has_value());
  EXPECT_EQ(dropped->code(), v1::OK);
  EXPECT_EQ(dropped->host_buffer().buffer_id(), first);
  const v1::HandoffReply again = client_->Call(Create(8192));
  EXPECT_EQ(again.code(), v1::OK);
  EXPECT_NE(again.host_buffer().buffer_id(), first);
}

TEST_F(HandoffTest, ADropThatTheEngineRefusesKeepsTheBuffer) {
  const uint64_t id = client_->Call(Create(kMiB)).host_buffer().buffer_id();
  poster_.Next<engine::BufferAttached>();
  client_->Send(Drop(id));
  poster_.Next<engine::DropBuffer>().reply(absl::FailedPreconditionError("in use"));
  const auto refused = client_->Receive();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code(), v1::FAILED_PRECONDITION);
  EXPECT_EQ(client_->Call(Create(4096)).code(), v1::RESOURCE_EXHAUSTED);
}

TEST_F(HandoffTest, DeviceMemoryAndUnknownRequestsAreAnswered) {
  v1::HandoffRequest device;
  device.mutable_attach_device_memory()->set_gpu_uuid("GPU-1");
  EXPECT_EQ(client_->Call(device).code(), v1::INVALID_ARGUMENT);  // Without a descriptor.
  v1::HandoffRequest nothing;
  nothing.set_request_id(3);
  const v1::HandoffReply reply = client_->Call(nothing);
  EXPECT_EQ(reply.code(), v1::INVALID_ARGUMENT);
  EXPECT_EQ(reply.request_id(), 3u);
}

TEST_F(HandoffTest, DeviceMemoryIsLimitedAndRoomComesBack) {
  v1::HandoffRequest device;
  device.mutable_attach_device_memory()->set_gpu_uuid("GPU-1");
  device.mutable_attach_device_memory()->set_allocation_bytes(8192);
  const UniqueFd fd = MakeMemfd(true);
  std::vector<engine::DeviceMemoryAttached> kept;
  for (int i = 0; i < 256; ++i) {
    ASSERT_EQ(client_->Call(device, {fd.get()}).code(), v1::OK);
    kept.push_back(poster_.Next<engine::DeviceMemoryAttached>());
  }
  EXPECT_EQ(client_->Call(device, {fd.get()}).code(), v1::RESOURCE_EXHAUSTED);
  kept.pop_back();
  EXPECT_EQ(client_->Call(device, {fd.get()}).code(), v1::OK);
}

TEST_F(HandoffTest, EndOfFileReachesTheClientOnlyWhenTheEngineCloses) {
  // A packet that is no request ends the session, but not yet the connection.
  ASSERT_TRUE(client_->TrySend("\xff\xff\xff"));
  EXPECT_EQ(poster_.Next<engine::HandoffClosed>().session, session_);
  EXPECT_EQ(server_->tokens().Resolve(welcome_.token()), std::nullopt);
  server_->Close(session_);
  EXPECT_FALSE(client_->Receive().has_value());
  EXPECT_TRUE(poster_.empty());
}

TEST_F(HandoffTest, AnOversizedPacketEndsTheSession) {
  ASSERT_TRUE(client_->TrySend(std::string(PacketSocket::kPacketBytesMax + 1, 'x')));
  EXPECT_EQ(poster_.Next<engine::HandoffClosed>().session, session_);
}

TEST_F(HandoffTest, TheEngineClosesAConnectionWhoseStreamEnded) {
  server_->Close(session_);
  EXPECT_FALSE(client_->Receive().has_value());
  EXPECT_EQ(server_->tokens().Resolve(welcome_.token()), std::nullopt);
  // What comes late for a session that is gone is harmless.
  server_->Close(session_);
  Connect();
}

TEST_F(HandoffTest, ADropAnsweredAfterTheCloseIsHarmless) {
  client_->Send(Drop(1));
  auto drop = poster_.Next<engine::DropBuffer>();
  server_->Close(session_);
  drop.reply(absl::NotFoundError("no such buffer"));
  EXPECT_FALSE(client_->Receive().has_value());
  Connect();
}

TEST_F(HandoffTest, MoreSessionsThanTheLimitAreRefused) {
  std::vector<std::unique_ptr<HandoffClient>> clients;
  for (uint64_t i = 1; i < options_.limits.sessions_max; ++i) {
    clients.push_back(std::move(client_));
    Connect();
  }
  HandoffClient refused(options_.socket.path);
  const auto reply = refused.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->code(), v1::RESOURCE_EXHAUSTED);
  EXPECT_FALSE(reply->has_welcome());
  EXPECT_FALSE(refused.Receive().has_value());
  EXPECT_FALSE(HandoffClient(options_.socket.path).Receive()->has_welcome());
  EXPECT_TRUE(poster_.empty());
  EXPECT_EQ(stats_.sessions_refused.Get(), 2u);
  EXPECT_EQ(log_.Count("a session was refused, too many are open"), 1u);
}

TEST_F(HandoffTest, AClientThatReadsNoRepliesIsGivenUpAndOthersAreServed) {
  v1::HandoffRequest nothing;
  nothing.set_request_id(1);
  while (poster_.empty()) {
    [[maybe_unused]] const bool taken = client_->TrySend(nothing.SerializeAsString());
  }
  EXPECT_EQ(poster_.Next<engine::HandoffClosed>().session, session_);
  auto stuck = std::move(client_);
  Connect();
}

TEST_F(HandoffTest, TooManyPendingDropsAreRefused) {
  for (int i = 0; i < 64; ++i) client_->Send(Drop(1));
  std::vector<engine::DropBuffer> pending;
  for (int i = 0; i < 64; ++i) pending.push_back(poster_.Next<engine::DropBuffer>());
  EXPECT_EQ(client_->Call(Drop(1)).code(), v1::RESOURCE_EXHAUSTED);
}

TimeNs CpuTime() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

TEST_F(HandoffTest, AcceptThatFindsNoDescriptorPausesAndGoesOn) {
  const UniqueFd late(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, options_.socket.path.c_str(), sizeof address.sun_path - 1);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // The lowest number that is free is the first that there may not be.
  const rlimit none{static_cast<rlim_t>(UniqueFd(fcntl(late.get(), F_DUPFD_CLOEXEC, 0)).get()),
                    before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(connect(late.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const TimeNs deadline = Now() + absl::ToInt64Nanoseconds(kPatience);
  while (log_.Count("handoff accept failing") == 0 && Now() < deadline) sched_yield();
  // Through several more tries: nothing comes, nobody else waits, and no time is burnt.
  const TimeNs cpu = CpuTime();
  pollfd ready{late.get(), POLLIN, 0};
  EXPECT_EQ(poll(&ready, 1, 400), 0);
  EXPECT_LT(CpuTime() - cpu, 50 * kMillisecond);
  EXPECT_EQ(log_.Count("handoff accept failing"), 1u);
  EXPECT_GT(stats_.accept_failures.Get(), 1u);
  while (stats_.accept_paused.Get() == 0 && Now() < deadline) sched_yield();
  EXPECT_EQ(client_->Call(Attach()).code(), v1::INVALID_ARGUMENT);
  EXPECT_TRUE(poster_.empty());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))), 1);
  poster_.Next<engine::SessionConnected>();
  EXPECT_EQ(stats_.accept_paused.Get(), 0u);
}

TEST_F(HandoffTest, DescriptorsAreNotLeaked) {
  const size_t before = CountFds();
  for (int i = 0; i < 200; ++i) {
    auto kept = std::move(client_);
    const SessionId kept_session = session_;
    Connect();
    const UniqueFd sealed = MakeMemfd(true);
    const int fd = sealed.get();
    // All but the first are closed, as are those of a packet that asks for nothing.
    EXPECT_EQ(client_->Call(Attach(), {fd, fd, fd, fd, fd}).code(), v1::OK);
    poster_.Next<engine::BufferAttached>();
    EXPECT_EQ(client_->Call(Create(0), std::vector<int>(40, fd)).code(), v1::INVALID_ARGUMENT);
    EXPECT_EQ(client_->Call(Create(4096)).code(), v1::OK);
    poster_.Next<engine::BufferAttached>();
    client_->TakeFd();
    if (i % 2 == 0) {
      client_->Close();
      poster_.Next<engine::HandoffClosed>();
      server_->Close(session_);
    } else {
      server_->Close(session_);
      EXPECT_FALSE(client_->Receive().has_value());
    }
    client_ = std::move(kept);
    session_ = kept_session;
  }
  // Errands run in order: when this one has, all have.
  server_->Close(session_);
  EXPECT_FALSE(client_->Receive().has_value());
  client_->Close();
  EXPECT_EQ(CountFds(), before - 2);
}

}  // namespace
}  // namespace kvstream::rpc
