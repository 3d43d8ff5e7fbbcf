// Starting and stopping: what is refused names what is wrong, and nothing is left behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/admin.h"
#include "server/base/clock.h"
#include "server/limits.h"
#include "server/pinning.h"
#include "tests/e2e/start_fixture.h"

namespace kvstream {
namespace {

namespace fs = std::filesystem;

TEST_F(StartTest, ASecondDaemonOnTheSameDirectoriesIsRefused) {
  ExpectRefused(StartWith([](config::Options&) {}), daemon_.root(0).string());
}

TEST_F(StartTest, ASecondDaemonOnTheSameSocketIsRefused) {
  ExpectRefused(StartWith([&](config::Options& o) {
                  o.grpc_socket = daemon_.options().grpc_socket;
                  o.tiers[0].root = spare_.path();
                  o.tiers.pop_back();
                }),
                daemon_.socket());
}

TEST_F(StartTest, TwoTiersOnOneDirectoryAreRefused) {
  fs::create_directory(spare_.path() / "a");
  fs::create_symlink(spare_.path() / "a", spare_.path() / "b");
  ExpectRefused(StartWith([&](config::Options& o) {
                  o.tiers[0].root = spare_.path() / "a";
                  o.tiers[1].root = spare_.path() / "b";
                }),
                "tiers[1].root");
}

TEST_F(StartTest, MissingDirectoriesAreRefusedByName) {
  ExpectRefused(StartWith([&](config::Options& o) { o.tiers[0].root = spare_.path() / "missing"; }),
                (spare_.path() / "missing").string());
}

TEST_F(StartTest, ATierThatIsNotRequiredMayBeMissingAndStatusSaysSo) {
  TestDaemon daemon([&](config::Options& o) {
    o.tiers[1].root = spare_.path() / "missing";
    o.tiers[1].required = false;
  });
  Worker worker(daemon.socket());
  EXPECT_TRUE(worker.Put({1}).ok());
  EXPECT_EQ(worker.Get({1}).leading_valid(), 1u);
  const auto status = worker.client().GetStatus();
  ASSERT_TRUE(status.ok());
  EXPECT_TRUE(status->ready());
  EXPECT_EQ(status->tiers(1).state(), v1::TIER_STATE_OUT);
  EXPECT_THAT(status->conditions(), testing::Contains(testing::HasSubstr("pfs")));
  EXPECT_EQ(log_.Count("tier missing: tier=pfs"), 1u);
  EXPECT_EQ(daemon.stats().tiers[1].out.Get(), 1u);
}

// One fake GPU, for which only the first slice can be pinned.
class OneSliceDriver final : public gpu::Driver {
 public:
  explicit OneSliceDriver(std::atomic<int>* pinned) : pinned_(*pinned) {}

  std::vector<gpu::Device*> devices() override { return fake_->devices(); }
  const std::string& reason() const override { return fake_->reason(); }
  const std::vector<std::string>& unused() const override { return fake_->unused(); }
  absl::Status Pin(std::span<std::byte>) override {
    if (pinned_ != 0) return absl::ResourceExhaustedError("no more");
    pinned_ += 1;
    return absl::OkStatus();
  }
  void Unpin(std::span<std::byte>) override { pinned_ -= 1; }

