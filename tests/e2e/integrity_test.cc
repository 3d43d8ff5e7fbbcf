// Damage on disk: never delivered, the other replica is, the event is counted, and the name can be
// used again.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "server/base/chunk_shape.h"
#include "server/base/unique_fd.h"
#include "tests/support/load.h"
#include "tests/support/log_recorder.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

namespace fs = std::filesystem;

void FlipBit(const fs::path& file, uint64_t offset, int bit) {
  const UniqueFd fd(open(file.c_str(), O_RDWR));
  ASSERT_TRUE(fd.valid());
  char byte;
  ASSERT_EQ(pread(fd.get(), &byte, 1, static_cast<off_t>(offset)), 1);
  byte = static_cast<char>(byte ^ (1 << bit));
  ASSERT_EQ(pwrite(fd.get(), &byte, 1, static_cast<off_t>(offset)), 1);
  fsync(fd.get());
}

// Puts zeros where a page of 4 KiB was, as a power cut leaves it.
void LosePage(const fs::path& file, uint64_t page) {
  const UniqueFd fd(open(file.c_str(), O_RDWR));
  const std::vector<char> zeros(4096);
  ASSERT_EQ(pwrite(fd.get(), zeros.data(), zeros.size(), static_cast<off_t>(page * 4096)), 4096);
}

std::string ContentsOf(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Chunks that were delivered whole; what else is said to be valid fails the test.
size_t CountWhole(const Worker& worker, const v1::RequestDone& done,
                  const std::vector<uint64_t>& keys) {
  std::vector<uint32_t> valid(done.other_valid().begin(), done.other_valid().end());
  for (uint32_t i = 0; i < done.leading_valid(); ++i) valid.push_back(i);
  for (const uint32_t i : valid) EXPECT_TRUE(worker.Holds(keys[i], i)) << keys[i];
  return valid.size();
}

// One chunk of four segments on two tiers, and a client.
class IntegrityTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(worker_.Put({1}).ok());
    daemon_.WaitWritten();
    ASSERT_EQ(daemon_.Files(0).size(), 1u);
    ASSERT_EQ(daemon_.Files(1).size(), 1u);
  }

  uint64_t Corrupt(size_t tier) const { return daemon_.stats().tiers[tier].corrupt_reads.Get(); }

  // Both tiers read any step of one chunk, but which reads which segment is theirs to find out: so
  // a damaged segment may go unread. With the other tier's file gone every segment is read here.
  void ExpectDamageIsFoundAndNothingWrongDelivered(size_t tier) {
    fs::remove(daemon_.Files(1 - tier).at(0));
    const v1::RequestDone done = worker_.Get({1});
    EXPECT_EQ(done.leading_valid(), 0u);
    EXPECT_NE(done.code(), v1::OK);
    EXPECT_FALSE(worker_.Holds(1, 0));
    EXPECT_EQ(worker_.Look({1}), 0u);
  }

  test::LogRecorder log_;  // Before the threads that log.
  TestDaemon daemon_;
  Worker worker_{daemon_.socket()};
};

TEST_F(IntegrityTest, AFlippedBitInAnySegmentIsNeverDeliveredAndTheOtherReplicaIs) {
  for (size_t tier = 0; tier < 2; ++tier) {
    for (uint32_t segment = 0; segment < 4; ++segment) {
      // Sixteen chunks, so that each tier reads some of them whatever the router makes of it.
      const auto keys = Keys(100 + 1000 * tier + 100 * segment, 16);
      const auto before = daemon_.Files(tier);
      ASSERT_TRUE(worker_.Put(keys).ok());
      daemon_.WaitWritten();
      std::vector<fs::path> fresh;
      const auto after = daemon_.Files(tier);
      std::set_difference(after.begin(), after.end(), before.begin(), before.end(),
                          std::back_inserter(fresh));
      ASSERT_EQ(fresh.size(), keys.size());
      for (size_t i = 0; i < fresh.size(); ++i) {
        FlipBit(fresh[i], kHeaderBytes + segment * 65536 + 4095 * i, static_cast<int>(i % 8));
      }
      const uint64_t corrupt = Corrupt(tier);
      const v1::RequestDone done = worker_.Get(keys);
      ASSERT_EQ(done.leading_valid(), keys.size()) << done.message();
      for (size_t i = 0; i < keys.size(); ++i) ASSERT_TRUE(worker_.Holds(keys[i], i)) << i;
      // A busy machine's tier may have read none of them yet. Each is found out in time, and none
      // is left under its name.
      daemon_.WaitUntil(
          [&] {
            EXPECT_EQ(worker_.Get(keys).leading_valid(), keys.size());
            return Corrupt(tier) - corrupt >= 4 && daemon_.Files(tier).size() <= after.size() - 4;
          },
          "damaged files are set aside");
    }
  }
}

