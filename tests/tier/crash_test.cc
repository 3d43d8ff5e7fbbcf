// A process that ends in the middle of a write. The child of each fork ends at its n-th result, for
// every n until it gets through; only children start threads.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "server/base/clock.h"
#include "server/base/unique_fd.h"
#include "server/tier/file_tier.h"
#include "tests/support/faulty_queue.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::tier {
namespace {

// Exit codes of children.
constexpr int kKilled = 40;
constexpr int kThrough = 41;
constexpr int kExists = 42;
constexpr int kFailed = 43;

class CrashTest : public testing::TestWithParam<std::pair<IoEngine, bool>> {
 protected:
  // What became of a child that writes the file, and is killed at its n-th result; -1: it is not.
  int Write(int killed_at) {
    const pid_t child = fork();
    if (child == 0) _exit(WriteInChild(killed_at));
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << status;
    return WEXITSTATUS(status);
  }

  // The whole file is under its name, or nothing is.
  bool IsThere() const {
    const UniqueFd fd(open((folder_.path() + "/" + path_).c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return false;
    const Blocks copy(file_.size() + kBlockBytes);
    EXPECT_EQ(pread(fd.get(), copy.data(), copy.size(), 0), static_cast<ssize_t>(file_.size()));
    EXPECT_EQ(std::memcmp(copy.data(), file_.data(), file_.size()), 0);
    return true;
  }
  void RemoveAll() const {
    for (const std::string& file : folder_.Files()) {
      std::filesystem::remove(folder_.path() + "/" + file);
    }
  }

  const TemporaryFolder folder_;
  const std::string path_ = "v1/aa/bb/cc/file.kv";

 private:
  int WriteInChild(int killed_at) {
    TierOptions options;
    options.name = "test";
    options.root = folder_.path();
    options.io_bytes = 2 * kBlockBytes;
    options.io_engine = GetParam().first;
    options.fsync = GetParam().second;
    std::atomic<int> results{0};
    const auto answer = [&results, killed_at](const Operation&, int32_t result) {
      if (results++ == killed_at) _exit(kKilled);
      return result;
    };
    Recorder recorder;
    auto tier = FileTier::Open(options, {}, &recorder, test::FaultyQueue::Wrapper(nullptr, answer));
    if (!tier.ok()) return kFailed;
    (*tier)->Write({.ticket = Ticket{1},
                    .path = &path_,
                    .header = file_.Part(0, kBlockBytes),
                    .pieces = {file_.Part(kBlockBytes, file_.size() - kBlockBytes)}});
    recorder.Await(1);
    const absl::StatusCode code = recorder.completions()[0].code;
    if (!(*tier)->Stop(Now() + 60 * kSecond)) return kFailed;
    return code == absl::StatusCode::kOk              ? kThrough
           : code == absl::StatusCode::kAlreadyExists ? kExists
                                                      : kFailed;
  }

  const Blocks file_ = Blocks::Pattern(9 * kBlockBytes, 4);
};

TEST_P(CrashTest, AWriterKilledAtAnyStepLeavesAWholeFileOrNone) {
  // With the folders there already, and without: that is one step more.
  for (const bool folders : {false, true}) {
    std::set<bool> left;
    int ended = kKilled;
    int steps = 0;
    for (; ended == kKilled && steps < 100; ++steps) {
      RemoveAll();
      if (!folders) std::filesystem::remove_all(folder_.path() + "/v1/aa");
      ended = Write(steps);
      const bool there = IsThere();
      left.insert(there);
      // The next process publishes the name, whatever the first has left.
      if (ended == kKilled) {
        EXPECT_EQ(Write(-1), there ? kExists : kThrough) << steps;
      }
      EXPECT_TRUE(IsThere()) << steps;
    }
    EXPECT_EQ(ended, kThrough);
    EXPECT_GE(steps, 9);  // An open, five transfers, a close, a link and an unlink.
    EXPECT_EQ(left, (std::set<bool>{false, true}));
  }
}

TEST_P(CrashTest, AWriterKilledWhereTheFileExistsLeavesItAlone) {
  ASSERT_EQ(Write(-1), kThrough);
  int ended = kKilled;
  for (int steps = 0; ended == kKilled && steps < 100; ++steps) {
    ended = Write(steps);
    EXPECT_TRUE(IsThere()) << steps;
  }
  EXPECT_EQ(ended, kExists);
}

INSTANTIATE_TEST_SUITE_P(
    Engines, CrashTest,
    testing::Values(std::pair(IoEngine::kUring, false), std::pair(IoEngine::kUring, true),
                    std::pair(IoEngine::kThreads, false), std::pair(IoEngine::kThreads, true)),
    [](const auto& test) {
      return std::string(test.param.first == IoEngine::kUring ? "Uring" : "Threads") +
             (test.param.second ? "WithFsync" : "");
    });

}  // namespace
}  // namespace kvstream::tier
