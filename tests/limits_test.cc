#include "server/limits.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "server/daemon.h"
#include "server/preflight.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

config::Options TwoTiers() {
  config::Options options;
  options.pool_bytes = 64 * kMiB;
  options.sessions_max = 10;
  options.tiers.resize(2);
  for (config::TierOptions& tier : options.tiers) tier.open_files = 1000;
  return options;
}

TEST(LimitsTest, EveryRingLocksThePoolAnew) {
  config::Options options = TwoTiers();
  EXPECT_EQ(LockedMemory(options).need, 4 * (options.pool_bytes + 128 * kKiB));
  options.tiers[0].io_engine = config::IoEngine::kUring;
  EXPECT_EQ(LockedMemory(options).need, 4 * (options.pool_bytes + 128 * kKiB));
  options.tiers[0].io_engine = config::IoEngine::kThreads;
  EXPECT_EQ(LockedMemory(options).need, 2 * (options.pool_bytes + 128 * kKiB));
  options.tiers[1].io_engine = config::IoEngine::kThreads;
  EXPECT_TRUE(LockedMemory(options).enough());
}

TEST(LimitsTest, WithoutTheCapabilityTheLimitOfLockedMemoryCounts) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  Limit locked;
  // Capabilities are a thread's own.
  std::thread([&] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3]{};
    EXPECT_EQ(syscall(SYS_capset, &header, none), 0);
    locked = LockedMemory(TwoTiers());
  }).join();
  EXPECT_EQ(locked.have, limit.rlim_cur);
  EXPECT_EQ(locked.enough(), limit.rlim_cur >= locked.need);
  EXPECT_FALSE(locked.raise.empty());
}

TEST(LimitsTest, OpenFilesOfAllTiersCountAndTheSoftLimitIsRaised) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{256, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const Limit files = OpenFiles(TwoTiers());
  EXPECT_EQ(files.need, 2256u + 3 * 10);
  EXPECT_EQ(files.have, 256u);
  EXPECT_FALSE(files.enough());
  RaiseOpenFiles();
  EXPECT_EQ(OpenFiles(TwoTiers()).have, before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(LimitsTest, APoolThatTheMachineCannotHoldIsRefusedBeforeItIsTaken) {
  config::Options options = TwoTiers();
  EXPECT_TRUE(Memory(options).enough());
  options.pool_bytes = uint64_t{1} << 50;
  options.tiers[0].root = "/";  // Only looked at.
  options.tiers[1].root = "/proc";
  EXPECT_FALSE(Memory(options).enough());
  const auto daemon = StartWithoutGpus(options);
  EXPECT_EQ(daemon.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(daemon.status().message()).find("pool.mib"), std::string::npos);
  const Preflight preflight = CheckPreflight(options);
  EXPECT_FALSE(preflight.starts);
  EXPECT_NE(preflight.report.find("does not start"), std::string::npos);
}

TEST(LimitsTest, HugePagesAreCountedInWholePages) {
  config::Options options = TwoTiers();
  options.pool_bytes = 64 * kMiB + 1;
  EXPECT_GT(HugePages(options).need, options.pool_bytes);
  EXPECT_NE(HugePages(options).raise.find("vm.nr_hugepages="), std::string::npos);
}

TEST(LimitsTest, ALowLimitOfOpenFilesLeavesMostOfThemToTheRestOfTheDaemon) {
  EXPECT_EQ(OpenFilesPerTier({.need = 100, .have = 100}, 2), UINT32_MAX);
  EXPECT_EQ(OpenFilesPerTier({.need = 2286, .have = 1024}, 2), 128u);
  EXPECT_EQ(OpenFilesPerTier({.need = 2286, .have = 8}, 8), 4u);
}

TEST(LimitsTest, TheTightestCgroupCountsAndPageCacheIsNotHeld) {
  std::string root = (std::filesystem::temp_directory_path() / "kvstream-cgroup-XXXXXX").string();
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const auto write = [&](const std::string& group, const std::string& file, const char* text) {
    std::filesystem::create_directories(root + group);
    std::ofstream(root + group + "/" + file) << text;
  };
  EXPECT_EQ(RoomInCgroup(root, "/a/b", kCgroupV2), Limit::kNone);
  write("/a/b", "memory.max", "max");
  write("/a/b", "memory.current", "500");
  EXPECT_EQ(RoomInCgroup(root, "/a/b", kCgroupV2), Limit::kNone);
  write("/a", "memory.max", "1000");
  write("/a", "memory.current", "900");
  EXPECT_EQ(RoomInCgroup(root, "/a/b", kCgroupV2), 100u);
  write("/a", "memory.stat", "anon 50\ninactive_file 300\nactive_file 400\n");
  EXPECT_EQ(RoomInCgroup(root, "/a/b", kCgroupV2), 800u);
  write("", "memory.limit_in_bytes", "100");
  write("", "memory.usage_in_bytes", "200");
  EXPECT_EQ(RoomInCgroup(root, "/a/b", kCgroupV1), 0u);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace kvstream
