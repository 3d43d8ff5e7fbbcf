// What only the tier over files can show: refusals of the file system, its descriptors and
// temporaries, and writers that meet.
#include "server/tier/file_tier.h"

#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/clock.h"
#include "tests/support/faulty_queue.h"
#include "tests/support/log_recorder.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::tier {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

WriteRequest WriteOf(Ticket ticket, const std::string* path, const Blocks& file) {
  return {.ticket = ticket,
          .path = path,
          .header = file.Part(0, kBlockBytes),
          .pieces = {file.Part(kBlockBytes, file.size() - kBlockBytes)}};
}

// How many descriptors the process has open.
size_t Descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

class FileTierTest : public testing::TestWithParam<IoEngine> {
 protected:
  static TierOptions OptionsFor(const std::string& root) {
    TierOptions options;
    options.name = "test";
    options.root = root;
    options.io_engine = GetParam();
    return options;
  }

  std::unique_ptr<Tier> Open(TierOptions options, std::span<std::byte> memory = {}) {
    auto tier = OpenFileTier(options, memory, &recorder_);
    EXPECT_TRUE(tier.ok()) << tier.status();
    return tier.ok() ? *std::move(tier) : nullptr;
  }

  test::LogRecorder log_;  // Before the threads that log.
  TemporaryFolder folder_;
  Recorder recorder_;
};

TEST_P(FileTierTest, MissingRootIsNotFoundAndNamed) {
  const std::string root = folder_.path() + "/missing";
  const auto tier = OpenFileTier(OptionsFor(root), {}, &recorder_);
  EXPECT_EQ(tier.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(tier.status().message()), HasSubstr(root));
}

TEST_P(FileTierTest, RootThatIsNoFolderIsRefused) {
  const std::string root = folder_.path() + "/file";
  ASSERT_GE(UniqueFd(open(root.c_str(), O_CREAT | O_WRONLY, 0600)).get(), 0);
  const auto tier = OpenFileTier(OptionsFor(root), {}, &recorder_);
  EXPECT_FALSE(tier.ok());
  EXPECT_THAT(std::string(tier.status().message()), HasSubstr(root));
}

TEST_P(FileTierTest, UnwritableRootIsPermissionDeniedAndNamed) {
  for (const bool folder_exists : {false, true}) {
    if (folder_exists) {
      ASSERT_EQ(mkdir((folder_.path() + "/v1").c_str(), 0555), 0);
    }
    ASSERT_EQ(chmod(folder_.path().c_str(), 0555), 0);
    // Root may write anywhere; its threads may not once they touch files as somebody else.
    if (geteuid() == 0) setfsuid(65534);
    const auto tier = OpenFileTier(OptionsFor(folder_.path()), {}, &recorder_);
    if (geteuid() == 0) setfsuid(0);
    ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
    EXPECT_EQ(tier.status().code(), absl::StatusCode::kPermissionDenied) << tier.status();
    EXPECT_THAT(std::string(tier.status().message()), HasSubstr(folder_.path() + "/v1"));
  }
}

