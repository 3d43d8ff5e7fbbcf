// What a queue may say that the loop has not asked for.
#include "server/tier/io_loop.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <latch>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/clock.h"
#include "server/base/unique_fd.h"
#include "tests/support/log_recorder.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::tier {
namespace {

// Answers each number twice, the second time with an error, and one that was never given.
class RepeatingQueue final : public IoQueue {
 public:
  explicit RepeatingQueue(std::unique_ptr<IoQueue> inner) : inner_(std::move(inner)) {}

  bool Queue(const Operation& operation, uint64_t user_data) override {
    return inner_->Queue(operation, user_data);
  }
  bool QueueDelay(uint64_t user_data) override { return inner_->QueueDelay(user_data); }
  void Submit(bool wait) override { inner_->Submit(wait); }
  size_t Take(std::span<Event> events) override {
    if (!left_over_.empty()) {
      events[0] = left_over_.front();
      left_over_.pop_front();
      return 1;
    }
    const size_t n = inner_->Take(events.first(1));
    if (n == 0) return 0;
    left_over_.push_back({events[0].user_data, -EIO});
    left_over_.push_back({kNeverGiven, -EIO});
    return n;
  }
  void Wake() override { inner_->Wake(); }

 private:
  // Of the first place in the table, and more uses of it than there are.
  static constexpr uint64_t kNeverGiven = uint64_t{1} << 62;

  const std::unique_ptr<IoQueue> inner_;
  std::deque<Event> left_over_;
};

// Reads the blocks of a file, a few at a time; each goes on where another has ended, so that the
// left-over of the one meets the other at its place in the table.
class BlockReader final : public IoLoop::User {
 public:
  BlockReader(int fd, const Blocks& into) : fd_(fd), into_(into) {
    results_.resize(into.size() / kBlockBytes);
    ends_.resize(results_.size());
  }

  void Start(IoLoop* loop) {
    loop_.store(loop);
    loop->Wake();
  }
  void Wait() { done_.wait(); }
  const std::vector<int32_t>& results() const { return results_; }
  const std::vector<int>& ends() const { return ends_; }

  void Advance() override {
    if (loop_.load() == nullptr || next_ > 0) return;
    for (int i = 0; i < 4; ++i) ReadNext();
  }

 private:
  void ReadNext() {
    if (next_ == results_.size()) return;
    const size_t block = next_++;
    Operation read;
    read.kind = Operation::Kind::kRead;
    read.fd = fd_;
    read.data = into_.data() + block * kBlockBytes;
    read.offset = block * kBlockBytes;
    read.length = kBlockBytes;
    loop_.load()->Submit(read, [this, block](int32_t result) {
      results_[block] = result;
      ends_[block] += 1;
      ended_ += 1;
      ReadNext();
      if (ended_ == results_.size()) done_.count_down();
    });
  }

  const int fd_;
  const Blocks& into_;
  std::atomic<IoLoop*> loop_{nullptr};
  size_t next_ = 0;
  size_t ended_ = 0;
  std::vector<int32_t> results_;
  std::vector<int> ends_;
  std::latch done_{1};
};

class IoLoopTest : public testing::TestWithParam<IoEngine> {};

TEST_P(IoLoopTest, LeftOverCompletionsAreCountedAndMeanNothing) {
  const test::LogRecorder log;
  const TemporaryFolder folder;
  const Blocks file = Blocks::Pattern(200 * kBlockBytes, 3);
  const Blocks copy(file.size());
  const UniqueFd fd(open((folder.path() + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(pwrite(fd.get(), file.data(), file.size(), 0), static_cast<ssize_t>(file.size()));
  TierStats stats;
  BlockReader reader(fd.get(), copy);
  IoLoop loop(&reader, &stats);
  const absl::Status started =
      loop.Start({.thread_name = "test",
                  .engine = GetParam(),
                  .entries = 8,
                  .threads = 2,
                  .wrap = [](std::unique_ptr<IoQueue> queue) -> std::unique_ptr<IoQueue> {
                    return std::make_unique<RepeatingQueue>(std::move(queue));
                  }});
  ASSERT_TRUE(started.ok()) << started;
  reader.Start(&loop);
  reader.Wait();
  ASSERT_TRUE(loop.Join(Now() + 60 * kSecond));
  EXPECT_EQ(reader.results(), std::vector<int32_t>(200, kBlockBytes));
  EXPECT_EQ(reader.ends(), std::vector<int>(200, 1));
  EXPECT_EQ(copy.Copy(), file.Copy());
  EXPECT_EQ(stats.unknown_completions.Get(), 2u * 200);
  EXPECT_EQ(log.Count("a completion that nobody waits for, a bug: thread=test"), 1u);
}

INSTANTIATE_TEST_SUITE_P(Engines, IoLoopTest, testing::Values(IoEngine::kUring, IoEngine::kThreads),
                         [](const auto& test) {
                           return test.param == IoEngine::kUring ? "Uring" : "Threads";
                         });

}  // namespace
}  // namespace kvstream::tier
