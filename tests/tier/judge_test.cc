#include "server/tier/judge.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "tests/tier/tier_harness.h"

namespace kvstream::tier {
namespace {

constexpr char kName[] = "file";

class JudgeTest : public testing::Test {
 protected:
  JudgeTest() {
    const UniqueFd fd(openat(root_.get(), kName, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(write(fd.get(), blocks_.data(), blocks_.size()),
              static_cast<ssize_t>(blocks_.size()));
    EXPECT_EQ(fsync(fd.get()), 0);
  }

  // Whether the page cache has the beginning of the file.
  bool Cached() {
    const UniqueFd fd(openat(root_.get(), kName, O_RDONLY | O_CLOEXEC));
    void* const map = mmap(nullptr, kBlockBytes, PROT_READ, MAP_SHARED, fd.get(), 0);
    EXPECT_NE(map, MAP_FAILED);
    unsigned char resident = 0;
    EXPECT_EQ(mincore(map, kBlockBytes, &resident), 0);
    munmap(map, kBlockBytes);
    return (resident & 1) != 0;
  }

  const TemporaryFolder folder_;
  const UniqueFd root_{open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  const Blocks blocks_ = Blocks::Pattern(4 * kBlockBytes, 7);
};

TEST_F(JudgeTest, WhatTheCacheHasIsDroppedBeforeABufferedRead) {
  if (!Cached()) GTEST_SKIP() << "SKIPPED: this file system caches nothing";
  {
    const UniqueFd fd(openat(root_.get(), kName, O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    if (Cached()) GTEST_SKIP() << "SKIPPED: this file system is its own cache";
    const Blocks copy(kBlockBytes);
    ASSERT_EQ(pread(fd.get(), copy.data(), kBlockBytes, 0), static_cast<ssize_t>(kBlockBytes));
  }
  ASSERT_TRUE(Cached());
  const UniqueFd fd = OpenToJudge(root_.get(), kName, /*direct=*/false);
  ASSERT_TRUE(fd.valid());
  EXPECT_FALSE(Cached());
}

TEST_F(JudgeTest, DirectMeansDirect) {
  const UniqueFd fd = OpenToJudge(root_.get(), kName, /*direct=*/true);
  if (!fd.valid() && errno == EINVAL) GTEST_SKIP() << "SKIPPED: no direct I/O on this file system";
  EXPECT_NE(fcntl(fd.get(), F_GETFL) & O_DIRECT, 0);
}

TEST_F(JudgeTest, ALinkIsNotFollowed) {
  std::filesystem::create_symlink(kName, folder_.path() + "/link");
  EXPECT_FALSE(OpenToJudge(root_.get(), "link", false).valid());
  EXPECT_EQ(errno, ELOOP);
}

}  // namespace
}  // namespace kvstream::tier
