#include "server/tier/recheck.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

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
    const UniqueFd fd(open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return Recheck(fd, root_.string(), /*direct=*/false);
  }
  size_t Files() const {
    size_t files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
      files += entry.is_regular_file() ? 1 : 0;
    }
    return files;
  }

  std::filesystem::path root_;
};

TEST_F(RecheckTest, GoesWellInAnEmptiedRootAndLeavesNothing) {
  EXPECT_TRUE(Run().ok()) << Run();
  std::filesystem::remove_all(root_ / "v1");
  EXPECT_TRUE(Run().ok());
  EXPECT_EQ(Files(), 0u);
}

TEST_F(RecheckTest, ARootThatIsGoneIsNamed) {
  const UniqueFd fd(open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::filesystem::remove_all(root_);
  const absl::Status status = Recheck(fd, root_.string(), false);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(root_.string()), std::string::npos) << status;
}

// A block would find room there, and a chunk would not.
TEST_F(RecheckTest, AFileSystemWithoutRoomForAChunkFails) {
  if (mount("tmpfs", root_.c_str(), "tmpfs", 0, "size=4m") != 0) {
    GTEST_SKIP() << "mounting a tmpfs needs root";
  }
  EXPECT_FALSE(Run().ok());
  EXPECT_EQ(Files(), 0u);
  ASSERT_EQ(umount(root_.c_str()), 0);
}

}  // namespace
}  // namespace kvstream::tier
