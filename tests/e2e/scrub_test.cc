// Scrubs of a real daemon: damage that nobody reads is found and repaired, by call and by command.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <thread>

#include "client/admin.h"
#include "server/base/chunk_shape.h"
#include "server/base/clock.h"
#include "server/base/unique_fd.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunks = 24;
constexpr uint64_t kFast = 16 * kGiB;

void FlipBit(const fs::path& file, uint64_t offset) {
  const UniqueFd fd(open(file.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(fd.valid());
  char byte;
  ASSERT_EQ(pread(fd.get(), &byte, 1, static_cast<off_t>(offset)), 1);
  byte = static_cast<char>(byte ^ 0x20);
  ASSERT_EQ(pwrite(fd.get(), &byte, 1, static_cast<off_t>(offset)), 1);
}

// Chunks on two tiers, and a client.
class ScrubTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(worker_.Put(keys_).ok());
    daemon_.WaitWritten();
    ASSERT_EQ(daemon_.Files(0).size(), kChunks);
    ASSERT_EQ(daemon_.Files(1).size(), kChunks);
  }

  // Flips a bit somewhere in so many files of the tier, and returns those files.
  std::vector<fs::path> Flip(size_t tier, size_t files) {
    std::vector<fs::path> flipped = daemon_.Files(tier);
    std::shuffle(flipped.begin(), flipped.end(), random_);
    flipped.resize(files);
    for (const fs::path& file : flipped) {
      // The header's fields, or the payload.
      const uint64_t offset = random_() % 4 == 0
                                  ? random_() % 256
                                  : kHeaderBytes + random_() % worker_.shape().chunk_bytes;
      // Another version is not damage.
      FlipBit(file, offset >= 8 && offset < 12 ? offset + 8 : offset);
    }
    return flipped;
  }

  v1::ScrubProgress Scrub(const std::string& tier) {
    Admin admin(daemon_.socket(), kPatience);
    v1::ScrubProgress last;
    const absl::Status ended = admin.Scrub(tier, kFast, [&](const v1::ScrubProgress& progress) {
      EXPECT_EQ(progress.tier(), tier);
      last = progress;
      return true;
    });
    EXPECT_TRUE(ended.ok()) << ended;
    EXPECT_TRUE(last.done());
    return last;
  }

  void ExpectAllAreReadRight() {
    EXPECT_EQ(worker_.Look(keys_), kChunks);
    EXPECT_EQ(worker_.Get(keys_).leading_valid(), kChunks);
    for (size_t i = 0; i < kChunks; ++i) EXPECT_TRUE(worker_.Holds(keys_[i], i)) << i;
  }

  // Reads all chunks from one tier alone.
  void ExpectTierServesAll(const std::string& other) {
    Admin admin(daemon_.socket(), kPatience);
    ASSERT_EQ(admin.SetTierInService(other, false).value(), v1::TIER_STATE_OUT);
    ExpectAllAreReadRight();
    ASSERT_EQ(admin.SetTierInService(other, true).value(), v1::TIER_STATE_OK);
  }

  TestDaemon daemon_;
  Worker worker_{daemon_.socket()};
  const std::vector<uint64_t> keys_ = Keys(1, kChunks);
  std::mt19937_64 random_{20261130};
};

