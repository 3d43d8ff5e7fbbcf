// Damage on disk: never delivered, the other replica is, the event is counted, and the name can be
// used again.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <vector>

#include "server/base/chunk_shape.h"
#include "server/base/unique_fd.h"
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
  ASSERT_TRUE(worker_.Put({1}).ok());
  daemon_.WaitWritten();
  EXPECT_EQ(worker_.Get({1}).leading_valid(), 1u);
  EXPECT_TRUE(worker_.Holds(1, 0));
  EXPECT_EQ(daemon_.Files(0).size(), 1u);
}

TEST_F(IntegrityTest, ATruncatedFileIsNeverDelivered) {
  fs::resize_file(daemon_.Files(0).at(0), kHeaderBytes + 3 * 65536);
  ExpectDamageIsFoundAndNothingWrongDelivered(0);
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
  daemon_.Restart();
  Worker worker(daemon_.socket());
  ASSERT_TRUE(worker.Put({1}).ok());
  daemon_.WaitWritten();
  EXPECT_EQ(daemon_.stats().tiers[0].files_set_aside.Get(), 1u);
  EXPECT_EQ(daemon_.stats().tiers[0].chunks_written.Get(), 1u);
  EXPECT_EQ(worker.Get({1}).leading_valid(), 1u);
  EXPECT_TRUE(worker.Holds(1, 0));
}

TEST_F(IntegrityTest, ARestartedDaemonNeverServesAFileDamagedMeanwhile) {
  FlipBit(daemon_.Files(0).at(0), kHeaderBytes + 5, 1);
  FlipBit(daemon_.Files(1).at(0), kHeaderBytes + 5, 1);
  daemon_.Restart();
  Worker worker(daemon_.socket());
  ASSERT_TRUE(worker.Put({1}).ok());  // Both headers verify: the old files are indexed.
  daemon_.WaitWritten();
  EXPECT_EQ(worker.Get({1}).leading_valid(), 0u);
  EXPECT_EQ(worker.Look({1}), 0u);
  daemon_.WaitUntil([&] { return daemon_.Files(0).empty() && daemon_.Files(1).empty(); },
                    "both damaged files are set aside");
  ASSERT_TRUE(worker.Put({1}).ok());
  EXPECT_EQ(worker.Get({1}).leading_valid(), 1u);
  EXPECT_TRUE(worker.Holds(1, 0));
}

}  // namespace
}  // namespace kvstream
