// What becomes of damaged files where something goes wrong meanwhile: whatever it is, the tier
// keeps the file, or has a whole one in its place.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>

#include "server/base/clock.h"
#include "tests/engine/scrub_rig.h"
#include "tests/support/log_recorder.h"

namespace kvstream::engine {
namespace {

namespace fs = std::filesystem;

constexpr TierSet kBoth = TierSet::FromBits(3);

// Damaged on tier a, whole on tier b.
void MakeDamaged(ScrubRig& rig, uint32_t key) {
  rig.Make(0, key);
  rig.Make(1, key);
  rig.Flip(0, key);
}

// The file is where it was, not used, and the next scrub repairs it.
void ExpectKeptAndRepairedNextTime(ScrubRig& rig, uint32_t key) {
  EXPECT_TRUE(fs::exists(rig.FileOf(0, key)));
  EXPECT_FALSE(rig.IsWhole(0, key));
  EXPECT_FALSE(rig.Holders(key).Has(kA));
  const ScrubProgress next = rig.Scrub(kA);
  EXPECT_EQ(next.damaged, 1u);
  EXPECT_EQ(next.repaired, 1u);
  EXPECT_TRUE(rig.IsWhole(0, key));
  EXPECT_TRUE(rig.Holders(key).Has(kA));
  EXPECT_EQ(rig.stats().tiers[0].scrub_unrepaired.Get(), 0u);
}

bool IsAsideOf(const Event& event) {
  const auto* damaged = std::get_if<FileDamaged>(&event);
  return damaged != nullptr && damaged->done != nullptr;
}

TEST(ScrubRepairTest, AFileStaysWhileTheOtherTierIsOut) {
  ScrubRig rig;
  MakeDamaged(rig, 1);
  rig.stats().tiers[1].out.Set(1);
  const ScrubProgress done = rig.Scrub(kA);
  EXPECT_EQ(done.damaged, 1u);
  EXPECT_EQ(done.repaired, 0u);
  EXPECT_EQ(done.deleted, 0u);
  EXPECT_EQ(rig.stats().tiers[0].scrub_unrepaired.Get(), 1u);
  EXPECT_EQ(rig.stats().tiers[0].files_set_aside.Get(), 0u);
  rig.stats().tiers[1].out.Set(0);
  ExpectKeptAndRepairedNextTime(rig, 1);
}

TEST(ScrubRepairTest, AFileStaysWhileATierHasNotOpened) {
  ScrubRig rig;
  rig.Make(0, 1);
  rig.Flip(0, 1);
  rig.stats().tiers[2].out.Set(1);  // As the engine says of it.
  EXPECT_EQ(rig.Scrub(kA).repaired, 0u);
  EXPECT_TRUE(fs::exists(rig.FileOf(0, 1)));
}

TEST(ScrubRepairTest, AFileStaysWhileTheOtherCopyCannotBeRead) {
  ScrubRig rig;
  MakeDamaged(rig, 1);
  // Whoever holds a lease keeps others from opening the file, and is told by a signal.
  ASSERT_NE(signal(SIGIO, SIG_IGN), SIG_ERR);
  const UniqueFd holder(open(rig.FileOf(1, 1).c_str(), O_RDWR | O_CLOEXEC));
  if (fcntl(holder.get(), F_SETLEASE, F_WRLCK) != 0) {
    GTEST_SKIP() << "SKIPPED: no leases on this file system";
  }
  EXPECT_EQ(rig.Scrub(kA).repaired, 0u);
  EXPECT_EQ(rig.stats().tiers[1].scrub_unreadable.Get(), 1u);
  ASSERT_EQ(fcntl(holder.get(), F_SETLEASE, F_UNLCK), 0);
  ExpectKeptAndRepairedNextTime(rig, 1);
}

TEST(ScrubRepairTest, AFileStaysWhileTheCopyCannotBeWritten) {
  ScrubRig rig;
  MakeDamaged(rig, 1);
  ASSERT_NE(signal(SIGXFSZ, SIG_IGN), SIG_ERR);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{8 * kKiB, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_EQ(rig.Scrub(kA).repaired, 0u);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ExpectKeptAndRepairedNextTime(rig, 1);
}

TEST(ScrubRepairTest, ACopyThatIsDamagedTooIsCountedAndTheFileGone) {
  ScrubRig rig;
  MakeDamaged(rig, 1);
  rig.Flip(1, 1);
  EXPECT_EQ(rig.Scrub(kA).repaired, 0u);
  EXPECT_FALSE(fs::exists(rig.FileOf(0, 1)));
  EXPECT_EQ(rig.stats().tiers[1].scrub_damaged.Get(), 1u);
}

TEST(ScrubRepairTest, AFileThatCannotBeJudgedOnceMoreIsNotDeleted) {
  ScrubRig rig;
  rig.Make(0, 1);
  rig.Flip(0, 1);
  rig.tier(0).judging_fails = true;
  EXPECT_EQ(rig.Scrub(kA).repaired, 0u);
  EXPECT_TRUE(fs::exists(rig.FileOf(0, 1)));
  EXPECT_EQ(rig.stats().tiers[0].files_set_aside.Get(), 0u);
}

TEST(ScrubRepairTest, WhoeverAskedGoesAwayInTheMiddleAndTheRepairIsWhole) {
  ScrubRig rig;
  MakeDamaged(rig, 1);
  std::shared_ptr<RecordingScrubSink> sink;
  rig.on_event = [&](const Event& event) {
    if (IsAsideOf(event)) sink->Cancel();
  };
  sink = rig.Begin(TierSet::Of(kA));
  rig.LoopUntil([&] { return sink->ended(); });
  EXPECT_TRUE(absl::IsCancelled(sink->end())) << sink->end();
  EXPECT_TRUE(rig.IsWhole(0, 1));
  EXPECT_TRUE(rig.Holders(1).Has(kA));
  EXPECT_EQ(rig.stats().tiers[0].scrub_repaired.Get(), 1u);
  EXPECT_EQ(rig.stats().tiers[0].scrub_unrepaired.Get(), 0u);
}

TEST(ScrubRepairTest, AStopInTheMiddleLosesNoFile) {
  ScrubRig rig;
  MakeDamaged(rig, 1);
  rig.on_event = [&](const Event& event) {
    if (IsAsideOf(event)) rig.scrubber().Stop(Now() + 60 * kSecond);
  };
  const auto sink = rig.Begin(TierSet::Of(kA));
  rig.LoopUntil([&] { return sink->ended() && rig.nothing_set_aside(); });
  EXPECT_TRUE(absl::IsUnavailable(sink->end())) << sink->end();
  rig.on_event = nullptr;
  ExpectKeptAndRepairedNextTime(rig, 1);
}

TEST(ScrubRepairTest, AFileThatIsNotSetAsideInTimeEndsTheScrubOfItsTierAlone) {
  ScrubRig rig(2, {.bytes_per_second = kGiB, .patience = 3 * kSecond});
  MakeDamaged(rig, 1);
  rig.tier(0).Hold(true);
  const auto sink = rig.Begin(kBoth);
  rig.LoopUntil([&] { return sink->ended(); });
  EXPECT_EQ(sink->end(), absl::UnavailableError("tier a does not answer"));
  EXPECT_FALSE(sink->Last(kA).done);
  EXPECT_TRUE(sink->Last(kB).done);
  EXPECT_EQ(rig.stats().tiers[0].scrubs_unfinished.Get(), 1u);
  EXPECT_EQ(rig.stats().tiers[0].scrub_unrepaired.Get(), 1u);
  rig.tier(0).Hold(false);
  rig.LoopUntil([&] { return rig.nothing_set_aside(); });
  ExpectKeptAndRepairedNextTime(rig, 1);
}

TEST(ScrubRepairTest, ACopyThatDoesNotComeLeavesTheFileAndTheScrubGoesOn) {
  if (const std::string why = HangingFolder::Missing(); !why.empty()) {
    GTEST_SKIP() << "SKIPPED: " << why;
  }
  ScrubRig rig(2, {.bytes_per_second = kGiB, .patience = 2 * kSecond}, /*hanging=*/1);
  MakeDamaged(rig, 1);
  MakeDamaged(rig, 2);
  rig.Make(0, 3);
  rig.hanging().Hang();
  const ScrubProgress done = rig.Scrub(kA);
  EXPECT_EQ(done.files, 3u);
  EXPECT_EQ(done.damaged, 2u);
  EXPECT_EQ(done.repaired, 0u);
  EXPECT_TRUE(fs::exists(rig.FileOf(0, 1)) && fs::exists(rig.FileOf(0, 2)));
  EXPECT_EQ(rig.Holders(1), TierSet::Of(kB));
  rig.hanging().Resume();
  EXPECT_EQ(rig.Scrub(kA).repaired, 2u);
}

TEST(ScrubRepairTest, ATierThatHangsIsLeftBehindAndTheOthersAreScrubbed) {
  if (const std::string why = HangingFolder::Missing(); !why.empty()) {
    GTEST_SKIP() << "SKIPPED: " << why;
  }
  ScrubRig rig(2, {.bytes_per_second = kGiB, .patience = 2 * kSecond}, /*hanging=*/0);
  rig.Make(0, 1);
  rig.Make(1, 1);
  rig.hanging().Hang();
  const auto tick = [&] { rig.scrubber().Tick(false, Now()); };
  const auto sink = rig.Begin(kBoth);
  rig.LoopUntil([&] {
    tick();
    return sink->ended();
  });
  EXPECT_EQ(sink->end(), absl::UnavailableError("tier a does not answer"));
  EXPECT_TRUE(sink->Last(kB).done);
  EXPECT_EQ(rig.stats().tiers[0].scrubbing.Get(), 0u);
  EXPECT_EQ(rig.stats().tiers[0].scrub_hung.Get(), 1u);
  // Another would hang, too.
  const auto again = rig.Begin(TierSet::Of(kA));
  EXPECT_EQ(again->end(), absl::UnavailableError("tier a does not answer to an earlier scrub"));
  rig.hanging().Resume();
  rig.LoopUntil([&] {
    tick();
    return rig.stats().tiers[0].scrub_hung.Get() == 0;
  });
  EXPECT_EQ(rig.Scrub(kA).files, 1u);
}

TEST(ScrubRepairTest, ATierThatStaysOutEndsItsScrubAlone) {
  ScrubRig rig(2, {.bytes_per_second = kGiB, .patience = kSecond});
  rig.Make(0, 1);
  rig.Make(1, 1);
  rig.stats().tiers[0].out.Set(1);
  const auto sink = rig.Begin(kBoth);
  rig.LoopUntil([&] { return sink->ended(); });
  EXPECT_EQ(sink->end(), absl::UnavailableError("tier a is out of service"));
  EXPECT_TRUE(sink->Last(kB).done);
  EXPECT_EQ(rig.stats().tiers[0].scrubs_completed.Get(), 0u);
  EXPECT_EQ(rig.stats().tiers[0].scrub_completed_at.Get(), 0u);
  EXPECT_EQ(rig.stats().tiers[1].scrubs_completed.Get(), 1u);
  EXPECT_GT(rig.stats().tiers[1].scrub_completed_at.Get(), 0u);
}

TEST(ScrubRepairTest, ATierThatIsMountedAnewEndsItsScrubAndKeepsItsFiles) {
  // The other file system comes before the damage is told, before the file is set aside, and on the
  // way there.
  for (const int when : {0, 1, 2}) {
    ScrubRig rig;
    MakeDamaged(rig, 1);
    if (when == 2) rig.tier(0).Hold(true);
    const auto sink = rig.Begin(kBoth);
    rig.on_event = [&](const Event& event) {
      const auto* damaged = std::get_if<FileDamaged>(&event);
      if (damaged == nullptr) return;
      if (when == (damaged->done == nullptr ? 0 : 1)) rig.tier(0).Remount();
    };
    if (when == 2) {
      rig.LoopUntil([&] { return !rig.nothing_set_aside(); });
      rig.tier(0).Remount();
      rig.tier(0).Hold(false);
    }
    rig.LoopUntil([&] { return sink->ended(); });
    rig.on_event = nullptr;
    EXPECT_EQ(sink->end(), absl::UnavailableError("tier a was mounted anew")) << when;
    EXPECT_TRUE(sink->Last(kB).done);
    EXPECT_EQ(rig.stats().tiers[0].files_set_aside.Get(), 0u);
    EXPECT_TRUE(fs::exists(rig.FileOf(0, 1)));
    EXPECT_FALSE(rig.IsWhole(0, 1));
    EXPECT_EQ(rig.Holders(1).Has(kA), when == 0);
    EXPECT_EQ(rig.stats().tiers[0].scrub_repaired.Get(), 0u);
    // The next one is of what is there by now.
    EXPECT_EQ(rig.Scrub(kA).repaired, 1u);
    EXPECT_TRUE(rig.Holders(1).Has(kA));
  }
}

TEST(ScrubRepairTest, WhatWasRepairedBeforeAMountIsNotTakenForWhatIsThereAfterIt) {
  ScrubRig rig;
  MakeDamaged(rig, 1);
  rig.on_event = [&](const Event& event) {
    if (std::holds_alternative<FileRepaired>(event)) rig.tier(0).Remount();
  };
  const auto sink = rig.Begin(TierSet::Of(kA));
  rig.LoopUntil([&] { return sink->ended(); });
  EXPECT_EQ(sink->end(), absl::UnavailableError("tier a was mounted anew"));
  EXPECT_FALSE(rig.Holders(1).Has(kA));
}

TEST(ScrubRepairTest, NoCopyIsLookedForOnAFileSystemThatIsNoLongerATiers) {
  ScrubRig rig;
  MakeDamaged(rig, 1);
  rig.tier(1).Remount();
  EXPECT_EQ(rig.Scrub(kA).repaired, 1u);
  rig.Flip(0, 1);
  rig.on_event = [&](const Event& event) {
    if (std::holds_alternative<FileDamaged>(event)) rig.tier(1).Remount();
  };
  const auto sink = rig.Begin(TierSet::Of(kA));
  rig.LoopUntil([&] {
    rig.scrubber().Tick(false, Now());
    return sink->ended();
  });
  EXPECT_EQ(sink->end(), absl::UnavailableError("tier b was mounted anew"));
}

TEST(ScrubRepairTest, OneThatNobodyAskedForMakesRoomForOneThatSomebodyDoes) {
  ScrubRig rig(2, {.bytes_per_second = kKiB, .every = kSecond});  // A file takes most of a minute.
  for (uint32_t key = 0; key < 5; ++key) rig.Make(0, key);
  rig.scrubber().Tick(false, kSecond);
  rig.scrubber().Tick(false, 2 * kSecond);
  ASSERT_TRUE(rig.scrubber().running());
  const auto sink = rig.Begin(TierSet::Of(kA), kGiB);
  EXPECT_FALSE(sink->ended());
  EXPECT_TRUE(absl::IsFailedPrecondition(rig.Begin(TierSet::Of(kA), kGiB)->end()));
  rig.LoopUntil([&] { return sink->ended(); });
  EXPECT_TRUE(sink->end().ok()) << sink->end();
  EXPECT_EQ(sink->Last(kA).files, 5u);
  EXPECT_FALSE(rig.scrubber().running());
  // Never the other way round.
  const auto first = rig.Begin(TierSet::Of(kA), kKiB);
  EXPECT_EQ(rig.stats().scrubs_refused.Get(), 0u);
  rig.scrubber().Tick(false, 3 * kSecond);
  EXPECT_EQ(rig.stats().scrubs_refused.Get(), 1u);
  EXPECT_FALSE(first->ended());
}

TEST(ScrubRepairTest, TheFirstFileOfEachKindIsWarnedOf) {
  const test::LogRecorder log;
  ScrubRig rig;
  for (uint32_t key = 1; key <= 3; ++key) MakeDamaged(rig, key);
  rig.stats().tiers[1].out.Set(1);
  EXPECT_EQ(rig.Scrub(kA).damaged, 3u);
  EXPECT_EQ(log.Count("a scrub has found a damaged file: tier=a file=v1/"), 1u);
  EXPECT_EQ(log.Count("a damaged file is not repaired"), 1u);
  EXPECT_EQ(log.Count("cause=another tier is out"), 1u);
  EXPECT_EQ(log.Count("scrub ends: tier=a status=OK files=3"), 1u);
  EXPECT_EQ(rig.Scrub(kA).damaged, 3u);
  EXPECT_EQ(log.Count("a scrub has found a damaged file"), 2u);
}

}  // namespace
}  // namespace kvstream::engine