TEST_F(ScrubTest, WhatIsDamagedOnOneTierIsWholeAgainAndServedFromBoth) {
  const std::vector<fs::path> flipped = Flip(0, 9);
  const v1::ScrubProgress done = Scrub("nvme");
  EXPECT_EQ(done.files(), kChunks);
  EXPECT_EQ(done.damaged(), flipped.size());
  EXPECT_EQ(done.repaired(), flipped.size());
  EXPECT_EQ(daemon_.Files(0).size(), kChunks);
  const engine::TierEngineStats& stats = daemon_.stats().tiers[0];
  EXPECT_EQ(stats.scrub_damaged.Get(), flipped.size());
  EXPECT_EQ(stats.scrub_repaired.Get(), flipped.size());
  EXPECT_EQ(stats.files_set_aside.Get(), flipped.size());
  EXPECT_EQ(stats.scrubbing.Get(), 0u);
  ExpectTierServesAll("pfs");
  ExpectTierServesAll("nvme");
  EXPECT_EQ(stats.corrupt_reads.Get() + daemon_.stats().tiers[1].corrupt_reads.Get(), 0u);
  const v1::ScrubProgress again = Scrub("nvme");
  EXPECT_EQ(again.files(), kChunks);
  EXPECT_EQ(again.damaged(), 0u);
}

TEST_F(ScrubTest, DamageOnBothTiersIsRepairedFromEachOther) {
  const std::vector<fs::path> nvme = Flip(0, 6);
  std::vector<fs::path> pfs = Flip(1, 12);
  // Not of the same chunks: those have no good copy.
  std::erase_if(pfs, [&](const fs::path& file) {
    const auto same = [&](const fs::path& other) { return other.filename() == file.filename(); };
    return std::any_of(nvme.begin(), nvme.end(), same);
  });
  const v1::ScrubProgress first = Scrub("nvme");
  const size_t lost = 12 - pfs.size();
  EXPECT_EQ(first.damaged(), 6u);
  EXPECT_EQ(first.repaired(), 6 - lost);
  const v1::ScrubProgress second = Scrub("pfs");
  EXPECT_EQ(second.damaged(), 12u);
  EXPECT_EQ(second.repaired(), pfs.size());
  daemon_.WaitUntil([&] { return daemon_.stats().index_chunks.Get() == kChunks - lost; },
                    "the index knows what is left");
}

TEST_F(ScrubTest, WithoutAnotherReplicaDamageIsAMissAndTheNameIsFree) {
  const std::vector<fs::path> flipped = Flip(0, 1);
  fs::remove(daemon_.root(1) / fs::relative(flipped[0], daemon_.root(0)));
  const v1::ScrubProgress done = Scrub("nvme");
  EXPECT_EQ(done.damaged(), 1u);
  EXPECT_EQ(done.repaired(), 0u);
  EXPECT_FALSE(fs::exists(flipped[0]));
  // The index still names the file that is missing, until somebody asks for it.
  const v1::RequestDone read = worker_.Get(keys_);
  EXPECT_EQ(read.leading_valid() + static_cast<size_t>(read.other_valid_size()), kChunks - 1);
  EXPECT_LT(worker_.Look(keys_), kChunks);
  ASSERT_TRUE(worker_.Put(keys_).ok());
  daemon_.WaitWritten();
  EXPECT_EQ(daemon_.Files(0).size(), kChunks);
  ExpectAllAreReadRight();
  EXPECT_EQ(Scrub("nvme").damaged(), 0u);
}

TEST_F(ScrubTest, WhatIsDamagedWhileNoDaemonRunsIsRepairedByTheNext) {
  const std::vector<fs::path> flipped = Flip(0, 5);
  daemon_.Restart();
  const v1::ScrubProgress done = Scrub("nvme");
  EXPECT_EQ(done.damaged(), flipped.size());
  EXPECT_EQ(done.repaired(), flipped.size());
  EXPECT_EQ(daemon_.stats().index_chunks.Get(), kChunks);
  Worker worker(daemon_.socket());
  EXPECT_EQ(worker.Get(keys_).leading_valid(), kChunks);
  EXPECT_EQ(daemon_.stats().tiers[0].corrupt_reads.Get(), 0u);
}