TEST_F(IntegrityTest, DamageOnTheOnlyReplicaIsAMissAndTheNameCanBeStoredAgain) {
  FlipBit(daemon_.Files(0).at(0), kHeaderBytes + 70000, 3);
  ExpectDamageIsFoundAndNothingWrongDelivered(0);
  EXPECT_EQ(Corrupt(0), 1u);
  EXPECT_EQ(log_.Count("files are damaged, is the device sound? tier=nvme"), 1u);
  ASSERT_TRUE(worker_.Put({1}).ok());
  daemon_.WaitWritten();
  EXPECT_EQ(worker_.Get({1}).leading_valid(), 1u);
  EXPECT_TRUE(worker_.Holds(1, 0));
  EXPECT_EQ(daemon_.Files(0).size(), 1u);
}

TEST_F(IntegrityTest, DamageWithoutEndIsCountedEachAndSaidOnce) {
  const auto keys = Keys(100, 32);
  ASSERT_TRUE(worker_.Put(keys).ok());
  daemon_.WaitWritten();
  const auto files = daemon_.Files(0);
  for (const fs::path& file : files) {
    for (uint64_t segment = 0; segment < 4; ++segment) {
      FlipBit(file, kHeaderBytes + segment * 65536 + 7, 1);
    }
  }
  for (const fs::path& file : daemon_.Files(1)) fs::remove(file);
  EXPECT_EQ(worker_.Get(keys).leading_valid(), 0u);
  EXPECT_GE(Corrupt(0), keys.size());
  EXPECT_EQ(log_.Count("files are damaged, is the device sound? tier=nvme"), 1u);
  const auto status = worker_.client().GetStatus();
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->tiers(0).corrupt_reads(), Corrupt(0));
  EXPECT_THAT(status->conditions(),
              testing::Contains(std::to_string(Corrupt(0)) +
                                " reads and stores have met damaged files of tier nvme since the "
                                "start: its device may fail"));
}

TEST_F(IntegrityTest, ATruncatedFileIsNeverDelivered) {
  fs::resize_file(daemon_.Files(0).at(0), kHeaderBytes + 3 * 65536);
  ExpectDamageIsFoundAndNothingWrongDelivered(0);
  EXPECT_GE(Corrupt(0), 1u);
  EXPECT_EQ(log_.Count("files are damaged, is the device sound? tier=nvme"), 1u);
  daemon_.WaitUntil([&] { return daemon_.Files(0).empty(); }, "the truncated file is set aside");
}

TEST_F(IntegrityTest, TwoFilesSwappedAreNeverDelivered) {
  ASSERT_TRUE(worker_.Put({2}).ok());
  daemon_.WaitWritten();
  const auto files = daemon_.Files(0);
  const fs::path spare = files[0].string() + ".spare";
  fs::rename(files[0], spare);
  fs::rename(files[1], files[0]);
  fs::rename(spare, files[1]);
  for (const fs::path& file : daemon_.Files(1)) fs::remove(file);
  const v1::RequestDone done = worker_.Get({1, 2});
  EXPECT_EQ(done.leading_valid(), 0u);
  EXPECT_EQ(done.other_valid_size(), 0);
  EXPECT_GE(Corrupt(0), 2u);
}

