#include "server/fsck/tree_check.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "server/base/unique_fd.h"
#include "server/store/chunk_format.h"
#include "server/store/chunk_key.h"
#include "server/store/index_snapshot.h"

namespace kvstream::fsck {
namespace {

namespace fs = std::filesystem;

constexpr ChunkShape kShape{.payload_bytes = 10000, .segment_bytes = 4096};

class TreeCheckTest : public testing::Test {
 protected:
  TreeCheckTest() {
    std::string name = (fs::temp_directory_path() / "kvstream-fsck-XXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~TreeCheckTest() override { fs::remove_all(root_); }

  // The path of a sound file of the key.
  fs::path WriteChunk(uint8_t number) {
    store::ChunkKey key;
    key.name_space.bytes[0] = 7;
    key.prefix_hash = std::string(16, static_cast<char>(number));
    const KeyDigest digest = store::DigestOfKey(key);
    const std::string payload(kShape.payload_bytes, static_cast<char>(number));
    store::ChunkHeader header{.encoded_key = store::EncodeKey(key), .shape = kShape};
    for (uint32_t s = 0; s < kShape.segments(); ++s) {
      const auto segment =
          std::as_bytes(std::span(payload))
              .subspan(s * kShape.segment_bytes,
                       std::min<size_t>(kShape.segment_bytes,
                                        payload.size() - s * kShape.segment_bytes));
      header.checksums.push_back(store::SegmentChecksum(digest, s, segment));
    }
    std::string file(kShape.file_bytes(), '\0');
    store::EncodeHeader(header, std::as_writable_bytes(std::span(file)).first(kHeaderBytes));
    file.replace(kHeaderBytes, payload.size(), payload);
    return Write(store::ChunkPath(key.name_space, digest), file);
  }
  fs::path Write(const fs::path& path, const std::string& bytes) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path, std::ios::binary) << bytes;
    return root_ / path;
  }
  static void Flip(const fs::path& path, std::streamoff at) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(at);
    const auto byte = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
  }
  TreeReport Check(bool headers_only = false) {
    bad_.clear();
    const UniqueFd root(open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    auto report = CheckTree(root.get(), {headers_only}, [&](const std::string& path, const auto&) {
      bad_.push_back(root_ / path);
    });
    EXPECT_TRUE(report.ok()) << report.status();
    return report.value_or(TreeReport());
  }

  fs::path root_;
  std::vector<fs::path> bad_;
};

TEST_F(TreeCheckTest, SoundFilesAreCountedByNamespace) {
  WriteChunk(1);
  WriteChunk(2);
  const TreeReport report = Check();
  EXPECT_EQ(report.all.files, 2u);
  EXPECT_EQ(report.all.bytes, 2 * kShape.file_bytes());
  EXPECT_EQ(report.all.damaged, 0u);
  ASSERT_EQ(report.namespaces.size(), 1u);
  EXPECT_EQ(report.namespaces.begin()->first.bytes[0], 7);
  EXPECT_EQ(report.namespaces.begin()->second.files, 2u);
  EXPECT_TRUE(bad_.empty());
}

TEST_F(TreeCheckTest, EveryDamagedFileIsNamedAndLeftWhereItIs) {
  const fs::path header = WriteChunk(1);
  const fs::path payload = WriteChunk(2);
  const fs::path shorter = WriteChunk(3);
  const fs::path misplaced = WriteChunk(4);
  WriteChunk(5);
  Flip(header, 100);
  Flip(payload, 4096 + 5000);
  fs::resize_file(shorter, 4096 + 4096);
  // Sound, under the name of another key.
  const fs::path elsewhere = WriteChunk(6);
  fs::rename(misplaced, elsewhere);

  const TreeReport report = Check();
  EXPECT_EQ(report.all.files, 5u);
  EXPECT_EQ(report.all.damaged, 4u);
  EXPECT_EQ(std::set<fs::path>(bad_.begin(), bad_.end()),
            (std::set<fs::path>{header, payload, shorter, elsewhere}));
  for (const fs::path& path : bad_) EXPECT_TRUE(fs::exists(path));

  EXPECT_EQ(Check(/*headers_only=*/true).all.damaged, 3u) << "all but the payload";
}

TEST_F(TreeCheckTest, WhatIsNoChunkIsToldApart) {
  WriteChunk(1);
  Write("v1/note.txt", "mine");
  const fs::path later = WriteChunk(2);
  {
    std::fstream file(later, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(8);
    file.put(9);  // The version.
  }
  const TreeReport report = Check();
  EXPECT_EQ(report.all.files, 1u);
  EXPECT_EQ(report.foreign, 2u);
  EXPECT_TRUE(bad_.empty());
}

TEST_F(TreeCheckTest, ASnapshotThatIsOfNoUseIsNamed) {
  store::SnapshotWriter writer;
  Write("v1/index/good.kvindex", writer.Header(1));
  const fs::path damaged = Write("v1/index/nvme.kvindex", writer.Header(1));
  Flip(damaged, 50);
  const TreeReport report = Check();
  EXPECT_EQ(report.snapshots, 2u);
  EXPECT_EQ(report.snapshots_unusable, 1u);
  EXPECT_EQ(bad_, std::vector<fs::path>{damaged});
}

TEST_F(TreeCheckTest, ADirectoryThatIsNoTiersIsAnError) {
  const UniqueFd root(open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto report = CheckTree(root.get(), {}, [](const std::string&, const auto&) {});
  EXPECT_EQ(report.status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvstream::fsck
