// Scrubs of real files: what is found damaged, what becomes of it, and what is left alone.
#include "server/engine/scrubber.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "server/base/clock.h"
#include "server/store/encoding.h"
#include "tests/engine/scrub_rig.h"
#include "tests/support/log_recorder.h"

namespace kvstream::engine {
namespace {

namespace fs = std::filesystem;

TEST(ScrubberTest, WholeFilesAreReadAndLeftAsTheyAre) {
  ScrubRig rig;
  for (uint32_t key = 0; key < 5; ++key) rig.Make(0, key);
  const ScrubProgress done = rig.Scrub(kA);
  EXPECT_TRUE(done.done);
  EXPECT_EQ(done.files, 5u);
  EXPECT_EQ(done.bytes, 5 * kScrubShape.file_bytes());
  EXPECT_EQ(done.damaged, 0u);
  EXPECT_EQ(rig.stats().tiers[0].scrubbed_files.Get(), 5u);
  EXPECT_EQ(rig.stats().tiers[0].scrubbed_bytes.Get(), 5 * kScrubShape.file_bytes());
  EXPECT_EQ(rig.stats().tiers[0].files_set_aside.Get(), 0u);
  EXPECT_EQ(rig.stats().tiers[1].scrubbed_files.Get(), 0u);
}

TEST(ScrubberTest, DamagedFilesAreWrittenAnewFromTheOtherTier) {
  ScrubRig rig;
  for (uint32_t key = 0; key < 6; ++key) {
    rig.Make(0, key);
    rig.Make(1, key);
  }
  rig.Flip(0, 1);
  rig.Flip(0, 3, /*header=*/true);
  fs::resize_file(rig.FileOf(0, 4), 100);
  const ScrubProgress done = rig.Scrub(kA);
  EXPECT_EQ(done.files, 6u);
  EXPECT_EQ(done.damaged, 3u);
  EXPECT_EQ(done.repaired, 3u);
  EXPECT_EQ(rig.stats().tiers[0].scrub_damaged.Get(), 3u);
  EXPECT_EQ(rig.stats().tiers[0].scrub_repaired.Get(), 3u);
  for (uint32_t key = 0; key < 6; ++key) {
    EXPECT_TRUE(rig.IsWhole(0, key) && rig.IsWhole(1, key)) << key;
    EXPECT_EQ(rig.Holders(key), TierSet::Of(kA) | TierSet::Of(kB)) << key;
  }
  EXPECT_EQ(rig.Scrub(kA).damaged, 0u);
}

TEST(ScrubberTest, WhileAFileIsSetAsideTheIndexDoesNotNameIt) {
  ScrubRig rig;
  rig.Make(0, 1);
  rig.Make(1, 1);
  rig.Flip(0, 1);
  int seen = 0;
  rig.on_event = [&](const Event& event) {
    if (std::holds_alternative<FileRepaired>(event)) {
      ++seen;
      EXPECT_EQ(rig.Holders(1), TierSet::Of(kB));
    }
  };
  EXPECT_EQ(rig.Scrub(kA).repaired, 1u);
  EXPECT_EQ(seen, 1);
}

TEST(ScrubberTest, WithoutAGoodCopyADamagedFileIsGoneAndItsKeyAMiss) {
  ScrubRig rig;
  rig.Make(0, 1);
  rig.Make(0, 2);
  rig.Make(1, 2);
  rig.Flip(0, 1);
  rig.Flip(0, 2);
  rig.Flip(1, 2);
  const ScrubProgress done = rig.Scrub(kA);
  EXPECT_EQ(done.damaged, 2u);
  EXPECT_EQ(done.repaired, 0u);
  EXPECT_EQ(done.deleted, 2u);
  EXPECT_FALSE(fs::exists(rig.FileOf(0, 1)));
  EXPECT_FALSE(fs::exists(rig.FileOf(0, 2)));
  EXPECT_FALSE(rig.index().Find(ScrubRig::Key(1)).has_value());
  EXPECT_EQ(rig.Holders(2), TierSet::Of(kB));  // Until that tier is scrubbed.
  EXPECT_EQ(rig.Scrub(kB).damaged, 1u);
  EXPECT_FALSE(rig.index().Find(ScrubRig::Key(2)).has_value());
}

TEST(ScrubberTest, WhatTheIndexDoesNotKnowIsRepairedAndStaysUnknown) {
  ScrubRig rig;
  rig.Make(0, 1, /*indexed=*/false);
  rig.Make(1, 1, /*indexed=*/false);
  rig.Flip(0, 1);
  EXPECT_EQ(rig.Scrub(kA).repaired, 1u);
  EXPECT_TRUE(rig.IsWhole(0, 1));
  EXPECT_EQ(rig.index().chunks(), 0u);
}

TEST(ScrubberTest, AKeyThatOnlyTheDamagedFileHeldIsKnownAgainOnceRepaired) {
  ScrubRig rig;
  rig.Make(0, 1);
  rig.Make(1, 1, /*indexed=*/false);
  rig.Flip(0, 1);
  EXPECT_EQ(rig.Scrub(kA).repaired, 1u);
  EXPECT_EQ(rig.Holders(1), TierSet::Of(kA));
}

TEST(ScrubberTest, AFileThatWasReplacedMeanwhileStands) {
  ScrubRig rig;
  rig.Make(0, 1);
  rig.Flip(0, 1);
  rig.on_event = [&](const Event& event) {
    if (!std::holds_alternative<FileDamaged>(event)) return;
    fs::remove(rig.FileOf(0, 1));  // Another node, before the file is set aside.
    rig.Make(0, 1, false);
  };
  const ScrubProgress done = rig.Scrub(kA);
  EXPECT_EQ(done.damaged, 1u);
  EXPECT_EQ(done.repaired, 1u);
  EXPECT_TRUE(rig.IsWhole(0, 1));
  EXPECT_EQ(rig.Holders(1), TierSet::Of(kA));
}

TEST(ScrubberTest, ForeignFilesOtherVersionsAndLinksAreLeftAlone) {
  ScrubRig rig;
  rig.Make(0, 1);
  rig.Make(0, 2);
  const fs::path folder = rig.FileOf(0, 1).parent_path();
  std::ofstream(folder / "notes") << "mine";
  {
    std::fstream file(rig.FileOf(0, 2), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(8);
    file.put(2);  // The version.
  }
  rig.Make(0, 3);
  fs::rename(rig.FileOf(0, 3), rig.root(0) / "elsewhere");
  fs::create_symlink(rig.root(0) / "elsewhere", rig.FileOf(0, 3));
  // A whole chunk in another namespace's folder: nobody looks for it there.
  rig.Make(0, 4);
  const std::string path = rig.FileOf(0, 4).string();
  const std::string other = (rig.root(0) / "v1" / std::string(32, 'e')).string() +
                            path.substr((rig.root(0) / "v1").string().size() + 1 + 32);
  fs::create_directories(fs::path(other).parent_path());
  fs::rename(path, other);
  const ScrubProgress done = rig.Scrub(kA);
  EXPECT_EQ(done.files, 1u);
  EXPECT_EQ(done.damaged, 0u);
  EXPECT_EQ(done.unreadable, 0u);
  EXPECT_EQ(done.foreign, 4u);
  EXPECT_TRUE(fs::exists(folder / "notes") && fs::exists(rig.FileOf(0, 2)) && fs::exists(other));
  EXPECT_TRUE(fs::is_symlink(rig.FileOf(0, 3)));
}

TEST(ScrubberTest, AFileThatCannotBeReadNowIsCountedAndLeft) {
  const test::LogRecorder log;
  ScrubRig rig;
  rig.Make(0, 1);
  rig.Flip(0, 1);
  // Whoever holds a lease keeps others from opening the file, and is told by a signal.
  ASSERT_NE(signal(SIGIO, SIG_IGN), SIG_ERR);
  const UniqueFd holder(open(rig.FileOf(0, 1).c_str(), O_RDWR | O_CLOEXEC));
  if (fcntl(holder.get(), F_SETLEASE, F_WRLCK) != 0) {
    GTEST_SKIP() << "SKIPPED: no leases on this file system";
  }
  const ScrubProgress done = rig.Scrub(kA);
  EXPECT_EQ(done.unreadable, 1u);
  EXPECT_EQ(done.damaged, 0u);
  EXPECT_EQ(done.files, 0u);
  EXPECT_EQ(rig.stats().tiers[0].scrub_unreadable.Get(), 1u);
  EXPECT_EQ(log.Count("a scrub could not read a file: tier=a file=v1/"), 1u);
  EXPECT_TRUE(fs::exists(rig.FileOf(0, 1)));
  ASSERT_EQ(fcntl(holder.get(), F_SETLEASE, F_UNLCK), 0);
  EXPECT_EQ(rig.Scrub(kA).damaged, 1u);
}

TEST(ScrubberTest, ATierThatIsOutIsWaitedFor) {
  ScrubRig rig;
  const test::LogRecorder log;
  rig.Make(0, 1);
  rig.stats().tiers[0].out.Set(1);
  const auto sink = rig.Begin(TierSet::Of(kA));
  rig.LoopUntil([&] { return sink->sent().size() >= 2; });  // It says so, about every second.
  EXPECT_EQ(log.Count("a scrub waits for its tier, which is out of service: tier=a"), 1u);
  EXPECT_EQ(sink->Last(kA).files, 0u);
  rig.stats().tiers[0].out.Set(0);
  rig.LoopUntil([&] { return sink->ended(); });
  EXPECT_TRUE(sink->end().ok()) << sink->end();
  EXPECT_EQ(sink->Last(kA).files, 1u);
}

TEST(ScrubberTest, OneScrubAtATimeAndTheOtherIsToldWhichTier) {
  ScrubRig rig;
  for (uint32_t key = 0; key < 50; ++key) rig.Make(1, key);
  const auto first = rig.Begin(TierSet::Of(kB), kMiB);
  const auto second = rig.Begin(TierSet::Of(kA));
  EXPECT_EQ(second->end().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(second->end().message(), "tier b is being scrubbed");
  EXPECT_FALSE(first->ended());
  first->Cancel();
  rig.LoopUntil([&] { return first->ended(); });
  EXPECT_TRUE(absl::IsCancelled(first->end())) << first->end();
  EXPECT_LT(first->Last(kB).files, 50u);
  EXPECT_TRUE(rig.Scrub(kA).done);
}

TEST(ScrubberTest, TiersAreScrubbedOneAfterTheOtherAtTheRateThatWasAskedFor) {
  ScrubRig rig;
  for (uint32_t key = 0; key < 8; ++key) {
    rig.Make(0, key);
    rig.Make(1, key);
  }
  const TimeNs began = Now();
  const auto sink = rig.Begin(TierSet::Of(kA) | TierSet::Of(kB), kMiB);
  rig.LoopUntil([&] { return sink->ended(); });
  const double seconds = static_cast<double>(Now() - began) / kSecond;
  // A file counts as 64 KiB at least, and so do the folders of each tier: v1, the namespace and two
  // for a file, but for those that files share.
  constexpr double kFolders = 2 * (2 + 1 + 8);
  EXPECT_GE(seconds, (2 * 8 + kFolders) * (64 * kKiB) / (kMiB)*0.9);
  EXPECT_TRUE(sink->Last(kA).done && sink->Last(kB).done);
  bool a_done = false;
  for (const ScrubProgress& progress : sink->sent()) {
    EXPECT_TRUE(progress.tier == kA || a_done);
    a_done |= progress.tier == kA && progress.done;
  }
}

TEST(ScrubberTest, AStopEndsAScrubThatWaits) {
  ScrubRig rig;
  for (uint32_t key = 0; key < 50; ++key) rig.Make(0, key);
  const auto sink = rig.Begin(TierSet::Of(kA), kKiB);  // A file takes most of a minute.
  const TimeNs began = Now();
  rig.scrubber().Stop(Now() + 30 * kSecond);
  EXPECT_LT(Now() - began, 20 * kSecond);
  rig.LoopUntil([&] { return sink->ended(); });
  EXPECT_TRUE(absl::IsUnavailable(sink->end())) << sink->end();
}

TEST(ScrubberTest, ByTheClockAllTiersAreScrubbedEachTimeItIsDue) {
  constexpr TimeNs kHour = 3600 * kSecond;
  ScrubRig rig(2, {.bytes_per_second = kGiB, .every = kHour});
  rig.Make(0, 1);
  rig.Make(1, 1);
  Scrubber& scrubber = rig.scrubber();
  const TimeNs start = 7 * kHour;
  EXPECT_LE(scrubber.NextDeadline(), start);  // To be told the time.
  scrubber.Tick(false, start);
  EXPECT_EQ(scrubber.NextDeadline(), start + kHour);
  scrubber.Tick(false, start + kHour - 1);
  EXPECT_FALSE(scrubber.running());
  EXPECT_EQ(rig.stats().tiers[0].scrubbed_files.Get(), 0u);
  for (uint64_t round = 1; round <= 2; ++round) {
    scrubber.Tick(false, start + static_cast<TimeNs>(round) * kHour);
    rig.LoopUntil([&] { return !scrubber.running(); });
    EXPECT_EQ(rig.stats().tiers[0].scrubbed_files.Get(), round);
    EXPECT_EQ(rig.stats().tiers[1].scrubbed_files.Get(), round);
  }
  scrubber.Tick(true, start + 3 * kHour);  // Draining.
  EXPECT_FALSE(scrubber.running());
  EXPECT_EQ(scrubber.NextDeadline(), start + 4 * kHour);
}

TEST(ScrubberTest, WithoutAClockNothingIsEverDue) {
  ScrubRig rig;
  EXPECT_EQ(rig.scrubber().NextDeadline(), kNever);
  rig.scrubber().Tick(false, kNever - 1);
  EXPECT_FALSE(rig.scrubber().running());
}

}  // namespace
}  // namespace kvstream::engine
