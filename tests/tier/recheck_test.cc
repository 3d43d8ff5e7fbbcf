#include "server/tier/recheck.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "server/tier/mount.h"

namespace kvstream::tier {
namespace {

class RecheckTest : public testing::Test {
 protected:
  RecheckTest() {
    std::string name =
        (std::filesystem::temp_directory_path() / "kvstream-recheck-XXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~RecheckTest() override { std::filesystem::remove_all(root_); }

  absl::Status Run() {
    const UniqueFd fd = OpenRoot();
    return Try(fd);
  }
  absl::Status Try(const UniqueFd& fd) {
    TierOptions options;
    options.root = root_;
    options.mount_point = root_;
    options.follows_mount = follows_mount_;
    return Recheck(fd, options, /*direct=*/false, &renewed_);
  }
  UniqueFd OpenRoot() const {
    return UniqueFd(open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  dev_t Device() const {
    struct stat root {};
    EXPECT_EQ(stat(root_.c_str(), &root), 0);
    return root.st_dev;
  }
  bool Mount(const char* options) {
    return mount("tmpfs", root_.c_str(), "tmpfs", 0, options) == 0;
  }
  size_t Files() const {
    size_t files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
      files += entry.is_regular_file() ? 1 : 0;
    }
    return files;
  }

  std::filesystem::path root_;
  bool follows_mount_ = false;
  UniqueFd renewed_;
};

TEST_F(RecheckTest, GoesWellInAnEmptiedRootAndLeavesNothing) {
  EXPECT_TRUE(Run().ok()) << Run();
  std::filesystem::remove_all(root_ / "v1");
  EXPECT_TRUE(Run().ok());
  EXPECT_EQ(Files(), 0u);
}

TEST_F(RecheckTest, ARootThatIsGoneIsNamed) {
  const UniqueFd fd = OpenRoot();
  std::filesystem::remove_all(root_);
  const absl::Status status = Try(fd);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(root_.string()), std::string::npos) << status;
}

// A block would find room there, and a chunk would not.
TEST_F(RecheckTest, AFileSystemWithoutRoomForAChunkFails) {
  if (!Mount("size=4m")) GTEST_SKIP() << "mounting a tmpfs needs root";
  EXPECT_FALSE(Run().ok());
  EXPECT_EQ(Files(), 0u);
  ASSERT_EQ(umount(root_.c_str()), 0);
}

TEST_F(RecheckTest, OnlyAMountedFileSystemCountsAsMounted) {
  const dev_t below = Device();
  const absl::Status bare = CheckMounted(root_, below, root_);
  EXPECT_EQ(bare.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(bare.message().find("nothing is mounted at " + root_.string()), std::string::npos);
  EXPECT_EQ(CheckMounted("/nonexistent", below, root_).code(), absl::StatusCode::kNotFound);
  if (!Mount("size=64m")) GTEST_SKIP() << "mounting a tmpfs needs root";
  EXPECT_TRUE(CheckMounted(root_, Device(), root_).ok());
  // What was opened before the mount is beneath it.
  EXPECT_EQ(CheckMounted(root_, below, root_).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(umount(root_.c_str()), 0);
}

// The first has no room for a chunk, which stands for whatever has failed.
TEST_F(RecheckTest, AFileSystemThatIsMountedAnewIsTakenWhereThatIsWanted) {
  if (!Mount("size=4m")) GTEST_SKIP() << "mounting a tmpfs needs root";
  const UniqueFd first = OpenRoot();
  ASSERT_EQ(umount2(root_.c_str(), MNT_DETACH), 0);
  follows_mount_ = true;
  const absl::Status bare = Try(first);
  EXPECT_NE(bare.message().find("nothing is mounted"), std::string::npos) << bare;
  EXPECT_FALSE(renewed_.valid());
  EXPECT_EQ(Files(), 0u);
  ASSERT_TRUE(Mount("size=64m"));
  follows_mount_ = false;
  EXPECT_NE(Try(first).message().find("restart"), std::string::npos) << Try(first);
  EXPECT_FALSE(renewed_.valid());
  follows_mount_ = true;
  EXPECT_TRUE(Try(first).ok()) << Try(first);
  ASSERT_TRUE(renewed_.valid());
  struct stat renewed {};
  ASSERT_EQ(fstat(renewed_.get(), &renewed), 0);
  EXPECT_EQ(renewed.st_dev, Device());
  renewed_.Reset();
  ASSERT_EQ(umount(root_.c_str()), 0);
}

}  // namespace
}  // namespace kvstream::tier
