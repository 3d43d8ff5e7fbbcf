// Two daemons, of two nodes as it were, that share one directory.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/admin.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunks = 100;

class SharedTest : public testing::Test {
 protected:
  struct Node {
    explicit Node(const fs::path& shared, uint64_t computation)
        : daemon([&shared](config::Options& o) {
            o.tiers[1].root = shared;
            o.tiers[1].shared = true;
          }),
          worker(daemon.socket(), {.chunk_bytes = 64 * 1024,
                                   .segment_bytes = 16 * 1024,
                                   .buffer_bytes = kChunks * 64 * 1024,
                                   .computation = computation}) {}
    TestDaemon daemon;
    Worker worker;
  };

  void Start(uint64_t computation_of_the_second) {
    nodes_.push_back(std::make_unique<Node>(shared_.path(), 0));
    nodes_.push_back(std::make_unique<Node>(shared_.path(), computation_of_the_second));
  }

  // Both at once, the same keys in the same order.
  void PutOnBoth() {
    std::vector<std::thread> threads;
    for (const auto& node : nodes_) {
      threads.emplace_back([&node] { EXPECT_TRUE(node->worker.Put(Keys(1, kChunks)).ok()); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& node : nodes_) node->daemon.WaitWritten();
  }

  // Returns how many chunks have the first's bytes. The rest must have the other's.
  size_t Read(Node& node) {
    const auto keys = Keys(1, kChunks);
    EXPECT_EQ(node.worker.Get(keys).leading_valid(), kChunks);
    size_t firsts = 0;
    for (size_t i = 0; i < kChunks; ++i) {
      const bool first = node.worker.Holds(keys[i], i, 0);
      EXPECT_TRUE(first || node.worker.Holds(keys[i], i, nodes_[1]->worker.shape().computation))
          << "chunk " << i << " is neither's, or a mix";
      firsts += first ? 1 : 0;
    }
    return firsts;
  }

  size_t FilesOfAnyKind() const {
    size_t files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(shared_.path())) {
      files += entry.is_regular_file() ? 1 : 0;
    }
    return files;
  }

  const TempDir shared_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

TEST_F(SharedTest, TwoDaemonsOnOneDirectoryStoreTheSameKeysAndReadEachOthersFiles) {
  for (const uint64_t computation : {0, 1}) {
    SCOPED_TRACE(computation == 0 ? "equal bytes" : "bytes of two computations");
    Start(computation);
    PutOnBoth();
    EXPECT_EQ(nodes_[0]->daemon.Files(1).size(), kChunks);
    EXPECT_EQ(FilesOfAnyKind(), kChunks) << "a temporary is left";
    uint64_t written = 0;
    uint64_t existed = 0;
    for (const auto& node : nodes_) {
      const engine::TierEngineStats& tier = node->daemon.stats().tiers[1];
      written += tier.chunks_written.Get();
      existed += tier.chunks_existed.Get();
      EXPECT_EQ(tier.failed_writes.Get(), 0u);
      EXPECT_EQ(tier.files_set_aside.Get(), 0u);
    }
    EXPECT_EQ(written, kChunks);
    EXPECT_EQ(existed, kChunks);
    for (const auto& node : nodes_) Read(*node);
    // Of the shared directory alone both read the same file, whoever wrote it.
    for (const auto& node : nodes_) {
      ASSERT_TRUE(Admin(node->daemon.socket(), kPatience).SetTierInService("nvme", false).ok());
    }
    const size_t firsts = Read(*nodes_[0]);
    EXPECT_EQ(Read(*nodes_[1]), firsts);
    EXPECT_EQ(firsts,
              computation == 0 ? kChunks : nodes_[0]->daemon.stats().tiers[1].chunks_written.Get());
    for (const auto& node : nodes_) {
      EXPECT_EQ(node->daemon.stats().tiers[1].corrupt_reads.Get(), 0u);
    }
    nodes_.clear();
    for (const auto& entry : fs::directory_iterator(shared_.path())) fs::remove_all(entry.path());
  }
}

}  // namespace
}  // namespace kvstream
