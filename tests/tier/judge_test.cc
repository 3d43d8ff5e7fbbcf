#include "server/tier/judge.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>

#include "server/base/clock.h"
#include "tests/support/log_recorder.h"
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

// A tier that sets one file aside, which is not one of a chunk.
class SetAsideTest : public testing::Test {
 protected:
  SetAsideTest() {
    auto opened = OpenFileTier({.id = TierId{0},
                                .name = "t",
                                .root = folder_.path(),
                                .io_engine = IoEngine::kThreads,
                                .io_threads = 1},
                               {}, &recorder_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    tier_ = *std::move(opened);
    std::ofstream(file_) << "old, and damaged";
  }
  ~SetAsideTest() override { EXPECT_TRUE(tier_->Stop(Now() + 60 * kSecond)); }

  Completion SetAside(absl::AnyInvocable<absl::StatusOr<bool>(int)> damaged,
                      absl::AnyInvocable<int()> replace) {
    tier_->SetAside({Ticket{++asked_}, &path_, std::move(damaged), std::move(replace)});
    recorder_.Await(asked_);
    return recorder_.completions().back();
  }
  std::string Content() const {
    std::string content;
    std::getline(std::ifstream(file_) >> std::ws, content);
    return content;
  }

  const TemporaryFolder folder_;
  const std::string path_ = "v1/file";
  const std::string file_ = folder_.path() + "/" + path_;
  Recorder recorder_;
  std::unique_ptr<Tier> tier_;
  uint64_t asked_ = 0;
};

TEST_F(SetAsideTest, AFileIsJudgedAsItsTierReadsIt) {
  std::atomic<int> flags{0};
  (void)SetAside(
      [&](int fd) {
        flags = fcntl(fd, F_GETFL);
        return false;
      },
      nullptr);
  EXPECT_EQ((flags & O_DIRECT) != 0, tier_->facts().direct);
}

TEST_F(SetAsideTest, AnotherFileHasTheNameBeforeTheDamagedOneIsGone) {
  const auto damaged = [](int) { return true; };
  const auto replace = [this] {
    EXPECT_FALSE(std::filesystem::exists(file_));
    EXPECT_EQ(folder_.Files().size(), asked_ < 3 ? 1u : 0u);
    std::ofstream(file_) << "new";
    return 0;
  };
  EXPECT_EQ(SetAside(damaged, [] { return ENOSPC; }).error, ENOSPC);
  EXPECT_EQ(Content(), "old, and damaged");
  EXPECT_EQ(SetAside(damaged, replace).code, absl::StatusCode::kOk);
  EXPECT_EQ(Content(), "new");
  std::filesystem::remove(file_);
  EXPECT_EQ(SetAside(damaged, replace).code, absl::StatusCode::kOk);  // There was none.
  EXPECT_EQ(Content(), "new");
  EXPECT_EQ(SetAside(damaged, [] { return EEXIST; }).code, absl::StatusCode::kOk);
  EXPECT_FALSE(std::filesystem::exists(file_));
}

TEST_F(SetAsideTest, AFileThatCannotBePutBackIsCountedAndNamed) {
  const test::LogRecorder log;
  // A folder has taken the name that it had aside.
  const auto sound = [this](int fd) {
    const std::string aside = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd));
    std::filesystem::remove(aside);
    std::filesystem::create_directory(aside);
    return false;
  };
  EXPECT_EQ(SetAside(sound, nullptr).error, EPERM);
  EXPECT_EQ(tier_->stats().temporaries_left.Get(), 1u);
  EXPECT_EQ(log.Count("temporary files are left behind: tier=t"), 1u);
}

TEST_F(SetAsideTest, ASoundFileIsNotReplaced) {
  EXPECT_EQ(SetAside([](int) { return false; },
                     [] {
                       ADD_FAILURE() << "its name is not free";
                       return 0;
                     })
                .code,
            absl::StatusCode::kOk);
  EXPECT_EQ(Content(), "old, and damaged");
}

}  // namespace
}  // namespace kvstream::tier
