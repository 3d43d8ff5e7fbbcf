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
#include "tests/support/log_recorder.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

namespace fs = std::filesystem;

class StartTest : public testing::Test {
 protected:
  absl::Status StartWith(const std::function<void(config::Options&)>& change) {
    config::Options options = daemon_.options();
    options.grpc_socket += "2";
    options.handoff_socket += "2";
    change(options);
    auto daemon = StartWithoutGpus(options);
    if (daemon.ok()) {
      EXPECT_TRUE((*daemon)->Stop());
    }
    return daemon.status();
  }

  void ExpectRefused(const absl::Status& status, const std::string& named) {
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(named), absl::string_view::npos) << status;
    // The first daemon is not disturbed.
    Worker worker(daemon_.socket());
    EXPECT_TRUE(worker.Put({next_key_}).ok());
    EXPECT_EQ(worker.Get({next_key_++}).leading_valid(), 1u);
  }

  test::LogRecorder log_;  // Before the threads that log.
  TestDaemon daemon_;
  TempDir spare_;
  uint64_t next_key_ = 1;
};

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
}

// One fake GPU, for which only the first slice can be pinned.
class OneSliceDriver final : public gpu::Driver {
 public:
  explicit OneSliceDriver(std::atomic<int>* pinned) : pinned_(*pinned) {}

  std::vector<gpu::Device*> devices() override { return fake_->devices(); }
  const std::string& reason() const override { return fake_->reason(); }
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

// A file system whose server never answers.
class HungMount {
 public:
  explicit HungMount(std::string at) : at_(std::move(at)) {
    const std::string options =
        "fd=" + std::to_string(fuse_.get()) + ",rootmode=40000,user_id=0,group_id=0";
    mounted_ = fuse_.valid() &&
               mount("hung", at_.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0;
  }
  ~HungMount() {
    // Everything that waits for it gets an error.
    fuse_.Reset();
    if (mounted_) umount2(at_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }

 private:
  const std::string at_;
  UniqueFd fuse_{open("/dev/fuse", O_RDWR | O_CLOEXEC)};
  bool mounted_ = false;
};

TEST_F(StartTest, AHungFileSystemOfATierThatIsNotRequiredDoesNotHoldTheStart) {
  const HungMount mount(spare_.path());
  if (!mount.mounted()) GTEST_SKIP() << "mounting a FUSE file system needs root and /dev/fuse";
  TestDaemon daemon([&](config::Options& o) {
    o.tiers[1].root = spare_.path();
    o.tiers[1].required = false;
  });
  Worker worker(daemon.socket());
  EXPECT_TRUE(worker.Put({1}).ok());
  EXPECT_EQ(worker.Get({1}).leading_valid(), 1u);
  const auto status = worker.client().GetStatus();
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->tiers(1).state(), v1::TIER_STATE_OUT);
  ExpectRefused(StartWith([&](config::Options& o) {
                  o.tiers.erase(o.tiers.begin());
                  o.tiers[0].root = spare_.path();
                }),
                "does not answer");
}

// A file system in memory, of so many bytes.
class SmallMount {
 public:
  SmallMount(std::string at, uint64_t bytes) : at_(std::move(at)) {
    const std::string size = "size=" + std::to_string(bytes);
    mounted_ = mount("small", at_.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, size.c_str()) == 0;
  }
  ~SmallMount() {
    if (mounted_) umount2(at_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  bool Grow(uint64_t bytes) const {
    const std::string size = "size=" + std::to_string(bytes);
    return mount("small", at_.c_str(), "tmpfs", MS_REMOUNT | MS_NOSUID | MS_NODEV, size.c_str()) ==
           0;
  }

 private:
  const std::string at_;
  bool mounted_ = false;
};

TEST_F(StartTest, AFullTierFailsWritesAndReadsGoOn) {
  const SmallMount mount(spare_.path(), 4 * kMiB);
  if (!mount.mounted()) GTEST_SKIP() << "mounting a file system needs root";
  TestDaemon daemon([&](config::Options& o) { o.tiers[1].root = spare_.path(); });
  Worker worker(daemon.socket());
  const auto conditions = [&] {
    const auto status = worker.client().GetStatus();
    EXPECT_TRUE(status.ok());
    return std::vector<std::string>(status->conditions().begin(), status->conditions().end());
  };
  constexpr char kCondition[] = "tier pfs takes no writes: they fail";
  const auto first = Keys(1, 8);
  ASSERT_TRUE(worker.Put(first).ok());
  daemon.WaitWritten();
  ASSERT_EQ(daemon.Files(1).size(), 8u);
  EXPECT_THAT(conditions(), testing::Not(testing::Contains(kCondition)));
  // Several times what fits: the other tier has all of it.
  for (uint64_t key = 100; key < 164; key += 8) ASSERT_TRUE(worker.Put(Keys(key, 8)).ok());
  daemon.WaitUntil([&] { return daemon.stats().tiers[1].writes_out.Get() == 1; },
                   "the tier takes no writes");
  EXPECT_THAT(conditions(), testing::Contains(kCondition));
  EXPECT_EQ(worker.client().GetStatus()->tiers(1).state(), v1::TIER_STATE_DEGRADED);
  EXPECT_EQ(log_.Count("a tier whose writes fail takes no more of them: tier=pfs"), 1u);
  EXPECT_GT(daemon.stats().tiers[1].failed_writes.Get(), 0u);
  EXPECT_EQ(daemon.stats().chunks_lost.Get(), 0u);
  EXPECT_EQ(daemon.Files(0).size(), 72u);
  // It still reads, alone.
  Admin admin(daemon.socket(), kPatience);
  ASSERT_TRUE(admin.SetTierInService("nvme", false).ok());
  EXPECT_EQ(worker.Get(first).leading_valid(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(worker.Holds(first[i], i));
  ASSERT_TRUE(admin.SetTierInService("nvme", true).ok());
  EXPECT_EQ(worker.Get(Keys(100, 64)).leading_valid(), 64u);
  // With room again it takes writes again, by itself: it is tried once a minute at the least.
  ASSERT_TRUE(mount.Grow(256 * kMiB));
  const TimeNs deadline = Now() + 150 * kSecond;
  while (daemon.stats().tiers[1].writes_out.Get() == 1 && Now() < deadline) sched_yield();
  ASSERT_EQ(daemon.stats().tiers[1].writes_out.Get(), 0u);
  EXPECT_THAT(conditions(), testing::Not(testing::Contains(kCondition)));
  daemon.WaitWritten();
  const size_t files = daemon.Files(1).size();
  ASSERT_TRUE(worker.Put(Keys(1000, 2)).ok());
  daemon.WaitWritten();
  EXPECT_EQ(daemon.Files(1).size(), files + 2);
  for (const auto& entry : fs::recursive_directory_iterator(spare_.path())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp-")) << entry.path();
  }
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
