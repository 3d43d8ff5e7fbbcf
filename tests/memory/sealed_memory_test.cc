#include "server/memory/sealed_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "server/base/types.h"

namespace kvstream::memory {
namespace {

using ::testing::HasSubstr;

// A peer's memfd.
UniqueFd Memfd(uint64_t bytes, int seals, unsigned flags = MFD_ALLOW_SEALING) {
  UniqueFd fd(::memfd_create("peer", MFD_CLOEXEC | flags));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  if (seals != 0) {
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

UniqueFd Duplicate(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

void ExpectRefused(UniqueFd fd, uint64_t bytes, const std::string& cause) {
  const auto attached = SealedMemory::Attach(std::move(fd), bytes);
  EXPECT_EQ(attached.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(attached.status().message()), HasSubstr(cause));
}

TEST(SealedMemoryTest, NewMemoryIsZeroAndRoundedUpToAPage) {
  const auto memory = SealedMemory::Create("test", 4097, false);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*memory)->size(), 8192u);
  EXPECT_FALSE((*memory)->huge_pages());
  const auto bytes = (*memory)->bytes();
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0}), 8192);
}

TEST(SealedMemoryTest, KernelRefusesToResizeOrUnsealIt) {
  const auto memory = SealedMemory::Create("test", 8192, false);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(::ftruncate((*memory)->fd(), 4096), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate((*memory)->fd(), 16384), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::fcntl((*memory)->fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
}

uint64_t TakenBytes(const SealedMemory& memory) {
  struct stat file {};
  EXPECT_EQ(::fstat(memory.fd(), &file), 0);
  return static_cast<uint64_t>(file.st_blocks) * 512;
}

TEST(SealedMemoryTest, ShrunkMemoryKeepsItsStartAndGivesTheRestBack) {
  const auto memory = SealedMemory::Create("test", 64 * kKiB, false);
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::ranges::fill((*memory)->bytes(), std::byte{9});
  const std::byte* const start = (*memory)->bytes().data();
  EXPECT_GE(TakenBytes(**memory), 64 * kKiB);
  ASSERT_TRUE((*memory)->Shrink(16 * kKiB - 1).ok());
  EXPECT_EQ((*memory)->size(), 16 * kKiB);
  EXPECT_EQ((*memory)->bytes().data(), start);
  EXPECT_EQ(std::ranges::count((*memory)->bytes(), std::byte{9}), 16 * kKiB);
  EXPECT_LE(TakenBytes(**memory), 32 * kKiB);
  ASSERT_TRUE((*memory)->Shrink(16 * kKiB).ok());
  EXPECT_EQ((*memory)->size(), 16 * kKiB);
}

TEST(SealedMemoryTest, TwoMappingsShareBytes) {
  const auto made = SealedMemory::Create("test", 8192, false);
  ASSERT_TRUE(made.ok()) << made.status();
  const auto attached = SealedMemory::Attach(Duplicate((*made)->fd()), 0);
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ((*attached)->size(), 8192u);
  EXPECT_NE((*attached)->bytes().data(), (*made)->bytes().data());
  (*made)->bytes()[8191] = std::byte{42};
  EXPECT_EQ((*attached)->bytes()[8191], std::byte{42});
  (*attached)->bytes()[0] = std::byte{7};
  EXPECT_EQ((*made)->bytes()[0], std::byte{7});
}

TEST(SealedMemoryTest, MappingOutlivesThePeersDescriptor) {
  auto made = SealedMemory::Create("test", 4096, false);
  ASSERT_TRUE(made.ok()) << made.status();
  (*made)->bytes()[5] = std::byte{5};
  const auto attached = SealedMemory::Attach(Duplicate((*made)->fd()), 0);
  ASSERT_TRUE(attached.ok()) << attached.status();
  made->reset();
  EXPECT_EQ((*attached)->bytes()[5], std::byte{5});
}

TEST(SealedMemoryTest, HugePagesAreUsedOrReplacedByOrdinaryOnes) {
  const auto memory = SealedMemory::Create("test", 4096, true);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*memory)->size(), (*memory)->huge_pages() ? 2 * kMiB : 4096);
  (*memory)->bytes().back() = std::byte{1};
}

TEST(SealedMemoryTest, ZeroBytesAreRefused) {
  EXPECT_EQ(SealedMemory::Create("test", 0, false).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SealedMemoryTest, MoreThanTheMachineCanMapIsResourceExhausted) {
  for (uint64_t bytes : {uint64_t{1} << 52, ~uint64_t{0}}) {
    EXPECT_EQ(SealedMemory::Create("test", bytes, false).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
}

TEST(SealedMemoryTest, AttachedSizeIsWhatWasAskedFor) {
  const auto attached = SealedMemory::Attach(Memfd(12288, F_SEAL_SHRINK), 5000);
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ((*attached)->size(), 5000u);
  EXPECT_EQ((*attached)->bytes().size(), 5000u);
}

TEST(SealedMemoryTest, PeersMemoryOfOddSizeIsTakenWhole) {
  const auto attached = SealedMemory::Attach(Memfd(5000, F_SEAL_SHRINK), 0);
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ((*attached)->size(), 5000u);
}

TEST(SealedMemoryTest, UnsealedMemoryIsRefused) {
  ExpectRefused(Memfd(4096, 0), 0, "not sealed against shrinking");
  ExpectRefused(Memfd(4096, F_SEAL_GROW), 0, "not sealed against shrinking");
  ExpectRefused(Memfd(4096, 0, 0), 0, "not sealed against shrinking");
}

TEST(SealedMemoryTest, MemorySealedAgainstWritingIsRefused) {
  ExpectRefused(Memfd(4096, F_SEAL_SHRINK | F_SEAL_WRITE), 0, "sealed against writing");
  ExpectRefused(Memfd(4096, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE), 0, "sealed against writing");
}

TEST(SealedMemoryTest, MemorySmallerThanAskedForIsRefused) {
  ExpectRefused(Memfd(4096, F_SEAL_SHRINK), 4097, "less than 4097");
  ExpectRefused(Memfd(0, F_SEAL_SHRINK), 0, "empty");
}

TEST(SealedMemoryTest, RegularFileIsRefused) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), &std::fclose);
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(::ftruncate(::fileno(file.get()), 4096), 0);
  // On a file system in memory a file has seals, but never the one that counts.
  const auto attached = SealedMemory::Attach(Duplicate(::fileno(file.get())), 0);
  EXPECT_EQ(attached.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SealedMemoryTest, PipeIsRefused) {
  std::array<int, 2> ends;
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const UniqueFd write_end(ends[1]);
  ExpectRefused(UniqueFd(ends[0]), 0, "not a memfd");
}

TEST(SealedMemoryTest, ReadOnlyDescriptorIsRefused) {
  const UniqueFd memfd = Memfd(4096, F_SEAL_SHRINK);
  const std::string path = "/proc/self/fd/" + std::to_string(memfd.get());
  UniqueFd read_only(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(read_only.valid());
  EXPECT_EQ(SealedMemory::Attach(std::move(read_only), 0).status().code(),
            absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace kvstream::memory
