#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "server/base/unique_fd.h"
#include "server/store/chunk_format.h"
#include "server/store/encoding.h"
#include "tests/store/sample.h"

namespace kvstream::store {
namespace {

// Segments larger than one read of the check, and a short last one.
constexpr ChunkShape kFileShape{.payload_bytes = 3 * kMiB + 4096 + 17, .segment_bytes = 2 * kMiB};

UniqueFd FileOf(std::span<const std::byte> bytes) {
  UniqueFd fd(::memfd_create("file_check_test", MFD_CLOEXEC));
  EXPECT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  return fd;
}

bool IsDamaged(std::span<const std::byte> bytes, const ChunkKey& key = SampleKey()) {
  return FileIsDamaged(FileOf(bytes).get(), DigestOfKey(key)).value();
}

TEST(FileCheckTest, WholeFilesAreNotDamaged) {
  EXPECT_FALSE(IsDamaged(SampleFile(SampleKey(), kFileShape)));
  EXPECT_FALSE(IsDamaged(SampleFile(SampleKey(), {1, 4096})));
  EXPECT_FALSE(IsDamaged(SampleFile(SampleKey(), {4 * kMiB, 2 * kMiB})));
  EXPECT_FALSE(IsDamaged(SampleFile(SampleKey(), {kSegmentsMax * uint64_t{4096}, 4096})));
}

TEST(FileCheckTest, OneBitAnywhereInThePayloadIsDamage) {
  std::vector<std::byte> file = SampleFile(SampleKey(), kFileShape);
  for (uint64_t at : {uint64_t{0}, kMiB - 1, kMiB, 2 * kMiB - 1, 2 * kMiB, 3 * kMiB,
                      kFileShape.payload_bytes - 1}) {
    file[kHeaderBytes + at] ^= std::byte{0x10};
    EXPECT_TRUE(IsDamaged(file)) << at;
    file[kHeaderBytes + at] ^= std::byte{0x10};
  }
  EXPECT_FALSE(IsDamaged(file));
}

TEST(FileCheckTest, PaddingIsNotPartOfTheChunk) {
  std::vector<std::byte> file = SampleFile(SampleKey(), kFileShape);
  file.back() ^= std::byte{1};
  EXPECT_FALSE(IsDamaged(file));
}

TEST(FileCheckTest, TruncatedFilesAreDamage) {
  std::vector<std::byte> file = SampleFile(SampleKey(), kFileShape);
  for (uint64_t bytes :
       {kFileShape.file_bytes() - 1, kHeaderBytes, kHeaderBytes - 1, uint64_t{0}}) {
    file.resize(bytes);
    EXPECT_TRUE(IsDamaged(file)) << bytes;
  }
}

TEST(FileCheckTest, FileOfAnotherKeyIsDamage) {
  EXPECT_TRUE(IsDamaged(SampleFile(SampleKey(1), kFileShape), SampleKey(2)));
}

TEST(FileCheckTest, SwappedSegmentsAreDamage) {
  const ChunkShape shape{.payload_bytes = 2 * kMiB, .segment_bytes = kMiB};
  std::vector<std::byte> file = SampleFile(SampleKey(), shape);
  const auto first = file.begin() + kHeaderBytes;
  std::swap_ranges(first, first + kMiB, first + kMiB);
  EXPECT_TRUE(IsDamaged(file));
}

TEST(FileCheckTest, UnknownVersionIsNotDamage) {
  std::vector<std::byte> file = SampleFile(SampleKey(), kFileShape);
  StoreLe(kFormatVersion + 1, &file[8]);
  EXPECT_FALSE(IsDamaged(file));
}

TEST(FileCheckTest, WhatIsReadComesInOrderAndIsTheWholeFile) {
  const std::vector<std::byte> file = SampleFile(SampleKey(), kFileShape);
  std::vector<std::byte> seen;
  const auto header = ReadChunkFile(FileOf(file).get(), DigestOfKey(SampleKey()),
                                    [&](std::span<const std::byte> blocks) {
                                      EXPECT_EQ(blocks.size() % kHeaderBytes, 0u);
                                      seen.insert(seen.end(), blocks.begin(), blocks.end());
                                      return true;
                                    });
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(seen, file);
  EXPECT_EQ(header->content, SampleHeader(SampleKey(), kFileShape).content);
  EXPECT_EQ(NamespaceOf(*header), SampleKey().name_space);
}

TEST(FileCheckTest, AReadingThatIsGivenUpIsNoDamage) {
  const UniqueFd file = FileOf(SampleFile(SampleKey(), kFileShape));
  int pieces = 0;
  const auto header = ReadChunkFile(file.get(), DigestOfKey(SampleKey()),
                                    [&](std::span<const std::byte>) { return ++pieces < 3; });
  EXPECT_TRUE(absl::IsCancelled(header.status())) << header.status();
  EXPECT_EQ(pieces, 3);
}

TEST(FileCheckTest, AFileThatCannotBeReadIsToldFromADamagedOne) {
  const auto go_on = [](std::span<const std::byte>) { return true; };
  const KeyDigest key = DigestOfKey(SampleKey());
  EXPECT_TRUE(absl::IsUnavailable(ReadChunkFile(-1, key, go_on).status()));
  // Open, and its reads fail.
  const UniqueFd empty = FileOf({});
  const std::string path = "/proc/self/fd/" + std::to_string(empty.get());
  const UniqueFd write_only(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(::ftruncate(write_only.get(), static_cast<off_t>(kFileShape.file_bytes())), 0);
  EXPECT_TRUE(absl::IsUnavailable(ReadChunkFile(write_only.get(), key, go_on).status()));
  std::vector<std::byte> file = SampleFile(SampleKey(), kFileShape);
  file[kHeaderBytes] ^= std::byte{1};
  EXPECT_TRUE(absl::IsDataLoss(ReadChunkFile(FileOf(file).get(), key, go_on).status()));
}

TEST(FileCheckTest, AReadErrorIsNoDamage) {
  const KeyDigest key = DigestOfKey(SampleKey());
  EXPECT_TRUE(absl::IsUnavailable(FileIsDamaged(-1, key).status()));
  // Damaged in truth, but nobody has seen it.
  const UniqueFd file = FileOf(std::vector<std::byte>(kHeaderBytes));
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  const UniqueFd write_only(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  EXPECT_TRUE(absl::IsUnavailable(FileIsDamaged(write_only.get(), key).status()));
}

}  // namespace
}  // namespace kvstream::store
