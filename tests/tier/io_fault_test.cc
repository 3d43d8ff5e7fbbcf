// What a kernel may answer: short results, errors that pass, errors that do not. A queue between
// the kernel and the tier says so in its stead.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/clock.h"
#include "server/tier/file_tier.h"
#include "tests/support/faulty_queue.h"
#include "tests/support/log_recorder.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::tier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Kind = Operation::Kind;

class IoFaultTest : public testing::TestWithParam<IoEngine> {
 protected:
  static constexpr uint64_t kPayload = 64 * kBlockBytes;

  // `answer` gets each result of an operation of `kind`, counted from 0, and may change it.
  void Open(Kind kind, std::function<int32_t(int nth, const Operation&, int32_t result)> answer) {
    TierOptions options;
    options.name = "test";
    options.root = folder_.path();
    options.io_bytes = 8 * kBlockBytes;
    options.io_engine = GetParam();
    options.fsync = kind == Kind::kFsync;
    const test::FaultyQueue::Answer ours = [this, kind, answer = std::move(answer)](
                                               const Operation& operation, int32_t result) {
      if (operation.kind != kind) return result;
      std::lock_guard lock(mu_);
      return answer(seen_++, operation, result);
    };
    auto tier = FileTier::Open(options, {}, &recorder_, test::FaultyQueue::Wrapper(nullptr, ours));
    ASSERT_TRUE(tier.ok()) << tier.status();
    tier_ = *std::move(tier);
  }

  Completion Write() {
    tier_->Write({.ticket = {},
                  .path = &path_,
                  .header = file_.Part(0, kBlockBytes),
                  .pieces = {file_.Part(kBlockBytes, kPayload)}});
    recorder_.Await(++awaited_);
    return recorder_.completions().back();
  }
  Completion Read() {
    const ReadRequest read{{}, &path_, 0, copy_.size(), copy_.data()};
    tier_->Read({&read, 1});
    recorder_.Await(++awaited_);
    return recorder_.completions().back();
  }
  int seen() {
    std::lock_guard lock(mu_);
    return seen_;
  }

  void TearDown() override { EXPECT_TRUE(tier_->Stop(Now() + 60 * kSecond)); }

  test::LogRecorder log_;  // Before the threads that log.
  TemporaryFolder folder_;
  Recorder recorder_;
  std::string path_ = "v1/aa/bb/cc/file.kv";
  const Blocks file_ = Blocks::Pattern(kBlockBytes + kPayload, 4);
  const Blocks copy_{kBlockBytes + kPayload};
  size_t awaited_ = 0;
  std::mutex mu_;
  int seen_ = 0;
  std::atomic<bool> short_of_descriptors_{false};
  std::unique_ptr<Tier> tier_;
};

TEST_P(IoFaultTest, ShortReadGoesOnWhereItStopped) {
  // Not even whole blocks come, which direct I/O could not go on from.
  Open(Kind::kRead, [](int, const Operation& operation, int32_t result) {
    return operation.length > kBlockBytes ? static_cast<int32_t>(kBlockBytes) + 100 : result;
  });
  ASSERT_EQ(Write().code, absl::StatusCode::kOk);
  ASSERT_EQ(Read().code, absl::StatusCode::kOk);
  EXPECT_EQ(copy_.Copy(), file_.Copy());
  EXPECT_GT(tier_->stats().short_reads_resumed.Get(), 0u);
  EXPECT_EQ(tier_->stats().bytes_read.Get(), file_.size());
}

TEST_P(IoFaultTest, EarlyEndOfFileIsDataLoss) {
  Open(Kind::kRead,
       [](int nth, const Operation&, int32_t result) { return nth == 3 ? 0 : result; });
  ASSERT_EQ(Write().code, absl::StatusCode::kOk);
  EXPECT_EQ(Read().code, absl::StatusCode::kDataLoss);
  EXPECT_EQ(tier_->stats().read_errors.Get(), 1u);
  EXPECT_EQ(Read().code, absl::StatusCode::kOk);
}

