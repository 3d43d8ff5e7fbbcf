#include "server/catalog/node_log.h"

#include <fstream>

#include "server/catalog/node_id.h"
#include "tests/catalog/catalog_rig.h"

namespace kvstream::catalog {
namespace {

namespace fs = std::filesystem;

class NodeLogTest : public CatalogRig {
 protected:
  NodeLog Open(uint8_t node = 1) {
    auto log = NodeLog::Open(&nodes_, NodeOf(node));
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  std::vector<uint64_t> Files(uint8_t node = 1) {
    std::vector<uint64_t> files;
    const absl::Status read =
        ReadNodeFiles(nodes_, NodeOf(node), [&](const store::CatalogEntry& file) {
          files.push_back(NumberOf(file.chunk.key));
          return true;
        });
    EXPECT_TRUE(read.ok()) << read;
    return files;
  }
  fs::path PathOf(uint64_t number, uint8_t node = 1) const {
    return Path(kNodesFolder) / ToString(LogName{NodeOf(node), number});
  }

  Counter calls_;
  const Folder nodes_ = *Folder::Open(Root().get(), kNodesFolder, &calls_);
};

TEST_F(NodeLogTest, NamesSortByNumberAndNothingElseIsOne) {
  const LogName name{NodeOf(3), 255};
  EXPECT_EQ(ToString(name), "03ff0000000000000000000000000000.00000000000000ff.log");
  EXPECT_LT(ToString(name), ToString(LogName{NodeOf(3), 256}));
  ASSERT_TRUE(ParseLogName(ToString(name)).has_value());
  EXPECT_EQ(ParseLogName(ToString(name))->node, name.node);
  EXPECT_EQ(ParseLogName(ToString(name))->number, 255u);
  for (const std::string& other :
       {std::string(), ToString(name) + "x", "." + ToString(name), std::string(53, '0'),
        std::string("03FF0000000000000000000000000000.00000000000000ff.log"),
        std::string("03ff0000000000000000000000000000.0000000000000 ff.log")}) {
    EXPECT_FALSE(ParseLogName(other).has_value()) << other;
  }
}

TEST_F(NodeLogTest, ARestartGoesOnWithTheLog) {
  EXPECT_TRUE(Files().empty()) << "there is none yet";
  EXPECT_TRUE(Open().Append(FrameOf(1, {1, 2, 3})).ok());
  EXPECT_TRUE(Open().Append(FrameOf(1, {4}, {2})).ok());
  EXPECT_TRUE(Open(2).Append(FrameOf(2, {9})).ok());
  EXPECT_EQ(Files(), (std::vector<uint64_t>{1, 3, 4}));
  EXPECT_EQ(Files(2), (std::vector<uint64_t>{9}));
}

TEST_F(NodeLogTest, WhatACrashHasLeftOfAFrameIsLeftOut) {
  const std::string second = FrameOf(1, {2});
  for (size_t bytes = 0; bytes < second.size(); bytes += 5) {
    fs::remove_all(Path(kNodesFolder));
    fs::create_directories(Path(kNodesFolder));
    const auto nodes = Folder::Open(Root().get(), kNodesFolder, &calls_);
    auto first = NodeLog::Open(&*nodes, NodeOf(1));
    ASSERT_TRUE(first.ok() && first->Append(FrameOf(1, {1})).ok());
    std::ofstream(PathOf(1), std::ios::app | std::ios::binary) << second.substr(0, bytes);
    auto again = NodeLog::Open(&*nodes, NodeOf(1));
    ASSERT_TRUE(again.ok() && again->Append(FrameOf(1, {3})).ok());
    std::vector<uint64_t> files;
    ASSERT_TRUE(ReadNodeFiles(*nodes, NodeOf(1), [&](const store::CatalogEntry& file) {
                  files.push_back(NumberOf(file.chunk.key));
                  return true;
                }).ok());
    EXPECT_EQ(files, (std::vector<uint64_t>{1, 3})) << bytes;
  }
}

TEST_F(NodeLogTest, ALogThatIsNoneIsReplacedAndANewerOneIsLeft) {
  EXPECT_TRUE(Open().Append(FrameOf(1, {1})).ok());
  std::fstream(PathOf(1), std::ios::in | std::ios::out | std::ios::binary) << "rubbish";
  EXPECT_TRUE(Open().Append(FrameOf(1, {2})).ok());
  EXPECT_EQ(Files(), (std::vector<uint64_t>{2}));
  std::string header = store::EncodeCatalogHeader({NodeOf(1), 3});
  header[8] = 2;
  std::ofstream(PathOf(3), std::ios::binary) << header;
  EXPECT_TRUE(absl::IsUnimplemented(NodeLog::Open(&nodes_, NodeOf(1)).status()));
  EXPECT_TRUE(fs::exists(PathOf(3)));
}

TEST_F(NodeLogTest, TwoWritersNeverShareAFile) {
  NodeLog left_behind = Open();
  NodeLog log = Open();
  EXPECT_LT(left_behind.name().number, log.name().number);
  EXPECT_TRUE(log.Append(FrameOf(1, {1})).ok());
  EXPECT_TRUE(left_behind.Append(FrameOf(1, {2})).ok());
  EXPECT_EQ(Files(), (std::vector<uint64_t>{1}));
  // In a minute its log is gone, and it hears so.
  ASSERT_TRUE(log.Maintain(0).ok());
  EXPECT_TRUE(left_behind.CheckName().ok());
  ASSERT_TRUE(log.Maintain(60 * kSecond).ok());
  EXPECT_TRUE(absl::IsAborted(left_behind.CheckName()));
  EXPECT_TRUE(log.CheckName().ok());
}

TEST_F(NodeLogTest, ALogIsWrittenAnewWithoutWhatIsGone) {
  NodeLog log = Open();
  uint64_t next = 0;
  std::vector<uint64_t> there;
  while (log.name().number == 1) {
    std::vector<uint64_t> fresh(1000);
    for (uint64_t& number : fresh) number = next++;
    ASSERT_TRUE(log.Append(FrameOf(1, fresh, there)).ok());
    there = fresh;
    ASSERT_TRUE(log.Maintain(0).ok());
    ASSERT_LT(next, 100000u) << "it is never written anew";
  }
  EXPECT_EQ(Files(), there);
  EXPECT_LT(log.bytes(), 200 * kKiB);
  ASSERT_TRUE(log.Maintain(0).ok());
  EXPECT_EQ(NamesIn(kNodesFolder).size(), 2u) << "who follows the old one has its rest to read";
  ASSERT_TRUE(log.Maintain(60 * kSecond).ok());
  EXPECT_EQ(NamesIn(kNodesFolder), std::vector<std::string>{ToString(LogName{NodeOf(1), 2})});
  // And it goes on.
  ASSERT_TRUE(log.Append(FrameOf(1, {next}, there)).ok());
  EXPECT_EQ(Files(), std::vector<uint64_t>{next});
}

TEST_F(NodeLogTest, ANodeHasItsIdForGood) {
  const auto first = LoadNodeId(Root().get());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*LoadNodeId(Root().get()), *first);
  EXPECT_EQ(NamesIn("v1"), (std::vector<std::string>{"catalog", "node"})) << "nothing is left";
  std::ofstream(Path(kNodeIdPath)) << "not an id\n";
  EXPECT_TRUE(absl::IsDataLoss(LoadNodeId(Root().get()).status()));
  fs::remove(Path(kNodeIdPath));
  const auto second = LoadNodeId(Root().get());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE(*second, *first);
}

}  // namespace
}  // namespace kvstream::catalog