 private:
  const std::unique_ptr<gpu::Driver> fake_ = gpu::OpenFakeDriver(1);
  std::atomic<int>& pinned_;
};

TEST_F(StartTest, APoolThatCannotBePinnedWholeIsSmallerOrKeepsTheDaemonFromStarting) {
  config::Options options = daemon_.options();
  options.grpc_socket += "2";
  options.handoff_socket = options.grpc_socket + ".handoff";
  options.pool_bytes = 2 * kPinSliceBytes;
  options.pool_reserved_bytes = kPinSliceBytes;
  options.tiers.pop_back();
  options.tiers[0].root = spare_.path();
  options.tiers[0].io_engine = config::IoEngine::kThreads;  // A ring would take the whole pool.
  if (!Memory(options).enough()) GTEST_SKIP() << "needs 8.25 GiB of memory that is not used";
  std::atomic<int> pinned = 0;
  const auto open = [&pinned] { return std::make_unique<OneSliceDriver>(&pinned); };
  {
    const auto daemon = Daemon::Start(options, open);
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    EXPECT_EQ(pinned, 1);
    const auto status = Worker(options.grpc_socket).client().GetStatus();
    ASSERT_TRUE(status.ok());
    EXPECT_TRUE(status->ready());
    EXPECT_EQ(status->pool().bytes(), kPinSliceBytes);
    EXPECT_EQ(status->pool().reserved_bytes(), kPinSliceBytes / 2);
    EXPECT_EQ(status->pool().pinned_bytes(), kPinSliceBytes);
    EXPECT_EQ(status->pool().configured_bytes(), 2 * kPinSliceBytes);
    EXPECT_THAT(status->conditions(),
                testing::Contains(testing::HasSubstr("the staging pool has 4096 of 8192 MiB")));
    EXPECT_EQ(log_.Count("the staging pool has 4096 of 8192 MiB"), 1u);
    EXPECT_TRUE((*daemon)->Stop());
  }
  EXPECT_EQ(pinned, 0);
  options.pin = config::PinPolicy::kExit;
  ExpectRefused(Daemon::Start(options, open).status(), "pool.pin");
  EXPECT_EQ(pinned, 0);
}

TEST_F(StartTest, ARequiredGpuThatIsNotThereIsRefusedWithTheReason) {
  ExpectRefused(StartWith([&](config::Options& o) {
                  o.gpu.mode = config::GpuMode::kRequired;
                  o.tiers.pop_back();
                  o.tiers[0].root = spare_.path();
                }),
                "gpu.mode is REQUIRED: ");
}

TEST_F(StartTest, WhatIsNotAsItShouldBeIsAConditionAndOneWarningEach) {
  // More than any limit of descriptors.
  TestDaemon daemon([](config::Options& o) {
    o.routing.hedging = false;
    for (auto& tier : o.tiers) tier.open_files = 1u << 30;
  });
  const auto status = Worker(daemon.socket()).client().GetStatus();
  ASSERT_TRUE(status.ok());
  EXPECT_TRUE(status->ready());
  const std::vector<std::string> conditions(status->conditions().begin(),
                                            status->conditions().end());
  EXPECT_THAT(conditions, testing::Contains("routing is set for comparison: steps end later than "
                                            "they could"));
  EXPECT_EQ(log_.Count("routing is set for comparison"), 1u);
  EXPECT_THAT(conditions, testing::Contains(testing::HasSubstr("the limit of open files, ")));
  EXPECT_EQ(log_.Count("limit of open files is low"), 1u);
  const auto no_huge_pages = testing::Contains(testing::HasSubstr("has no huge pages"));
  if (status->pool().huge_pages()) {
    EXPECT_THAT(conditions, testing::Not(no_huge_pages));
  } else {
    EXPECT_THAT(conditions, no_huge_pages);
  }
  // The fixture's daemon has the same pool.
  EXPECT_EQ(log_.Count("the staging pool has no huge pages"),
            status->pool().huge_pages() ? 0u : 2u);
  // Where all is as it should be nothing is said.
  const auto plain = Worker(daemon_.socket()).client().GetStatus();
  ASSERT_TRUE(plain.ok());
  EXPECT_THAT(plain->conditions(), testing::Not(testing::Contains(testing::HasSubstr("routing"))));
  EXPECT_THAT(plain->conditions(),
              testing::Not(testing::Contains(testing::HasSubstr("limit of open files"))));
}

// May lock no memory, as a container's root.
TEST_F(StartTest, APoolThatCannotBeRegisteredIsReadWithoutAndStatusSaysSo) {
  if (EngineUnderTest() == config::IoEngine::kThreads) GTEST_SKIP() << "threads register nothing";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit low{kMiB, before.rlim_max};  // For the rings, and not for the pool.
  std::unique_ptr<TestDaemon> daemon;
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &low), 0);
  // Capabilities are a thread's own, and of all that it starts.
  std::thread([&] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3]{};
    EXPECT_EQ(syscall(SYS_capset, &header, none), 0);
    daemon = std::make_unique<TestDaemon>();
  }).join();
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  Worker worker(daemon->socket());
  ASSERT_TRUE(worker.Put(Keys(1, 8)).ok());
  daemon->WaitWritten();
  EXPECT_EQ(worker.Get(Keys(1, 8)).leading_valid(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(worker.Holds(1 + i, i));
  const auto status = worker.client().GetStatus();
  ASSERT_TRUE(status.ok());
  for (const v1::TierStatus& tier : status->tiers()) {
    EXPECT_EQ(tier.io_engine(), "io_uring");
    EXPECT_FALSE(tier.registered_buffers());
    EXPECT_THAT(status->conditions(), testing::Contains("tier " + tier.name() +
                                                        " reads without registered buffers: the "
                                                        "locked-memory limit is low"));
  }
  EXPECT_EQ(log_.Count("staging pool not registered"), 1u);
}

TEST_F(StartTest, StatusTellsWhatTheDaemonIs) {
  Worker worker(daemon_.socket());
  ASSERT_TRUE(worker.Put({1, 2}).ok());
  daemon_.WaitWritten();
  const auto status = worker.client().GetStatus();
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_TRUE(status->ready());
  EXPECT_EQ(status->boot_id(), worker.client().boot_id());
  ASSERT_EQ(status->tiers_size(), 2);
  EXPECT_EQ(status->tiers(0).name(), "nvme");
  const bool threads = EngineUnderTest() == config::IoEngine::kThreads;
  EXPECT_EQ(status->tiers(0).io_engine(), threads ? "threads" : "io_uring");
  EXPECT_EQ(status->tiers(0).engine_reason(), "");
  EXPECT_EQ(status->tiers(0).buffered_reason().empty(), status->tiers(0).direct());
  EXPECT_EQ(status->tiers(0).state(), v1::TIER_STATE_OK);
  EXPECT_EQ(status->tiers(0).chunks_written(), 2u);
  EXPECT_EQ(status->pool().bytes(), 64 * kMiB);
  EXPECT_EQ(status->sessions().open(), 1u);
  EXPECT_EQ(status->index().chunks(), 2u);
}

TEST_F(StartTest, ARestartIsANewBootAndOldSessionsEndWithATypedError) {
  Worker worker(daemon_.socket());
  const std::string boot = worker.client().boot_id();
  daemon_.Restart();
  auto read = worker.client().ReadStep(worker.StepOf({1}));
  const absl::Status status =
      read.ok() ? ((*read)->WaitEnded(kPatience), (*read)->status()) : read.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  Worker again(daemon_.socket());
  EXPECT_NE(again.client().boot_id(), boot);
}

TEST_F(StartTest, SocketsHaveTheModeOfTheConfig) {
  for (const std::string& path :
       {daemon_.options().grpc_socket, daemon_.options().handoff_socket}) {
    struct stat file;
    ASSERT_EQ(stat(path.c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777, 0660u) << path;
  }
}

}  // namespace
}  // namespace kvstream