TEST_P(IoFaultTest, ErrorsThatPassAreTriedAgain) {
  Open(Kind::kRead, [](int nth, const Operation&, int32_t result) {
    return nth == 0 ? -EAGAIN : nth == 1 ? -EINTR : nth == 2 ? -EBUSY : result;
  });
  ASSERT_EQ(Write().code, absl::StatusCode::kOk);
  ASSERT_EQ(Read().code, absl::StatusCode::kOk);
  EXPECT_EQ(copy_.Copy(), file_.Copy());
  EXPECT_EQ(tier_->stats().retries.Get(), 3u);
}

TEST_P(IoFaultTest, TryingAgainEnds) {
  Open(Kind::kOpen, [](int, const Operation& operation, int32_t result) {
    if ((operation.open_flags & O_CREAT) != 0) return result;
    if (result >= 0) close(result);
    return -EAGAIN;
  });
  ASSERT_EQ(Write().code, absl::StatusCode::kOk);
  const Completion completion = Read();
  EXPECT_EQ(completion.code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(completion.error, EAGAIN);
  EXPECT_EQ(tier_->stats().retries.Get(), IoLoop::kRetriesMax);
}

TEST_P(IoFaultTest, OpenWithoutADescriptorTakesThePlaceOfAnIdleOne) {
  Open(Kind::kOpen, [this](int, const Operation& operation, int32_t result) {
    if ((operation.open_flags & O_CREAT) != 0 || !short_of_descriptors_.exchange(false)) {
      return result;
    }
    if (result >= 0) close(result);
    return -EMFILE;
  });
  ASSERT_EQ(Write().code, absl::StatusCode::kOk);
  // Nothing is idle.
  short_of_descriptors_ = true;
  EXPECT_EQ(Read().code, absl::StatusCode::kResourceExhausted);
  ASSERT_EQ(Read().code, absl::StatusCode::kOk);
  path_ = "v1/aa/bb/cc/other.kv";
  ASSERT_EQ(Write().code, absl::StatusCode::kOk);
  short_of_descriptors_ = true;
  EXPECT_EQ(Read().code, absl::StatusCode::kOk);
  EXPECT_EQ(copy_.Copy(), file_.Copy());
  EXPECT_EQ(tier_->stats().descriptor_shortages.Get(), 2u);
  EXPECT_EQ(log_.Count("the limit of open files is met, raise LimitNOFILE: tier=test"), 1u);
  EXPECT_EQ(tier_->stats().open_files.Get(), 1u);
}

TEST_P(IoFaultTest, AWriteWithoutADescriptorFailsAndSaysSoOnce) {
  Open(Kind::kOpen, [](int, const Operation&, int32_t result) {
    if (result >= 0) close(result);
    return -EMFILE;
  });
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Write().code, absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(tier_->stats().descriptor_shortages.Get(), 3u);
  EXPECT_EQ(log_.Count("the limit of open files is met, raise LimitNOFILE: tier=test"), 1u);
}

TEST_P(IoFaultTest, ATemporaryThatCannotBeRemovedIsCountedAndTheWriteStands) {
  Open(Kind::kUnlink, [](int, const Operation&, int32_t) { return -EIO; });
  ASSERT_EQ(Write().code, absl::StatusCode::kOk);
  path_ = "v1/aa/bb/cc/other.kv";
  ASSERT_EQ(Write().code, absl::StatusCode::kOk);
  EXPECT_EQ(tier_->stats().temporaries_left.Get(), 2u);
  EXPECT_EQ(log_.Count("temporary files are left behind: tier=test"), 1u);
  EXPECT_EQ(Read().code, absl::StatusCode::kOk);
}

TEST_P(IoFaultTest, FailedReadCompletesAfterItsLastPiece) {
  Open(Kind::kRead, [](int nth, const Operation&, int32_t result) {
    // All nine pieces were in flight when the first failed.
    return nth == 0 || nth == 5 ? -EIO : result;
  });
  ASSERT_EQ(Write().code, absl::StatusCode::kOk);
  const Completion completion = Read();
  EXPECT_EQ(completion.code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(completion.error, EIO);
  EXPECT_EQ(seen(), 9);
  EXPECT_EQ(recorder_.count(), 2u);
  EXPECT_EQ(tier_->stats().read_errors.Get(), 1u);
  // Its descriptor was dropped, and the next read opens the file again.
  EXPECT_EQ(tier_->stats().open_files.Get(), 0u);
  EXPECT_EQ(Read().code, absl::StatusCode::kOk);
  EXPECT_EQ(copy_.Copy(), file_.Copy());
}

TEST_P(IoFaultTest, StaleHandleIsReopenedOnce) {
  Open(Kind::kRead,
       [](int nth, const Operation&, int32_t result) { return nth == 4 ? -ESTALE : result; });
  ASSERT_EQ(Write().code, absl::StatusCode::kOk);
  ASSERT_EQ(Read().code, absl::StatusCode::kOk);
  EXPECT_EQ(copy_.Copy(), file_.Copy());
  EXPECT_EQ(seen(), 18);
}

TEST_P(IoFaultTest, StaleHandleThatStaysIsNotFound) {
  Open(Kind::kRead, [](int, const Operation&, int32_t) { return -ESTALE; });
  ASSERT_EQ(Write().code, absl::StatusCode::kOk);
  const Completion completion = Read();
  EXPECT_EQ(completion.code, absl::StatusCode::kNotFound);
  EXPECT_EQ(completion.error, ESTALE);
  EXPECT_EQ(tier_->stats().read_errors.Get(), 0u);
}

TEST_P(IoFaultTest, ShortWriteGoesOnWhereItStopped) {
  Open(Kind::kWrite, [](int, const Operation& operation, int32_t result) {
    return operation.length > 2 * kBlockBytes ? static_cast<int32_t>(kBlockBytes) + 1 : result;
  });
  ASSERT_EQ(Write().code, absl::StatusCode::kOk);
  ASSERT_EQ(Read().code, absl::StatusCode::kOk);
  EXPECT_EQ(copy_.Copy(), file_.Copy());
}

TEST_P(IoFaultTest, FullDeviceLeavesNothingBehind) {
  Open(Kind::kWrite,
       [](int nth, const Operation&, int32_t result) { return nth == 4 ? -ENOSPC : result; });
  const Completion completion = Write();
  EXPECT_EQ(completion.code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(completion.error, ENOSPC);
  EXPECT_THAT(folder_.Files(), IsEmpty());
  EXPECT_EQ(tier_->stats().write_errors.Get(), 1u);
  EXPECT_EQ(Write().code, absl::StatusCode::kOk);
}

TEST_P(IoFaultTest, FailedFsyncIsAFailedWrite) {
  Open(Kind::kFsync,
       [](int nth, const Operation&, int32_t result) { return nth == 0 ? -EIO : result; });
  EXPECT_EQ(Write().error, EIO);
  EXPECT_THAT(folder_.Files(), IsEmpty());
  // What was not flushed may be lost whatever a second one says.
  EXPECT_EQ(seen(), 1);
  EXPECT_EQ(Write().code, absl::StatusCode::kOk);
  EXPECT_EQ(seen(), 2);
  EXPECT_THAT(folder_.Files(), ElementsAre(path_));
}

TEST_P(IoFaultTest, FailedCloseIsAFailedWrite) {
  Open(Kind::kClose,
       [](int nth, const Operation&, int32_t result) { return nth == 0 ? -EIO : result; });
  EXPECT_EQ(Write().error, EIO);
  EXPECT_THAT(folder_.Files(), IsEmpty());
}

TEST_P(IoFaultTest, FailedLinkLeavesNothingBehind) {
  Open(Kind::kLink, [this](int, const Operation&, int32_t) {
    std::filesystem::remove(folder_.path() + "/" + path_);
    return -EMLINK;
  });
  EXPECT_EQ(Write().error, EMLINK);
  EXPECT_THAT(folder_.Files(), IsEmpty());
}

TEST_P(IoFaultTest, ExistingFileThatCannotBeReadIsStillAnAnswer) {
  Open(Kind::kRead, [](int, const Operation&, int32_t) { return -EIO; });
  ASSERT_EQ(Write().code, absl::StatusCode::kOk);
  const Completion completion = Write();
  EXPECT_EQ(completion.code, absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(completion.existing_header, IsEmpty());
  EXPECT_EQ(completion.existing_bytes, file_.size());
  EXPECT_THAT(folder_.Files(), ElementsAre(path_));
}

INSTANTIATE_TEST_SUITE_P(Engines, IoFaultTest,
                         testing::Values(IoEngine::kUring, IoEngine::kThreads),
                         [](const auto& test) {
                           return test.param == IoEngine::kUring ? "Uring" : "Threads";
                         });

}  // namespace
}  // namespace kvstream::tier
