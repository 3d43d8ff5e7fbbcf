// Daemons, of several nodes as it were, that share one directory and hear of each other's chunks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "client/admin.h"
#include "tests/support/log_recorder.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunks = 40;
constexpr uint64_t kChunkBytes = 64 * 1024;

class CatalogTest : public testing::Test {
 protected:
  struct Node {
    Node(const fs::path& shared, uint64_t hints_max)
        : daemon([&](config::Options& o) {
            o.tiers[1].root = shared;
            o.tiers[1].shared = true;
            o.tiers[1].hints_max = hints_max;
            o.tiers[1].gone_after = 3600 * kSecond;
          }) {}
    const engine::TierEngineStats& pfs() const { return daemon.stats().tiers[1]; }
    void Put(const std::vector<uint64_t>& keys) {
      Worker worker(daemon.socket(), Shape());
      EXPECT_TRUE(worker.Put(keys).ok());
      daemon.WaitWritten();
    }
    // How many of them a lookup finds, and a read then has whole.
    std::pair<uint32_t, uint32_t> Hits(const std::vector<uint64_t>& keys) {
      Worker worker(daemon.socket(), Shape());
      for (size_t slot = 0; slot < keys.size(); ++slot) worker.Poison(slot);
      const uint32_t found = worker.Look(keys);
      if (found == 0) return {0, 0};
      const v1::RequestDone done =
          worker.Get({keys.begin(), keys.begin() + static_cast<ptrdiff_t>(found)});
      for (size_t i = 0; i < done.leading_valid(); ++i) EXPECT_TRUE(worker.Holds(keys[i], i));
      return {found, done.leading_valid()};
    }
    void AwaitHints(uint64_t count) {
      daemon.WaitUntil([&] { return pfs().hints.Get() == count; }, "it has heard of them");
    }

    TestDaemon daemon;
  };

  static Worker::Shape Shape() {
    return {.chunk_bytes = kChunkBytes,
            .segment_bytes = 16 * 1024,
            .buffer_bytes = kChunks * kChunkBytes};
  }
  Node& Start(uint64_t hints_max = 1000000) {
    nodes_.push_back(std::make_unique<Node>(shared_.path(), hints_max));
    return *nodes_.back();
  }
  std::vector<std::string> ConditionsOf(Node& node) {
    Worker worker(node.daemon.socket(), Shape());
    const auto status = worker.client().GetStatus();
    EXPECT_TRUE(status.ok()) << status.status();
    return {status->conditions().begin(), status->conditions().end()};
  }

