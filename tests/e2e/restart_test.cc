// What a start finds of what was there before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "server/store/chunk_format.h"
#include "tests/support/log_recorder.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kChunkBytes = 64 * 1024;
constexpr uint64_t kFileBytes = kChunkBytes + kHeaderBytes;

class RestartTest : public testing::Test {
 protected:
  RestartTest() {
    Put(Keys(1, 64));
    Put(Keys(101, 64));
  }

  static Worker::Shape Shape() {
    return {
        .chunk_bytes = kChunkBytes, .segment_bytes = 16 * 1024, .buffer_bytes = 64 * kChunkBytes};
  }
  void Put(const std::vector<uint64_t>& keys) {
    Worker worker(daemon_.socket(), Shape());
    EXPECT_TRUE(worker.Put(keys).ok());
    daemon_.WaitWritten();
  }
  // How many of them, from the first on, are read, and whole. What a lookup finds may be a miss.
  size_t Hits(const std::vector<uint64_t>& keys) {
    Worker worker(daemon_.socket(), Shape());
    for (size_t slot = 0; slot < keys.size(); ++slot) worker.Poison(slot);
    const uint32_t found = worker.Look(keys);
    if (found == 0) return 0;
    const v1::RequestDone done =
        worker.Get({keys.begin(), keys.begin() + static_cast<ptrdiff_t>(found)});
    for (size_t i = 0; i < done.leading_valid(); ++i) EXPECT_TRUE(worker.Holds(keys[i], i));
    return done.leading_valid();
  }
  const engine::TierEngineStats& stats(size_t tier) const { return daemon_.stats().tiers[tier]; }
  fs::path Snapshot(size_t tier) const {
    return daemon_.root(tier) / "v1" / "index" / (tier == 0 ? "nvme.kvindex" : "pfs.kvindex");
  }
  void AwaitLookedThrough() {
    for (size_t t = 0; t < 2; ++t) {
      daemon_.WaitUntil([&] { return stats(t).restoring.Get() == 0; }, "all files are found");
    }
  }
  void ExpectUsedIsWhatIsThere() {
    for (size_t t = 0; t < 2; ++t) {
      EXPECT_EQ(stats(t).chunk_files.Get(), daemon_.Files(t).size());
      EXPECT_EQ(stats(t).chunk_bytes.Get(), daemon_.Files(t).size() * kFileBytes);
    }
  }

  test::LogRecorder log_;  // Before the threads that log.
  TestDaemon daemon_;
};

TEST_F(RestartTest, WhatTheSnapshotNamesIsKnownAtOnceAndStaysInOrder) {
  daemon_.Restart();
  AwaitLookedThrough();
  EXPECT_EQ(Hits(Keys(1, 64)), 64u);
  EXPECT_EQ(Hits(Keys(101, 64)), 64u);
  ExpectUsedIsWhatIsThere();
  for (size_t t = 0; t < 2; ++t) {
    EXPECT_EQ(stats(t).restored_files.Get(), 128u);
    EXPECT_EQ(stats(t).restored_missing.Get(), 0u);
    EXPECT_EQ(stats(t).cut_off_bytes.Get(), 0u);
  }
  EXPECT_EQ(log_.Count("index snapshot"), 0u);
  // What was used last stays, and of the rest the beginning of its prefix.
  daemon_.Restart([](config::Options& o) { o.tiers[0].capacity_bytes = 96 * kFileBytes; });
  daemon_.WaitUntil([&] { return stats(0).files_evicted.Get() >= 32; }, "it is within its limit");
  daemon_.WaitUntil([&] { return daemon_.Files(0).size() == stats(0).chunk_files.Get(); },
                    "what is given up is gone");
  // From the first tier alone.
  fs::remove_all(daemon_.root(1) / "v1");
  EXPECT_EQ(Hits(Keys(101, 64)), 64u);
  EXPECT_EQ(Hits(Keys(1, 16)), 16u);
}