TEST_F(ScrubTest, ReadsGoOnRightWhileFilesAreRepairedUnderThem) {
  Flip(0, kChunks / 2);
  std::atomic<uint64_t> repaired{0};
  std::atomic<bool> scrubbed{false};
  std::thread scrub([&] {
    // About two seconds.
    const absl::Status ended = Admin(daemon_.socket(), kPatience)
                                   .Scrub("nvme", 4 * kMiB, [&](const v1::ScrubProgress& progress) {
                                     repaired = progress.repaired();
                                     return true;
                                   });
    EXPECT_TRUE(ended.ok()) << ended;
    scrubbed = true;
  });
  // What a read finds damaged first is set aside by it, before the scrub comes by.
  daemon_.WaitUntil([&] { return repaired > 0 || scrubbed; }, "the scrub repairs");
  do {
    // Each chunk has a whole file on the other tier throughout.
    EXPECT_EQ(worker_.Get(keys_).leading_valid(), kChunks);
    for (size_t i = 0; i < kChunks; ++i) EXPECT_TRUE(worker_.Holds(keys_[i], i)) << i;
  } while (!scrubbed);
  scrub.join();
  EXPECT_GT(repaired, 0u);
  // What reads have set aside is not there, and all that is there is whole.
  const v1::ScrubProgress again = Scrub("nvme");
  EXPECT_EQ(again.files(), daemon_.Files(0).size());
  EXPECT_EQ(again.damaged(), 0u);
}

TEST_F(ScrubTest, OneScrubAtATimeAndACancelledOneMakesRoom) {
  Admin admin(daemon_.socket(), kPatience);
  // At this rate it would take six seconds for each tier.
  const absl::Status cancelled = admin.Scrub("nvme", kMiB, [&](const v1::ScrubProgress& progress) {
    const absl::Status second =
        Admin(daemon_.socket(), kPatience).Scrub("", 0, [](const auto&) { return true; });
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(second.message(), "scrub: tier nvme is being scrubbed");
    EXPECT_FALSE(progress.done());
    EXPECT_EQ(daemon_.stats().tiers[0].scrubbing.Get(), 1u);
    return false;
  });
  EXPECT_TRUE(cancelled.ok()) << cancelled;
  daemon_.WaitUntil([&] { return daemon_.stats().tiers[0].scrubbing.Get() == 0; }, "it has ended");
  EXPECT_LT(daemon_.stats().tiers[0].scrubbed_files.Get(), kChunks);
  absl::Status next;
  daemon_.WaitUntil(
      [&] {
        next = admin.Scrub("nvme", kFast, [](const auto&) { return true; });
        return next.ok();
      },
      "the next one may begin");
}

TEST_F(ScrubTest, ADaemonStopsInTheMiddleOfAScrub) {
  Flip(0, kChunks);
  Admin admin(daemon_.socket(), kPatience);
  TimeNs began = 0;
  std::thread stop;
  const absl::Status ended = admin.Scrub("nvme", kMiB, [&](const v1::ScrubProgress& progress) {
    if (progress.damaged() > 0 && !stop.joinable()) {
      began = Now();
      stop = std::thread([&] { daemon_.Restart(); });
    }
    return true;
  });
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable) << ended;
  ASSERT_TRUE(stop.joinable());
  stop.join();
  EXPECT_LT(Now() - began, 30 * kSecond);
  for (size_t tier = 0; tier < 2; ++tier) {
    for (const auto& entry : fs::recursive_directory_iterator(daemon_.root(tier))) {
      EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp-")) << entry.path();
    }
  }
  EXPECT_EQ(daemon_.Files(0).size(), kChunks) << "a file was lost";
  EXPECT_EQ(Scrub("pfs").files(), kChunks);
  EXPECT_EQ(Scrub("nvme").files(), kChunks);
}

TEST_F(ScrubTest, ADrainingDaemonBeginsNone) {
  Admin admin(daemon_.socket(), kPatience);
  ASSERT_TRUE(admin.Drain(kPatience).ok());
  EXPECT_EQ(admin.Scrub("nvme", 0, [](const auto&) { return true; }).message(),
            "scrub: the daemon is draining");
}

}  // namespace
}  // namespace kvstream