  test::LogRecorder log_;
  const TempDir shared_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

using HitPair = std::pair<uint32_t, uint32_t>;

TEST_F(CatalogTest, WhatOneNodeStoresIsAHitOnTheOthers) {
  Node& first = Start();
  Node& second = Start();
  const auto keys = Keys(1, kChunks);
  EXPECT_EQ(second.Hits(keys), HitPair(0, 0));
  first.Put(keys);
  second.AwaitHints(kChunks);
  EXPECT_EQ(second.Hits(keys), HitPair(kChunks, kChunks));
  EXPECT_EQ(second.pfs().chunk_files.Get(), 0u) << "they are the other's";
  EXPECT_EQ(second.pfs().hints_heard.Get(), kChunks);
  EXPECT_EQ(first.pfs().hints.Get(), 0u);
  EXPECT_EQ(first.pfs().catalog_leads.Get() + second.pfs().catalog_leads.Get(), 1u);
  // Who comes later hears of all.
  Node& third = Start();
  third.AwaitHints(kChunks);
  EXPECT_EQ(third.Hits(keys), HitPair(kChunks, kChunks));
  // One copy for the cluster: the others' stores find it there.
  second.Put(keys);
  EXPECT_EQ(second.pfs().chunks_written.Get(), 0u);
  EXPECT_EQ(second.daemon.Files(1).size(), kChunks);
}

TEST_F(CatalogTest, AFileThatIsGoneIsAMissAndTheHintGoes) {
  Node& first = Start();
  Node& second = Start();
  const auto keys = Keys(1, kChunks);
  first.Put(keys);
  second.AwaitHints(kChunks);
  for (const fs::path& file : first.daemon.Files(1)) fs::remove(file);
  EXPECT_EQ(second.Hits(keys), HitPair(kChunks, 0));
  EXPECT_EQ(second.pfs().hints.Get(), 0u);
  EXPECT_EQ(second.Hits(keys), HitPair(0, 0));
  // What is then stored is its own.
  second.Put(keys);
  EXPECT_EQ(second.pfs().chunk_files.Get(), kChunks);
  EXPECT_EQ(second.Hits(keys), HitPair(kChunks, kChunks));
}

TEST_F(CatalogTest, AStoreBelievesNoHint) {
  Node& first = Start();
  Node& second = Start();
  const auto keys = Keys(1, kChunks);
  first.Put(keys);
  second.AwaitHints(kChunks);
  for (const fs::path& file : first.daemon.Files(1)) fs::remove(file);
  // Nobody has read them since.
  second.Put(keys);
  EXPECT_EQ(second.pfs().chunks_written.Get(), kChunks);
  EXPECT_EQ(second.pfs().hints.Get(), 0u);
  EXPECT_EQ(second.Hits(keys), HitPair(kChunks, kChunks));
}

TEST_F(CatalogTest, WhatANodeGivesUpTheOthersForget) {
  nodes_.push_back(std::make_unique<Node>(shared_.path(), 1000000));
  Node& first = *nodes_.back();
  Node& second = Start();
  first.Put(Keys(1, kChunks));
  second.AwaitHints(kChunks);
  // Less than it has: the oldest go at the start.
  first.daemon.Restart(
      [](config::Options& o) { o.tiers[1].capacity_bytes = kChunks / 2 * (kChunkBytes + 4096); });
  second.daemon.WaitUntil(
      [&] {
        const uint64_t left = first.pfs().chunk_files.Get();
        return left < kChunks && first.daemon.Files(1).size() == left &&
               second.pfs().hints.Get() == left;
      },
      "what is gone is known to be gone");
}

TEST_F(CatalogTest, AfterACrashANodeKnowsWhatItHasPublished) {
  Node& node = Start();
  const auto keys = Keys(1, kChunks);
  node.Put(keys);
  // No snapshot was written, and on the node's own tier nothing is left.
  node.daemon.Stop();
  fs::remove_all(node.daemon.root(0) / "v1" / "index");
  for (const fs::path& file : node.daemon.Files(0)) fs::remove(file);
  node.daemon.Restart();
  node.daemon.WaitUntil([&] { return node.pfs().restoring.Get() == 0; }, "it has looked");
  EXPECT_EQ(node.pfs().chunk_files.Get(), kChunks) << "and they are its own";
  EXPECT_EQ(node.pfs().hints.Get(), 0u);
  EXPECT_EQ(node.Hits(keys), HitPair(kChunks, kChunks));
}

TEST_F(CatalogTest, BeyondItsLimitANodeTakesNoMoreInAndSaysSo) {
  Node& first = Start();
  Node& second = Start(/*hints_max=*/10);
  first.Put(Keys(1, kChunks));
  second.AwaitHints(10);
  second.daemon.WaitUntil([&] { return second.pfs().hints_refused.Get() == kChunks - 10; },
                          "it has heard of all");
  EXPECT_THAT(ConditionsOf(second),
              testing::Contains(testing::HasSubstr("more files of other nodes than hints_max")));
}

TEST_F(CatalogTest, ANodeWithoutACatalogNeitherTellsNorHears) {
  Node& first = Start();
  Node& second = Start(/*hints_max=*/0);
  Node& third = Start();
  second.Put(Keys(1, 5));
  first.Put(Keys(101, 5));
  third.AwaitHints(5);
  EXPECT_EQ(third.Hits(Keys(101, 5)), HitPair(5, 5));
  EXPECT_EQ(second.pfs().hints.Get(), 0u);
}

TEST_F(CatalogTest, ACatalogThatCannotBeWrittenIsSaidAndComesBack) {
  fs::create_directories(shared_.path() / "v1");
  std::ofstream(shared_.path() / "v1" / "catalog") << "in the way";
  Node& first = Start();
  first.daemon.WaitUntil([&] { return first.pfs().catalog_failing.Get() == 1; }, "it fails");
  EXPECT_THAT(ConditionsOf(first),
              testing::Contains(testing::HasSubstr("its catalog cannot be read or written")));
  EXPECT_EQ(log_.Count("the catalog of a shared tier cannot be read or written: tier=pfs"), 1u);
  first.Put(Keys(1, 5));
  EXPECT_EQ(first.Hits(Keys(1, 5)), HitPair(5, 5));
  fs::remove(shared_.path() / "v1" / "catalog");
  first.daemon.WaitUntil([&] { return first.pfs().catalog_failing.Get() == 0; }, "it is back");
  // What waited is said then.
  Node& second = Start();
  second.AwaitHints(5);
}

TEST_F(CatalogTest, FilesOfANodeThatIsGoneHaveAnOwnerAgain) {
  const auto keys = Keys(1, kChunks);
  Node& first = Start();
  first.Put(keys);
  first.daemon.Stop();
  const fs::path nodes = shared_.path() / "v1" / "catalog" / "nodes";
  for (const auto& entry : fs::directory_iterator(nodes)) {
    fs::last_write_time(entry, fs::last_write_time(entry) - std::chrono::hours(2));
  }
  Node& second = Start();
  second.daemon.WaitUntil([&] { return second.pfs().chunk_files.Get() == kChunks; },
                          "it has taken them over");
  EXPECT_EQ(second.pfs().files_adopted.Get(), kChunks);
  EXPECT_EQ(second.pfs().hints.Get(), 0u);
  EXPECT_EQ(second.Hits(keys), HitPair(kChunks, kChunks));
  // And for good.
  second.daemon.Restart();
  second.daemon.WaitUntil([&] { return second.pfs().chunk_files.Get() == kChunks; }, "they are");
  // It was only away: what it had is the other's, and still a hit.
  first.daemon.Restart();
  first.daemon.WaitUntil([&] { return first.pfs().hints.Get() == kChunks; }, "it has heard so");
  EXPECT_EQ(first.pfs().chunk_files.Get(), 0u);
  EXPECT_EQ(first.Hits(keys), HitPair(kChunks, kChunks));
  EXPECT_EQ(log_.Count("another node has taken over what this one had on a shared tier: tier=pfs"),
            1u);
}

TEST_F(CatalogTest, ANodeThatDoesNotKnowWhichItIsSaysSo) {
  Node& first = Start();
  first.Put(Keys(1, 5));
  first.daemon.Stop();
  std::ofstream(first.daemon.root(0) / "v1" / "node") << "nobody";
  first.daemon.Restart();
  first.daemon.WaitUntil([&] { return first.pfs().catalog_failing.Get() == 1; }, "it fails");
  EXPECT_EQ(first.Hits(Keys(1, 5)), HitPair(5, 5)) << "of the snapshot";
}

}  // namespace
}  // namespace kvstream
