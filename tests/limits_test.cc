#include "server/limits.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "server/daemon.h"
#include "server/preflight.h"

namespace kvstream {
namespace {

config::Options TwoTiers() {
  config::Options options;
  options.pool_bytes = 64 * kMiB;
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
  EXPECT_EQ(files.need, 2256u);
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
  const auto daemon = Daemon::Start(options);
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

}  // namespace
}  // namespace kvstream