TEST_F(RestartTest, WithoutASnapshotAWalkFindsAll) {
  daemon_.Stop();
  for (size_t t = 0; t < 2; ++t) EXPECT_TRUE(fs::remove(Snapshot(t)));
  daemon_.Restart();
  AwaitLookedThrough();
  EXPECT_EQ(Hits(Keys(1, 64)), 64u);
  EXPECT_EQ(Hits(Keys(101, 64)), 64u);
  ExpectUsedIsWhatIsThere();
  EXPECT_EQ(log_.Count("index snapshot"), 0u) << "none is no fault";
}

TEST_F(RestartTest, ADamagedSnapshotIsNamedAndAWalkFindsAll) {
  daemon_.Stop();
  for (size_t t = 0; t < 2; ++t) {
    std::fstream file(Snapshot(t), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1000);
    file.put('x').put('y');
  }
  daemon_.Restart();
  AwaitLookedThrough();
  EXPECT_EQ(log_.Count("index snapshot not used: tier=nvme"), 1u);
  EXPECT_EQ(log_.Count("its checksum is another"), 2u);
  EXPECT_EQ(stats(0).snapshots_unusable.Get(), 1u);
  EXPECT_EQ(Hits(Keys(1, 64)), 64u);
  ExpectUsedIsWhatIsThere();
}

TEST_F(RestartTest, ASnapshotOfANewerVersionIsNamedAndAWalkFindsAll) {
  daemon_.Stop();
  for (size_t t = 0; t < 2; ++t) {
    std::fstream file(Snapshot(t), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(8);
    file.put(2);
  }
  daemon_.Restart();
  AwaitLookedThrough();
  EXPECT_EQ(log_.Count("index snapshot: version 2"), 2u);
  EXPECT_EQ(Hits(Keys(101, 64)), 64u);
  ExpectUsedIsWhatIsThere();
}

TEST_F(RestartTest, AnOldSnapshotCostsNothingButMisses) {
  daemon_.Restart();
  for (size_t t = 0; t < 2; ++t) fs::copy_file(Snapshot(t), Snapshot(t).string() + ".old");
  // What it names goes, and what it does not name comes.
  Put(Keys(201, 64));
  daemon_.Stop();
  for (size_t t = 0; t < 2; ++t) {
    const auto files = daemon_.Files(t);
    for (size_t i = 0; i < 48; ++i) fs::remove(files[i]);
    fs::rename(Snapshot(t).string() + ".old", Snapshot(t));
  }
  daemon_.Restart();
  AwaitLookedThrough();
  Worker worker(daemon_.socket(), Shape());
  size_t there = 0;
  for (const uint64_t first : {1, 101, 201}) {
    for (const uint64_t key : Keys(first, 64)) {
      if (worker.Look({key}) == 0) continue;
      EXPECT_EQ(worker.Get({key}).leading_valid(), 1u);
      EXPECT_TRUE(worker.Holds(key, 0));
      there += 1;
    }
  }
  EXPECT_EQ(there, 3 * 64 - 48u) << "the same files went on both tiers";
  ExpectUsedIsWhatIsThere();
  EXPECT_GT(stats(0).restored_missing.Get() + stats(1).restored_missing.Get(), 0u);
  for (size_t t = 0; t < 2; ++t) EXPECT_EQ(stats(t).corrupt_reads.Get(), 0u);
  // And what is a miss can be stored again.
  for (const uint64_t first : {1, 101, 201}) Put(Keys(first, 64));
  for (const uint64_t first : {1, 101, 201}) EXPECT_EQ(Hits(Keys(first, 64)), 64u);
  ExpectUsedIsWhatIsThere();
}

TEST_F(RestartTest, ALimitThatWasLoweredHoldsBeforeTheDaemonIsReady) {
  daemon_.Restart([](config::Options& o) { o.tiers[0].capacity_bytes = 32 * kFileBytes; });
  daemon_.WaitUntil([&] { return stats(0).settling.Get() == 0; }, "it is within its limit");
  EXPECT_LE(stats(0).chunk_bytes.Get(), 32 * kFileBytes);
  EXPECT_GE(stats(0).files_evicted.Get(), 96u);
}

TEST_F(RestartTest, TemporariesOfDeadDaemonsGoAfterAWhileAndForeignFilesStay) {
  daemon_.Stop();
  const fs::path folder = daemon_.Files(0).front().parent_path();
  const std::vector<fs::path> temporaries = {folder / ".tmp-1", folder / ".aside-1",
                                             daemon_.root(0) / "v1" / ".probe-1",
                                             daemon_.root(0) / "v1" / "index" / ".tmp-1"};
  for (const fs::path& path : temporaries) {
    std::ofstream(path) << "x";
    // A file that is set aside is as old as its chunk, and has its name since now.
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(24));
  }
  std::ofstream(folder / "notes.txt") << "x";
  daemon_.Restart();
  AwaitLookedThrough();
  for (const fs::path& path : temporaries) EXPECT_TRUE(fs::exists(path)) << path;
  daemon_.Restart([](config::Options& o) { o.temporaries_grace = 0; });
  AwaitLookedThrough();
  for (const fs::path& path : temporaries) EXPECT_FALSE(fs::exists(path)) << path;
  EXPECT_TRUE(fs::exists(folder / "notes.txt"));
  EXPECT_EQ(stats(0).temporaries_removed.Get(), 4u);
}

