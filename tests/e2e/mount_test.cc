// File systems beneath the tiers that are not there, do not answer, or are full.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "client/admin.h"
#include "server/base/clock.h"
#include "server/base/unique_fd.h"
#include "tests/e2e/start_fixture.h"

namespace kvstream {
namespace {

namespace fs = std::filesystem;

class MountTest : public StartTest {};

TEST_F(MountTest, AMountPointWithoutItsFileSystemIsRefused) {
  const std::string root = (spare_.path() / "below").string();
  std::filesystem::create_directory(root);
  const auto unmounted = [&](config::Options& o) {
    o.tiers[1].root = root;
    o.tiers[1].mount_point = spare_.path();
  };
  ExpectRefused(StartWith([&](config::Options& o) {
                  unmounted(o);
                  o.tiers.erase(o.tiers.begin());
                }),
                "nothing is mounted at " + std::string(spare_.path()));
  TestDaemon daemon([&](config::Options& o) {
    unmounted(o);
    o.tiers[1].required = false;
  });
  Worker worker(daemon.socket());
  EXPECT_TRUE(worker.Put({1}).ok());
  daemon.WaitWritten();
  EXPECT_TRUE(std::filesystem::is_empty(root));
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

TEST_F(MountTest, AHungFileSystemOfATierThatIsNotRequiredDoesNotHoldTheStart) {
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

// Takes all the room that is left.
void FillUp(const fs::path& path) {
  std::ofstream file(path, std::ios::binary);
  const std::vector<char> block(4096);
  while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
  }
}

TEST_F(MountTest, AFullTierGivesUpWhatIsOldestAndGoesOn) {
  const SmallMount mount(spare_.path(), 4 * kMiB);
  if (!mount.mounted()) GTEST_SKIP() << "mounting a file system needs root";
  TestDaemon daemon([&](config::Options& o) { o.tiers[1].root = spare_.path(); });
  Worker worker(daemon.socket());
  // One after the other: of more writes at once than the tier has room for, those that wait for it
  // are published last, whatever was stored first.
  for (uint64_t key = 100; key < 164; key += 8) {
    ASSERT_TRUE(worker.Put(Keys(key, 8)).ok());
    daemon.WaitWritten();
  }
  const engine::TierEngineStats& stats = daemon.stats().tiers[1];
  EXPECT_EQ(stats.writes_out.Get(), 0u);
  EXPECT_EQ(stats.failed_writes.Get(), 0u);
  EXPECT_GT(stats.files_evicted.Get(), 40u);
  EXPECT_EQ(daemon.Files(0).size(), 64u);
  daemon.WaitUntil([&] { return daemon.Files(1).size() == stats.chunk_files.Get(); },
                   "what is given up is gone");
  // The last of them are there, alone.
  Admin admin(daemon.socket(), kPatience);
  ASSERT_TRUE(admin.SetTierInService("nvme", false).ok());
  const auto last = Keys(156, 8);
  EXPECT_EQ(worker.Get(last).leading_valid(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(worker.Holds(last[i], i));
  EXPECT_EQ(worker.Get(Keys(100, 8)).leading_valid(), 0u);
  ASSERT_TRUE(admin.SetTierInService("nvme", true).ok());
}

TEST_F(MountTest, ATierThatIsFullOfWhatIsNotOursFailsWritesAndReadsGoOn) {
  const SmallMount mount(spare_.path(), 4 * kMiB);
  if (!mount.mounted()) GTEST_SKIP() << "mounting a file system needs root";
  TestDaemon daemon([&](config::Options& o) { o.tiers[1].root = spare_.path(); });
  Worker worker(daemon.socket());
  const auto conditions = [&] {
    const auto status = worker.client().GetStatus();
    EXPECT_TRUE(status.ok());
    return std::vector<std::string>(status->conditions().begin(), status->conditions().end());
  };
  const auto writes_fail =
      testing::HasSubstr("tier pfs takes no writes: they fail (No space left on device)");
  const auto first = Keys(1, 8);
  ASSERT_TRUE(worker.Put(first).ok());
  daemon.WaitWritten();
  ASSERT_EQ(daemon.Files(1).size(), 8u);
  EXPECT_THAT(conditions(), testing::Not(testing::Contains(writes_fail)));
  // Others take the rest of it, and ours is leased.
  FillUp(spare_.path() / "others");
  v1::LookupRequest lease;
  lease.set_namespace_id(worker.namespace_id());
  for (const uint64_t key : first) AddPrefixHash(worker.At(key, 0).prefix_hash(), &lease);
  lease.set_lease_ms(600000);
  ASSERT_EQ(worker.client().Lookup(lease)->leading_run(), 8u);
  for (uint64_t key = 100; key < 164; key += 8) ASSERT_TRUE(worker.Put(Keys(key, 8)).ok());
  daemon.WaitUntil([&] { return daemon.stats().tiers[1].writes_out.Get() == 1; },
                   "the tier takes no writes");
  EXPECT_THAT(conditions(), testing::Contains(writes_fail));
  EXPECT_EQ(worker.client().GetStatus()->tiers(1).state(), v1::TIER_STATE_DEGRADED);
  EXPECT_EQ(log_.Count("a tier whose writes fail takes no more of them: tier=pfs"), 1u);
  EXPECT_GT(daemon.stats().tiers[1].failed_writes.Get(), 0u);
  EXPECT_EQ(daemon.stats().chunks_lost.Get(), 0u);
  EXPECT_EQ(daemon.Files(0).size(), 72u);
  EXPECT_GT(daemon.stats().tiers[1].evictions_stuck.Get(), 0u);
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
  EXPECT_THAT(conditions(), testing::Not(testing::Contains(writes_fail)));
  daemon.WaitWritten();
  const size_t files = daemon.Files(1).size();
  ASSERT_TRUE(worker.Put(Keys(1000, 2)).ok());
  daemon.WaitWritten();
  EXPECT_EQ(daemon.Files(1).size(), files + 2);
  for (const auto& entry : fs::recursive_directory_iterator(spare_.path())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp-")) << entry.path();
  }
}

}  // namespace
}  // namespace kvstream