TEST_P(FileTierTest, SizesThatMakeNoSenseAreInvalid) {
  for (const auto& spoil : std::vector<std::function<void(TierOptions*)>>{
           [](TierOptions* o) { o->io_bytes = 3 * kBlockBytes; },
           [](TierOptions* o) { o->io_bytes = kBlockBytes / 2; },
           [](TierOptions* o) { o->queue_depth = 0; }, [](TierOptions* o) { o->io_threads = 0; },
           [](TierOptions* o) { o->io_threads = 257; },
           [](TierOptions* o) { o->open_files_max = 0; }}) {
    TierOptions options = OptionsFor(folder_.path());
    spoil(&options);
    EXPECT_EQ(OpenFileTier(options, {}, &recorder_).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(FileTierTest, ProbeLeavesOnlyItsFolder) {
  const auto tier = Open(OptionsFor(folder_.path()));
  ASSERT_NE(tier, nullptr);
  EXPECT_TRUE(std::filesystem::is_directory(folder_.path() + "/v1"));
  EXPECT_THAT(folder_.Files(), IsEmpty());
  EXPECT_EQ(tier->facts().io_engine, GetParam() == IoEngine::kUring ? "io_uring" : "threads");
  EXPECT_GT(tier->facts().alignment, 0u);
  EXPECT_LE(tier->facts().alignment, kBlockBytes);
  EXPECT_EQ(tier->stats().bytes_written.Get(), 0u);
  EXPECT_TRUE(tier->Stop(Now() + 60 * kSecond));
}

TEST_P(FileTierTest, MemoryFileSystemSaysWhichIoItGives) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "there is no writable /dev/shm";
  const TemporaryFolder shm("/dev/shm");
  // What the file system says to a plain open decides what the tier must have found.
  const UniqueFd probe(open((shm.path() + "/x").c_str(), O_CREAT | O_WRONLY | O_DIRECT, 0600));
  const auto tier = Open(OptionsFor(shm.path()));
  ASSERT_NE(tier, nullptr);
  EXPECT_EQ(tier->facts().direct, probe.valid());
  EXPECT_EQ(tier->facts().buffered_reason.empty(), probe.valid());
  EXPECT_EQ(log_.Count("using buffered I/O"), probe.valid() ? 0u : 1u);
  const Blocks file = Blocks::Pattern(300 * kBlockBytes, 1);
  const Blocks copy(file.size());
  const std::string path = "v1/aa/bb/cc/file.kv";
  tier->Write(WriteOf(Ticket{1}, &path, file));
  recorder_.Await(1);
  const ReadRequest read{Ticket{2}, &path, 0, copy.size(), copy.data()};
  tier->Read({&read, 1});
  recorder_.Await(2);
  EXPECT_THAT(recorder_.completions(), Each(Field(&Completion::code, absl::StatusCode::kOk)));
  EXPECT_EQ(copy.Copy(), file.Copy());
  EXPECT_TRUE(tier->Stop(Now() + 60 * kSecond));
}

TEST_P(FileTierTest, ReadsAndWritesGoThroughRegisteredMemory) {
  constexpr uint64_t kFile = 600 * kBlockBytes;
  const Blocks memory = Blocks::Pattern(2 * kFile, 9);
  TierOptions options = OptionsFor(folder_.path());
  options.fsync = true;
  const auto tier = Open(options, memory.bytes());
  ASSERT_NE(tier, nullptr);
  if (!tier->facts().registered_buffers) GTEST_SKIP() << "nothing is registered";
  const std::string path = "v1/aa/bb/cc/file.kv";
  tier->Write({.ticket = Ticket{1},
               .path = &path,
               .header = memory.Part(0, kBlockBytes),
               .pieces = {memory.Part(kBlockBytes, kFile - kBlockBytes)}});
  recorder_.Await(1);
  const ReadRequest read{Ticket{2}, &path, 0, kFile, memory.data() + kFile};
  tier->Read({&read, 1});
  recorder_.Await(2);
  EXPECT_THAT(recorder_.completions(), Each(Field(&Completion::code, absl::StatusCode::kOk)));
  EXPECT_TRUE(std::ranges::equal(memory.Part(0, kFile), memory.Part(kFile, kFile)));
  EXPECT_TRUE(tier->Stop(Now() + 60 * kSecond));
}

TEST_P(FileTierTest, NoTemporaryIsLeftAfterManyWrites) {
  const auto tier = Open(OptionsFor(folder_.path()));
  ASSERT_NE(tier, nullptr);
  const Blocks file = Blocks::Pattern(3 * kBlockBytes, 1);
  std::vector<std::string> paths;
  for (int i = 0; i < 200; ++i) {
    // Every second meets a file that the one before it publishes.
    paths.push_back("v1/ns/" + std::to_string(i % 7) + "/x/" + std::to_string(i / 2) + ".kv");
    if (i % 2 == 1) paths[i] = paths[i - 1];
  }
  for (int i = 0; i < 200; ++i) tier->Write(WriteOf(Ticket{uint64_t(i) + 1}, &paths[i], file));
  recorder_.Await(200);
  const auto completions = recorder_.completions();
  EXPECT_EQ(std::ranges::count(completions, absl::StatusCode::kOk, &Completion::code), 100);
  EXPECT_EQ(std::ranges::count(completions, absl::StatusCode::kAlreadyExists, &Completion::code),
            100);
  std::vector<std::string> expected = paths;
  std::ranges::sort(expected);
  expected.erase(std::ranges::unique(expected).begin(), expected.end());
  EXPECT_EQ(folder_.Files(), expected);
  EXPECT_TRUE(tier->Stop(Now() + 60 * kSecond));
}

TEST_P(FileTierTest, FolderThatCannotBeMadeFailsTheWriteOnly) {
  const auto tier = Open(OptionsFor(folder_.path()));
  ASSERT_NE(tier, nullptr);
  const Blocks file = Blocks::Pattern(3 * kBlockBytes, 1);
  const std::string name = "v1/file";
  const std::string below = "v1/file/aa/bb/x.kv";
  tier->Write(WriteOf(Ticket{1}, &name, file));
  recorder_.Await(1);
  tier->Write(WriteOf(Ticket{2}, &below, file));
  recorder_.Await(2);
  EXPECT_EQ(recorder_.completions()[1].error, ENOTDIR);
  EXPECT_EQ(tier->stats().write_errors.Get(), 1u);
  EXPECT_THAT(folder_.Files(), ElementsAre(name));
  EXPECT_TRUE(tier->Stop(Now() + 60 * kSecond));
}

TEST_P(FileTierTest, WhatIsNoFileIsNotSetAside) {
  const auto tier = Open(OptionsFor(folder_.path()));
  ASSERT_NE(tier, nullptr);
  const std::string inside = "v1/aa/bb/x.kv/kept";
  std::filesystem::create_directories(folder_.path() + "/v1/aa/bb/x.kv");
  std::ofstream(folder_.path() + "/" + inside) << "somebody's";
  const std::string path = "v1/aa/bb/x.kv";
  tier->SetAside({Ticket{1}, &path, [](int) { return true; }});
  recorder_.Await(1);
  EXPECT_EQ(recorder_.completions()[0].error, EISDIR);
  EXPECT_THAT(folder_.Files(), ElementsAre(inside));
  EXPECT_TRUE(tier->Stop(Now() + 60 * kSecond));
}

TEST_P(FileTierTest, NoDescriptorIsLeftOpen) {
  const size_t before = Descriptors();
  TierOptions options = OptionsFor(folder_.path());
  options.open_files_max = 8;
  auto tier = Open(options);
  ASSERT_NE(tier, nullptr);
  const Blocks file = Blocks::Pattern(3 * kBlockBytes, 1);
  std::vector<std::string> paths;
  for (int i = 0; i < 40; ++i) paths.push_back("v1/a/b/c/" + std::to_string(i));
  uint64_t ticket = 0;
  for (const std::string& path : paths) tier->Write(WriteOf(Ticket{++ticket}, &path, file));
  for (const std::string& path : paths) tier->Write(WriteOf(Ticket{++ticket}, &path, file));
  recorder_.Await(ticket);
  const Blocks copies(40 * kBlockBytes);
  std::vector<ReadRequest> reads;
  for (int i = 0; i < 40; ++i) {
    reads.push_back({Ticket{++ticket}, &paths[i], 0, kBlockBytes, copies.data() + i * kBlockBytes});
  }
  tier->Read(reads);
  recorder_.Await(ticket);
  EXPECT_LE(tier->stats().open_files.Get(), 8u);
  for (const std::string& path : paths) {
    tier->SetAside(
        {.ticket = Ticket{++ticket}, .path = &path, .damaged = [](int) { return true; }});
  }
  EXPECT_TRUE(tier->Stop(Now() + 60 * kSecond));
  EXPECT_EQ(recorder_.count(), ticket);
  EXPECT_EQ(tier->stats().open_files.Get(), 0u);
  tier.reset();
  EXPECT_EQ(Descriptors(), before);
  EXPECT_THAT(folder_.Files(), IsEmpty());
}

TEST_P(FileTierTest, OfTwoWritersOfANameOneWins) {
  Recorder other_recorder;
  const auto tier = Open(OptionsFor(folder_.path()));
  auto other = OpenFileTier(OptionsFor(folder_.path()), {}, &other_recorder);
  ASSERT_TRUE(tier != nullptr && other.ok());
  constexpr size_t kFiles = 32;
  const Blocks mine = Blocks::Pattern(5 * kBlockBytes, 1);
  const Blocks theirs = Blocks::Pattern(5 * kBlockBytes, 2);
  std::vector<std::string> paths;
  for (size_t i = 0; i < kFiles; ++i) paths.push_back("v1/a/b/c/" + std::to_string(i));
  for (size_t i = 0; i < kFiles; ++i) {
    tier->Write(WriteOf(Ticket{i}, &paths[i], mine));
    (*other)->Write(WriteOf(Ticket{i}, &paths[i], theirs));
  }
  recorder_.Await(kFiles);
  other_recorder.Await(kFiles);
  std::vector<absl::StatusCode> codes(kFiles);
  for (const Completion& c : recorder_.completions()) codes[c.ticket.value] = c.code;
  for (const Completion& c : other_recorder.completions()) {
    const bool i_won = codes[c.ticket.value] == absl::StatusCode::kOk;
    EXPECT_THAT((std::vector{codes[c.ticket.value], c.code}),
                UnorderedElementsAre(absl::StatusCode::kOk, absl::StatusCode::kAlreadyExists));
    const Blocks copy(mine.size());
    const UniqueFd fd(
        open((folder_.path() + "/" + paths[c.ticket.value]).c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(pread(fd.get(), copy.data(), copy.size(), 0), static_cast<ssize_t>(copy.size()));
    EXPECT_EQ(copy.Copy(), (i_won ? mine : theirs).Copy());
  }
  EXPECT_TRUE(tier->Stop(Now() + 60 * kSecond));
  EXPECT_TRUE((*other)->Stop(Now() + 60 * kSecond));
}

TEST_P(FileTierTest, LinkAtTheNameIsNotFollowed) {
  const auto tier = Open(OptionsFor(folder_.path()));
  ASSERT_NE(tier, nullptr);
  ASSERT_EQ(symlink("/etc/passwd", (folder_.path() + "/v1/link.kv").c_str()), 0);
  const std::string path = "v1/link.kv";
  const Blocks file = Blocks::Pattern(2 * kBlockBytes, 1);
  const ReadRequest read{Ticket{1}, &path, 0, kBlockBytes, file.data()};
  tier->Read({&read, 1});
  recorder_.Await(1);
  EXPECT_EQ(recorder_.completions()[0].error, ELOOP);
  tier->Write(WriteOf(Ticket{2}, &path, file));
  recorder_.Await(2);
  EXPECT_EQ(recorder_.completions()[1].code, absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(recorder_.completions()[1].existing_header, IsEmpty());
  EXPECT_TRUE(tier->Stop(Now() + 60 * kSecond));
}

TEST_P(FileTierTest, StopGivesUpOnWhatNeverEnds) {
  // The tier may touch these for ever: they are never freed, and reachable for leak checks.
  static auto* const never = new std::latch(1);
  static auto* const copy = new Blocks(kBlockBytes);
  static auto* const path = new std::string("v1/file.kv");
  const auto hang = [](const Operation& operation, int32_t result) {
    if (operation.kind == Operation::Kind::kRead) never->wait();
    return result;
  };
  auto opened = FileTier::Open(OptionsFor(folder_.path()), {}, &recorder_,
                               test::FaultyQueue::Wrapper(nullptr, hang));
  ASSERT_TRUE(opened.ok()) << opened.status();
  auto tier = *std::move(opened);
  const Blocks file = Blocks::Pattern(2 * kBlockBytes, 1);
  tier->Write(WriteOf(Ticket{1}, path, file));
  recorder_.Await(1);
  const ReadRequest read{Ticket{2}, path, 0, kBlockBytes, copy->data()};
  tier->Read({&read, 1});
  // The other direction works meanwhile.
  const std::string other = "v1/other.kv";
  tier->Write(WriteOf(Ticket{3}, &other, file));
  recorder_.Await(2);
  EXPECT_EQ(recorder_.completions()[1].ticket, Ticket{3});
  EXPECT_FALSE(tier->Stop(Now() + 10 * kMillisecond));
  tier.reset();
  EXPECT_EQ(recorder_.count(), 2u);
}

TEST_P(FileTierTest, SlowCheckOfAFileHoldsNobodyElse) {
  const auto tier = Open(OptionsFor(folder_.path()));
  ASSERT_NE(tier, nullptr);
  const Blocks file = Blocks::Pattern(2 * kBlockBytes, 1);
  const std::string bad = "v1/bad.kv";
  const std::string good = "v1/good.kv";
  tier->Write(WriteOf(Ticket{1}, &bad, file));
  recorder_.Await(1);
  std::latch checked(1);
  tier->SetAside({.ticket = Ticket{2}, .path = &bad, .damaged = [&](int) {
                    checked.wait();
                    return true;
                  }});
  tier->Write(WriteOf(Ticket{3}, &good, file));
  recorder_.Await(2);
  const Blocks copy(kBlockBytes);
  const ReadRequest read{Ticket{4}, &good, 0, kBlockBytes, copy.data()};
  tier->Read({&read, 1});
  recorder_.Await(3);
  EXPECT_EQ(recorder_.completions()[2].ticket, Ticket{4});
  checked.count_down();
  EXPECT_TRUE(tier->Stop(Now() + 60 * kSecond));
  EXPECT_EQ(recorder_.count(), 4u);
}

INSTANTIATE_TEST_SUITE_P(Engines, FileTierTest,
                         testing::Values(IoEngine::kUring, IoEngine::kThreads),
                         [](const auto& test) {
                           return test.param == IoEngine::kUring ? "Uring" : "Threads";
                         });

}  // namespace
}  // namespace kvstream::tier
