#include "server/tier/probe.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <string>

#include "server/base/unique_fd.h"
#include "tests/support/faulty_queue.h"
#include "tests/support/log_recorder.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::tier {
namespace {

using Kind = Operation::Kind;
using testing::HasSubstr;

class ProbeTest : public testing::TestWithParam<IoEngine> {
 protected:
  ProbeTest() { EXPECT_EQ(mkdir((folder_.path() + "/v1").c_str(), 0700), 0); }

  absl::StatusOr<ProbeResult> Run(const test::FaultyQueue::Answer& answer) {
    TierOptions options;
    options.name = "test";
    options.root = folder_.path();
    const UniqueFd root(open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    auto result = Probe(options, GetParam(), root.get(), &refused_,
                        test::FaultyQueue::Wrapper(nullptr, answer));
    EXPECT_TRUE(refused_.ok()) << refused_;
    EXPECT_THAT(folder_.Files(), testing::IsEmpty());
    return result;
  }

  test::LogRecorder log_;
  TemporaryFolder folder_;
  absl::Status refused_;
};

TEST_P(ProbeTest, DirectIoRefusedByTheFirstWriteIsBufferedAndSaid) {
  std::atomic<bool> refuses{true};
  const auto result = Run([&](const Operation& operation, int32_t answer) {
    if (operation.kind == Kind::kOpen) refuses = (operation.open_flags & O_DIRECT) != 0;
    return operation.kind == Kind::kWrite && refuses ? -EINVAL : answer;
  });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->direct);
  EXPECT_THAT(result->buffered_reason, HasSubstr("O_DIRECT refused: EINVAL"));
  EXPECT_EQ(log_.Count("using buffered I/O"), 1u);
}

TEST_P(ProbeTest, OtherBytesThanWereWrittenAreDataLoss) {
  const auto result = Run([](const Operation& operation, int32_t answer) {
    if (operation.kind == Kind::kRead && answer > 0) operation.data[answer / 2] ^= std::byte{1};
    return answer;
  });
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(folder_.path()));
}

TEST_P(ProbeTest, WhateverFailsIsTheErrorWithItsPlace) {
  for (const Kind kind : {Kind::kWrite, Kind::kClose, Kind::kLink, Kind::kRead}) {
    const auto result = Run([kind](const Operation& operation, int32_t answer) {
      return operation.kind == kind ? -EIO : answer;
    });
    EXPECT_FALSE(result.ok()) << static_cast<int>(kind);
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(folder_.path()));
    EXPECT_EQ(log_.Count("using buffered I/O"), 0u);
  }
}

// It refuses the open.
TEST_P(ProbeTest, AFileSystemWithoutDirectIoIsBufferedAndSaid) {
  if (mount("ramfs", folder_.path().c_str(), "ramfs", MS_NOSUID | MS_NODEV, nullptr) != 0) {
    GTEST_SKIP() << "mounting a ramfs needs root";
  }
  EXPECT_EQ(mkdir((folder_.path() + "/v1").c_str(), 0700), 0);
  const auto result = Run([](const Operation&, int32_t answer) { return answer; });
  EXPECT_EQ(umount(folder_.path().c_str()), 0);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->direct);
  EXPECT_FALSE(result->buffered_reason.empty());
  EXPECT_EQ(log_.Count("using buffered I/O"), 1u);
}

INSTANTIATE_TEST_SUITE_P(Engines, ProbeTest, testing::Values(IoEngine::kUring, IoEngine::kThreads));

}  // namespace
}  // namespace kvstream::tier
