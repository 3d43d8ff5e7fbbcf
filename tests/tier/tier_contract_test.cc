// What every tier must do, run over all of them.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::tier {
namespace {

using ::testing::Each;
using ::testing::SizeIs;

struct Kind {
  const char* name;
  std::unique_ptr<Harness> (*make)(const TierOptions& options);
};

std::string PathOf(int i) {
  return "v1/0123456789abcdef/a" + std::to_string(i % 10) + "/b0/" + std::to_string(i) + ".kv";
}

class TierContractTest : public testing::TestWithParam<Kind> {
 protected:
  // Small, so that limits are met.
  static TierOptions Small() {
    TierOptions options;
    options.id = TierId{1};
    options.name = "test";
    options.io_bytes = 16 * kKiB;
    options.queue_depth = 4;
    options.open_files_max = 16;
    return options;
  }

  std::unique_ptr<Harness> harness_ = GetParam().make(Small());
};

TEST_P(TierContractTest, BytesReadAreBytesWrittenAtOddSegmentSizes) {
  int i = 0;
  for (const uint64_t payload : {1, 3, 4, 5, 13, 64, 257}) {
    const std::string path = PathOf(i++);
    const Blocks file = Blocks::Pattern((1 + payload) * kBlockBytes, payload);
    ASSERT_EQ(harness_->Write(path, file), absl::StatusCode::kOk);
    EXPECT_EQ(harness_->Contents(path), file.Copy());
    const Blocks copy(file.size());
    const Completion whole = harness_->Read(path, 0, copy.bytes());
    EXPECT_EQ(whole.code, absl::StatusCode::kOk);
    EXPECT_EQ(whole.kind, Completion::Kind::kRead);
    EXPECT_EQ(whole.tier, TierId{1});
    EXPECT_EQ(copy.Copy(), file.Copy());
    // A part from the middle to the end touches only its own memory.
    const Blocks part(file.size());
    const uint64_t from = file.size() / 2 / kBlockBytes * kBlockBytes;
    const auto into = part.bytes().subspan(from);
    ASSERT_EQ(harness_->Read(path, from, into).code, absl::StatusCode::kOk);
    std::vector<std::byte> expected = file.Copy();
    std::fill_n(expected.begin(), from, std::byte{0});
    EXPECT_EQ(part.Copy(), expected);
  }
}

TEST_P(TierContractTest, PiecesAreWrittenOneAfterTheOther) {
  const Blocks file = Blocks::Pattern(12 * kBlockBytes, 5);
  const std::string path = PathOf(0);
  harness_->tier().Write(
      {.ticket = harness_->NextTicket(),
       .path = &path,
       .header = file.Part(0, kBlockBytes),
       .pieces = {file.Part(kBlockBytes, 5 * kBlockBytes), file.Part(6 * kBlockBytes, kBlockBytes),
                  file.Part(7 * kBlockBytes, 5 * kBlockBytes)}});
  const Completion completion = harness_->Await(1).back();
  EXPECT_EQ(completion.code, absl::StatusCode::kOk);
  EXPECT_EQ(completion.kind, Completion::Kind::kWrite);
  EXPECT_EQ(harness_->Contents(path), file.Copy());
}

TEST_P(TierContractTest, MissingFileIsNotFound) {
  const Blocks into(kBlockBytes);
  EXPECT_EQ(harness_->Read(PathOf(0), 0, into.bytes()).code, absl::StatusCode::kNotFound);
  EXPECT_EQ(harness_->tier().stats().read_errors.Get(), 0u);
}

TEST_P(TierContractTest, TruncatedFileIsDataLoss) {
  const Blocks file = Blocks::Pattern(40 * kBlockBytes, 1);
  const Blocks into(file.size());
  int i = 0;
  for (const uint64_t kept : {uint64_t{0}, uint64_t{100}, kBlockBytes, 8 * kBlockBytes,
                              8 * kBlockBytes + 1, file.size() - 1}) {
    const std::string path = PathOf(i++);
    ASSERT_EQ(harness_->Write(path, file), absl::StatusCode::kOk);
    harness_->Truncate(path, kept);
    EXPECT_EQ(harness_->Read(path, 0, into.bytes()).code, absl::StatusCode::kDataLoss) << kept;
  }
}

TEST_P(TierContractTest, ReadBehindTheEndIsDataLoss) {
  ASSERT_EQ(harness_->Write(PathOf(0), Blocks::Pattern(2 * kBlockBytes, 1)), absl::StatusCode::kOk);
  const Blocks into(kBlockBytes);
  EXPECT_EQ(harness_->Read(PathOf(0), 8 * kBlockBytes, into.bytes()).code,
            absl::StatusCode::kDataLoss);
}

TEST_P(TierContractTest, ExistingFileIsToldAndNeverReplaced) {
  const Blocks first = Blocks::Pattern(7 * kBlockBytes, 1);
  const Blocks second = Blocks::Pattern(9 * kBlockBytes, 2);
  const std::string path = PathOf(0);
  ASSERT_EQ(harness_->Write(path, first), absl::StatusCode::kOk);
  ASSERT_EQ(harness_->Write(path, second), absl::StatusCode::kAlreadyExists);
  const Completion completion = harness_->Await(2).back();
  std::vector<std::byte> header = first.Copy();
  header.resize(kBlockBytes);
  EXPECT_EQ(completion.existing_header, header);
  EXPECT_EQ(completion.existing_bytes, first.size());
  EXPECT_EQ(harness_->Contents(path), first.Copy());

  harness_->Truncate(path, 100);
  ASSERT_EQ(harness_->Write(path, second), absl::StatusCode::kAlreadyExists);
  header.resize(100);
  EXPECT_EQ(harness_->Await(3).back().existing_header, header);
  EXPECT_EQ(harness_->Await(3).back().existing_bytes, 100u);
  EXPECT_EQ(harness_->tier().stats().write_errors.Get(), 0u);
}

TEST_P(TierContractTest, EveryRequestGetsExactlyOneCompletion) {
  constexpr int kFiles = 50;
  constexpr int kReads = 500;
  std::vector<std::string> paths;
  std::vector<Blocks> files;
  for (int i = 0; i < kFiles; ++i) {
    paths.push_back(PathOf(i));
    files.push_back(Blocks::Pattern(9 * kBlockBytes, i));
  }
  const std::string missing = PathOf(kFiles);
  for (int i = 0; i < kFiles; ++i) {
    harness_->tier().Write({.ticket = harness_->NextTicket(),
                            .path = &paths[i],
                            .header = files[i].Part(0, kBlockBytes),
                            .pieces = {files[i].Part(kBlockBytes, 8 * kBlockBytes)}});
  }
  ASSERT_THAT(harness_->Await(kFiles), SizeIs(kFiles));
  std::vector<Blocks> copies;
  std::vector<ReadRequest> reads;
  for (int i = 0; i < kReads; ++i) {
    const Blocks& copy = copies.emplace_back(9 * kBlockBytes);
    // Every tenth is of no file.
    const std::string& path = i % 10 == 9 ? missing : paths[i * 7 % kFiles];
    reads.push_back({harness_->NextTicket(), &path, 0, copy.size(), copy.data()});
  }
  harness_->tier().Read(std::span(reads).first(kReads / 2));
  harness_->tier().Read(std::span(reads).subspan(kReads / 2));
  const std::vector<Completion> completions = harness_->Await(kFiles + kReads);
  ASSERT_THAT(completions, SizeIs(kFiles + kReads));
  std::map<uint64_t, int> seen;
  for (const Completion& c : completions) ++seen[c.ticket.value];
  ASSERT_THAT(seen, SizeIs(kFiles + kReads));
  for (size_t i = kFiles; i < completions.size(); ++i) {
    const auto read = static_cast<int>(completions[i].ticket.value) - kFiles - 1;
    if (read % 10 == 9) {
      EXPECT_EQ(completions[i].code, absl::StatusCode::kNotFound);
    } else {
      EXPECT_EQ(completions[i].code, absl::StatusCode::kOk);
      EXPECT_EQ(copies[read].Copy(), files[read * 7 % kFiles].Copy());
    }
  }
  EXPECT_LE(harness_->tier().stats().open_files.Get(), 16u);
  EXPECT_EQ(harness_->tier().stats().unknown_completions.Get(), 0u);
}

TEST_P(TierContractTest, ReadMayBeLargerThanTheRing) {
  const Blocks file = Blocks::Pattern(3 * kMiB + kBlockBytes, 3);
  ASSERT_EQ(harness_->Write(PathOf(0), file), absl::StatusCode::kOk);
  const Blocks copy(file.size());
  ASSERT_EQ(harness_->Read(PathOf(0), 0, copy.bytes()).code, absl::StatusCode::kOk);
  EXPECT_EQ(copy.Copy(), file.Copy());
  EXPECT_EQ(harness_->tier().stats().bytes_read.Get(), file.size());
  EXPECT_EQ(harness_->tier().stats().bytes_written.Get(), file.size());
}

TEST_P(TierContractTest, DamagedFileIsSetAsideAndItsNameIsFree) {
  const Blocks first = Blocks::Pattern(5 * kBlockBytes, 1);
  const Blocks second = Blocks::Pattern(5 * kBlockBytes, 2);
  const std::string path = PathOf(0);
  const Blocks copy(first.size());
  ASSERT_EQ(harness_->Write(path, first), absl::StatusCode::kOk);
  // Now its descriptor may be cached.
  ASSERT_EQ(harness_->Read(path, 0, copy.bytes()).code, absl::StatusCode::kOk);
  const Completion completion = harness_->SetAside(path, [&](int fd) {
    const Blocks seen(first.size());  // Aligned: it may be direct I/O.
    EXPECT_EQ(pread(fd, seen.data(), seen.size(), 0), static_cast<ssize_t>(seen.size()));
    EXPECT_EQ(seen.Copy(), first.Copy());
    return true;
  });
  EXPECT_EQ(completion.kind, Completion::Kind::kSetAside);
  EXPECT_EQ(completion.code, absl::StatusCode::kOk);
  EXPECT_FALSE(harness_->Exists(path));
  EXPECT_EQ(harness_->Read(path, 0, copy.bytes()).code, absl::StatusCode::kNotFound);
  ASSERT_EQ(harness_->Write(path, second), absl::StatusCode::kOk);
  ASSERT_EQ(harness_->Read(path, 0, copy.bytes()).code, absl::StatusCode::kOk);
  EXPECT_EQ(copy.Copy(), second.Copy());
}

TEST_P(TierContractTest, UndamagedFileKeepsItsName) {
  const Blocks file = Blocks::Pattern(5 * kBlockBytes, 1);
  ASSERT_EQ(harness_->Write(PathOf(0), file), absl::StatusCode::kOk);
  EXPECT_EQ(harness_->SetAside(PathOf(0), [](int) { return false; }).code, absl::StatusCode::kOk);
  EXPECT_EQ(harness_->Contents(PathOf(0)), file.Copy());
  const Blocks copy(file.size());
  EXPECT_EQ(harness_->Read(PathOf(0), 0, copy.bytes()).code, absl::StatusCode::kOk);
  EXPECT_EQ(copy.Copy(), file.Copy());
}

TEST_P(TierContractTest, AFileThatCannotBeJudgedKeepsItsName) {
  const Blocks file = Blocks::Pattern(5 * kBlockBytes, 1);
  ASSERT_EQ(harness_->Write(PathOf(0), file), absl::StatusCode::kOk);
  const Completion completion = harness_->SetAside(PathOf(0), [](int) -> absl::StatusOr<bool> {
    return absl::UnavailableError("read chunk file: Input/output error");
  });
  EXPECT_EQ(completion.code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(harness_->Contents(PathOf(0)), file.Copy());
}

TEST_P(TierContractTest, SettingAMissingFileAsideSucceeds) {
  const Completion completion = harness_->SetAside(PathOf(0), [](int) {
    ADD_FAILURE() << "there is no file to ask about";
    return true;
  });
  EXPECT_EQ(completion.code, absl::StatusCode::kOk);
}

TEST_P(TierContractTest, StopWaitsForAllCompletions) {
  const Blocks file = Blocks::Pattern(64 * kBlockBytes, 1);
  const std::string path = PathOf(0);
  const std::string other = PathOf(1);
  ASSERT_EQ(harness_->Write(path, file), absl::StatusCode::kOk);
  const Blocks copies(8 * file.size());
  std::vector<ReadRequest> reads;
  for (uint64_t i = 0; i < 8; ++i) {
    reads.push_back(
        {harness_->NextTicket(), &path, 0, file.size(), copies.data() + i * file.size()});
  }
  harness_->tier().Read(reads);
  harness_->tier().Write({.ticket = harness_->NextTicket(),
                          .path = &other,
                          .header = file.Part(0, kBlockBytes),
                          .pieces = {file.Part(kBlockBytes, file.size() - kBlockBytes)}});
  EXPECT_TRUE(harness_->tier().Stop(harness_->PatientDeadline()));
  const std::vector<Completion> completions = harness_->Await(0);
  EXPECT_THAT(completions, SizeIs(10));
  EXPECT_THAT(completions, Each(testing::Field(&Completion::code, absl::StatusCode::kOk)));
}

INSTANTIATE_TEST_SUITE_P(Tiers, TierContractTest,
                         testing::Values(Kind{"Fake", &MakeFakeHarness},
                                         Kind{"Uring", &MakeUringHarness},
                                         Kind{"Threads", &MakeThreadsHarness}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvstream::tier