TEST_F(IntegrityTest, AMissingFileIsServedFromTheOtherTier) {
  fs::remove(daemon_.Files(0).at(0));
  for (int i = 0; i < 1000 && daemon_.stats().tiers[0].missing_files.Get() == 0; ++i) {
    ASSERT_EQ(worker_.Get({1}).leading_valid(), 1u);
    ASSERT_TRUE(worker_.Holds(1, 0));
  }
  EXPECT_EQ(daemon_.stats().tiers[0].missing_files.Get(), 1u);
}

TEST_F(IntegrityTest, ADamagedHeaderMetWhenTheKeyIsStoredAgainIsReplaced) {
  FlipBit(daemon_.Files(0).at(0), 100, 0);
  FlipBit(daemon_.Files(1).at(0), 100, 0);
  daemon_.RestartWithoutSnapshots();
  Worker worker(daemon_.socket());
  ASSERT_TRUE(worker.Put({1}).ok());
  daemon_.WaitWritten();
  EXPECT_EQ(daemon_.stats().tiers[0].files_set_aside.Get(), 1u);
  EXPECT_EQ(daemon_.stats().tiers[0].corrupt_reads.Get(), 1u);
  EXPECT_EQ(log_.Count("stores meet damaged files, which are replaced: tier=nvme"), 1u);
  EXPECT_EQ(daemon_.stats().tiers[0].chunks_written.Get(), 1u);
  EXPECT_EQ(worker.Get({1}).leading_valid(), 1u);
  EXPECT_TRUE(worker.Holds(1, 0));
}

TEST_F(IntegrityTest, ARestartedDaemonNeverServesAFileDamagedMeanwhile) {
  FlipBit(daemon_.Files(0).at(0), kHeaderBytes + 5, 1);
  FlipBit(daemon_.Files(1).at(0), kHeaderBytes + 5, 1);
  daemon_.Restart();
  Worker worker(daemon_.socket());
  EXPECT_EQ(worker.Get({1}).leading_valid(), 0u);
  EXPECT_EQ(worker.Look({1}), 0u);
  daemon_.WaitUntil([&] { return daemon_.Files(0).empty() && daemon_.Files(1).empty(); },
                    "both damaged files are set aside");
  ASSERT_TRUE(worker.Put({1}).ok());
  EXPECT_EQ(worker.Get({1}).leading_valid(), 1u);
  EXPECT_TRUE(worker.Holds(1, 0));
}

TEST_F(IntegrityTest, PagesThatAPowerCutLostAreMisses) {
  constexpr uint64_t kPages = (kHeaderBytes + 256 * kKiB) / 4096;
  constexpr size_t kLost = 4;  // On both tiers.
  const auto keys = Keys(1, 64);
  ASSERT_TRUE(worker_.Put(keys).ok());
  daemon_.WaitWritten();
  std::mt19937_64 random(7);
  const auto files = daemon_.Files(0);
  ASSERT_EQ(files.size(), keys.size());
  for (size_t i = 0; i < files.size(); ++i) {
    const fs::path name = fs::relative(files[i], daemon_.root(0));
    for (size_t tier = 0; tier < 2; ++tier) {
      const uint64_t pages = i < kLost ? 1 : random() % 3 == 0 ? 1 + random() % 4 : 0;
      for (uint64_t n = 0; n < pages; ++n) {
        LosePage(daemon_.root(tier) / name, i < kLost ? 1 + i : random() % kPages);
      }
    }
  }
  daemon_.RestartWithoutSnapshots();
  Worker worker(daemon_.socket());
  ASSERT_TRUE(worker.Put(keys).ok());  // Files whose header is whole are indexed as they are.
  daemon_.WaitWritten();
  size_t whole = CountWhole(worker, worker.Get(keys), keys);
  EXPECT_LE(whole, keys.size() - kLost);
  EXPECT_GE(whole, keys.size() / 2);
  EXPECT_GE(Corrupt(0) + Corrupt(1), 2 * kLost);
  // What was found is stored anew; some damage may still be hidden behind the other replica.
  for (int round = 0; round < 10 && whole < keys.size(); ++round) {
    ASSERT_TRUE(worker.Put(keys).ok());
    daemon_.WaitWritten();
    whole = CountWhole(worker, worker.Get(keys), keys);
  }
  EXPECT_EQ(whole, keys.size());
}