// A header may say of itself what no client has said; it is not believed. Its bytes are not what it
// says either, so that it makes way.
TEST_F(RestartTest, AFileOfAnotherShapeThanItsNamespacesIsAMiss) {
  daemon_.Stop();
  const fs::path victim = daemon_.Files(0).front();
  for (size_t t = 0; t < 2; ++t) {
    const fs::path file = daemon_.root(t) / fs::relative(victim, daemon_.root(0));
    std::vector<std::byte> block(kHeaderBytes);
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.read(reinterpret_cast<char*>(block.data()), static_cast<std::streamsize>(block.size()));
    auto header = store::DecodeHeader(block);
    ASSERT_TRUE(header.ok());
    header->shape = {4096, 4096};
    header->checksums.resize(1);
    store::EncodeHeader(*header, block);
    stream.seekp(0);
    stream.write(reinterpret_cast<char*>(block.data()), static_cast<std::streamsize>(block.size()));
    stream.close();
    fs::resize_file(file, kHeaderBytes + 4096);
    fs::remove(Snapshot(t));
  }
  daemon_.Restart();
  AwaitLookedThrough();
  EXPECT_EQ(stats(0).restored_files.Get(), 128u);
  const size_t before = Hits(Keys(1, 64)) + Hits(Keys(101, 64));
  EXPECT_LT(before, 128u);
  for (const uint64_t first : {1, 101}) Put(Keys(first, 64));
  for (const uint64_t first : {1, 101}) EXPECT_EQ(Hits(Keys(first, 64)), 64u);
  ExpectUsedIsWhatIsThere();
}

TEST_F(RestartTest, ASnapshotThatCannotBeWrittenIsSaid) {
  daemon_.Stop();
  for (size_t t = 0; t < 2; ++t) {
    fs::remove_all(daemon_.root(t) / "v1" / "index");
    std::ofstream(daemon_.root(t) / "v1" / "index") << "in the way";
  }
  daemon_.Restart([](config::Options& o) { o.snapshot_every = kMillisecond; });
  daemon_.WaitUntil([&] { return stats(0).snapshot_failures.Get() > 1; }, "it was tried twice");
  EXPECT_EQ(stats(0).snapshot_failing.Get(), 1u);
  EXPECT_EQ(log_.Count("an index snapshot cannot be written: tier=nvme"), 1u);
  for (size_t t = 0; t < 2; ++t) fs::remove(daemon_.root(t) / "v1" / "index");
  daemon_.WaitUntil([&] { return stats(0).snapshots_written.Get() > 1; }, "it is written");
  EXPECT_EQ(stats(0).snapshot_failing.Get(), 0u);
  EXPECT_EQ(stats(0).snapshot_files.Get(), 128u);
}

}  // namespace
}  // namespace kvstream
