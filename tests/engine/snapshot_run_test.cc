#include "server/engine/snapshot_run.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "server/base/clock.h"
#include "server/store/index_snapshot.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::engine {
namespace {

namespace fs = std::filesystem;

constexpr char kPath[] = "v1/index/a.kvindex";

class SnapshotRunTest : public testing::Test {
 protected:
  SnapshotRunTest() { fs::create_directory(root_ / "v1"); }

  std::shared_ptr<SnapshotRun> Begin() {
    auto run = std::make_shared<SnapshotRun>(
        UniqueFd(open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)), kPath);
    std::thread([run] { run->Run(); }).detach();
    return run;
  }
  static void Finish(SnapshotRun& run) {
    run.Finish(std::string(store::kSnapshotHeaderBytes, 'h'));
    EXPECT_TRUE(run.WaitEnded(Now() + 60 * kSecond));
  }
  std::string Written() const {
    std::ifstream in(root_ / kPath, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  size_t Names() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(root_ / "v1" / "index"), fs::directory_iterator()));
  }

  tier::TemporaryFolder folder_;
  const fs::path root_ = folder_.path();
};

TEST_F(SnapshotRunTest, PiecesStandInOrderBehindTheHeader) {
  const auto run = Begin();
  run->Append("one");
  run->Append("");
  run->Append("two");
  Finish(*run);
  EXPECT_TRUE(run->status().ok()) << run->status();
  EXPECT_EQ(Written(), std::string(store::kSnapshotHeaderBytes, 'h') + "onetwo");
  EXPECT_EQ(Names(), 1u);
}

// As a stop does it, which does not wait for the one that it cancels.
TEST_F(SnapshotRunTest, OneThatIsCancelledIsNotInTheWayOfTheNext) {
  for (int round = 0; round < 50; ++round) {
    const auto old = Begin();
    old->Append("old");
    const auto next = Begin();
    next->Append(std::to_string(round));
    old->Cancel();
    Finish(*next);
    EXPECT_TRUE(next->status().ok()) << next->status();
    EXPECT_TRUE(old->WaitEnded(Now() + 60 * kSecond));
    EXPECT_TRUE(absl::IsCancelled(old->status()));
    EXPECT_EQ(Written(), std::string(store::kSnapshotHeaderBytes, 'h') + std::to_string(round));
    EXPECT_EQ(Names(), 1u);
  }
}

TEST_F(SnapshotRunTest, WhatCannotBeWrittenLeavesNothing) {
  fs::remove(root_ / "v1");
  const auto run = Begin();
  run->Append("one");
  run->Cancel();
  EXPECT_TRUE(run->WaitEnded(Now() + 60 * kSecond));
  EXPECT_TRUE(absl::IsNotFound(run->status())) << run->status();
}

}  // namespace
}  // namespace kvstream::engine