TEST_F(IntegrityTest, AFileOfAnotherVersionKeepsItsNameAndTheOtherTierHasTheChunk) {
  const fs::path file = daemon_.Files(0).at(0);
  FlipBit(file, 8, 1);  // Of the version, which says how to read the rest.
  const std::string before = ContentsOf(file);
  fs::remove(daemon_.Files(1).at(0));
  daemon_.RestartWithoutSnapshots();
  Worker worker(daemon_.socket());
  ASSERT_TRUE(worker.Put({1}).ok());
  daemon_.WaitWritten();
  EXPECT_EQ(daemon_.stats().tiers[0].failed_writes.Get(), 1u);
  EXPECT_EQ(daemon_.stats().tiers[0].files_set_aside.Get(), 0u);
  EXPECT_EQ(daemon_.stats().tiers[1].chunks_written.Get(), 1u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(worker.Get({1}).leading_valid(), 1u);
    EXPECT_TRUE(worker.Holds(1, 0));
  }
  EXPECT_EQ(daemon_.stats().tiers[0].segments_read.Get(), 0u);
  EXPECT_EQ(daemon_.Files(0), std::vector<fs::path>{file});
  EXPECT_EQ(ContentsOf(file), before);
}

TEST_F(IntegrityTest, FilesRemovedUnderLoadAreMissesAndNothingElse) {
  Load load(daemon_.socket());
  std::mt19937_64 random(30);
  // A third of what a tier has at a time, so that the load meets the holes of each round.
  uint64_t removed = 0;
  for (int round = 0; round < 6; ++round) {
    const uint64_t stores = load.stores() + 2;
    const uint64_t hits = load.hits();
    daemon_.WaitUntil([&] { return load.stores() > stores && load.hits() > hits; }, "work goes on");
    for (const fs::path& file : daemon_.Files(random() % 2)) {
      if (random() % 3 == 0) removed += fs::remove(file) ? 1 : 0;
    }
  }
  load.Stop();
  EXPECT_EQ(load.wrong(), 0u);
  Worker worker(daemon_.socket(), Load::Shape());
  std::vector<std::vector<uint64_t>> batches;
  for (const uint64_t key : load.committed()) {
    if (batches.empty() || batches.back().size() == 32) batches.emplace_back();
    batches.back().push_back(key);
  }
  uint64_t misses = 0;
  for (const auto& keys : batches) {
    misses += keys.size() - CountWhole(worker, worker.Get(keys), keys);
  }
  EXPECT_LE(misses, removed);
  EXPECT_GT(
      daemon_.stats().tiers[0].missing_files.Get() + daemon_.stats().tiers[1].missing_files.Get(),
      0u);
  EXPECT_EQ(Corrupt(0) + Corrupt(1), 0u);
  for (size_t tier = 0; tier < 2; ++tier) {
    EXPECT_EQ(daemon_.stats().tiers[tier].failed_reads.Get(), 0u);
    EXPECT_EQ(daemon_.stats().tiers[tier].times_out.Get(), 0u);
  }
  // What one read brings to light may be a miss once more.
  for (const auto& keys : batches) {
    size_t whole = 0;
    for (int round = 0; round < 3 && whole < keys.size(); ++round) {
      ASSERT_TRUE(worker.Put(keys).ok());
      whole = CountWhole(worker, worker.Get(keys), keys);
    }
    ASSERT_EQ(whole, keys.size());
  }
}

}  // namespace
}  // namespace kvstream
