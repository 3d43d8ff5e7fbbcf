#include "server/catalog/shared_catalog.h"

#include <signal.h>
#include <sys/resource.h>

#include <fstream>
#include <random>
#include <set>

#include "tests/catalog/catalog_cluster.h"

namespace kvstream::catalog {
namespace {

namespace fs = std::filesystem;

constexpr char kMerged[] = "v1/catalog/merged";

// No file of this process grows beyond it.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(uint64_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, SIG_DFL);
  }

 private:
  rlimit before_{};
};

class SharedCatalogTest : public CatalogCluster {};

TEST_F(SharedCatalogTest, WhatANodeSaysTheOthersKnowInThreeSeconds) {
  for (uint8_t n = 1; n <= 5; ++n) Start(n);
  for (int i = 0; i < 3; ++i) Second();
  EXPECT_EQ(Leaders(), 1);
  Say(nodes_[4], {7, 8});
  Say(nodes_[0], {9});
  for (int i = 0; i < 3; ++i) Second();
  EXPECT_EQ(nodes_[0].known, (std::set<uint64_t>{7, 8})) << "not what it has said itself";
  EXPECT_EQ(nodes_[4].known, (std::set<uint64_t>{9}));
  for (size_t n = 1; n < 4; ++n) EXPECT_EQ(nodes_[n].known, (std::set<uint64_t>{7, 8, 9})) << n;
  Say(nodes_[4], {}, {7});
  for (int i = 0; i < 3; ++i) Second();
  for (size_t n = 1; n < 4; ++n) EXPECT_EQ(nodes_[n].known, (std::set<uint64_t>{8, 9})) << n;
}

TEST_F(SharedCatalogTest, WhoComesLaterHearsWhatWasSaidBefore) {
  Start(1);
  Say(nodes_[0], {1, 2});
  for (int i = 0; i < 3; ++i) Second();
  Start(2);
  Start(3);
  for (int i = 0; i < 3; ++i) Second();
  EXPECT_EQ(nodes_[1].known, (std::set<uint64_t>{1, 2}));
  EXPECT_EQ(nodes_[2].known, (std::set<uint64_t>{1, 2}));
  EXPECT_EQ(Leaders(), 1);
}

TEST_F(SharedCatalogTest, WhereTheLeaderDiesAnotherLeadsAndNothingIsLost) {
  for (uint8_t n = 1; n <= 4; ++n) Start(n);
  for (int i = 0; i < 3; ++i) Second();
  ASSERT_EQ(nodes_[0].stats.leads.Get(), 1u);
  Say(nodes_[1], {1});
  nodes_[0].catalog = nullptr;
  Say(nodes_[2], {2});
  for (int i = 0; i < 16; ++i) Second();
  EXPECT_EQ(Leaders(), 1);
  EXPECT_EQ(nodes_[3].known, (std::set<uint64_t>{1, 2}));
  for (int i = 0; i < 60; ++i) Second();
  EXPECT_EQ(NamesIn(kMerged).size(), 1u) << "the old one is gone";
  // And comes back, as one of many.
  nodes_[0].known.clear();
  Open(nodes_[0]);
  for (int i = 0; i < 3; ++i) Second();
  EXPECT_EQ(nodes_[0].known, (std::set<uint64_t>{1, 2}));
  EXPECT_EQ(Leaders(), 1);
}

TEST_F(SharedCatalogTest, ALeaderThatWasAwayForLongHearsThatItLeadsNoMore) {
  for (uint8_t n = 1; n <= 3; ++n) Start(n);
  for (int i = 0; i < 3; ++i) Second();
  std::unique_ptr<SharedCatalog> away = std::move(nodes_[0].catalog);
  for (int i = 0; i < 16; ++i) Second();
  nodes_[0].catalog = std::move(away);
  Say(nodes_[1], {1});
  for (int i = 0; i < 4; ++i) Second();
  EXPECT_EQ(Leaders(), 1);
  EXPECT_EQ(nodes_[0].stats.leads.Get(), 0u);
  EXPECT_EQ(nodes_[0].known, (std::set<uint64_t>{1}));
}

TEST_F(SharedCatalogTest, WhileNothingIsSaidNobodyElseLeads) {
  for (uint8_t n = 1; n <= 3; ++n) Start(n);
  for (int i = 0; i < 600; ++i) Second();
  EXPECT_EQ(nodes_[0].stats.terms.Get(), 1u);
  EXPECT_EQ(nodes_[1].stats.terms.Get() + nodes_[2].stats.terms.Get(), 0u);
}

TEST_F(SharedCatalogTest, ADamagedFrameCostsItselfAlone) {
  for (uint8_t n = 1; n <= 3; ++n) Start(n);
  for (int i = 0; i < 3; ++i) Second();
  std::string damaged = FrameOf(2, {1});
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 4);
  ASSERT_TRUE(nodes_[1].catalog->Say(damaged, now_).ok());
  Say(nodes_[1], {2});
  for (int i = 0; i < 8; ++i) Second();
  EXPECT_EQ(nodes_[2].known, (std::set<uint64_t>{2}));
  EXPECT_EQ(nodes_[0].stats.frames_damaged.Get(), 1u);
}

TEST_F(SharedCatalogTest, WhatAppearsBitByBitIsReadWhenItIsWhole) {
  for (uint8_t n = 1; n <= 2; ++n) Start(n);
  for (int i = 0; i < 3; ++i) Second();
  const fs::path log = Path(kNodesFolder) / ToString(LogName{NodeOf(2), 1});
  const std::string frame = FrameOf(2, {1});
  // Another machine's write may show its length first.
  const auto at = fs::file_size(log);
  fs::resize_file(log, at + frame.size());
  Second();
  EXPECT_TRUE(nodes_[0].known.empty());
  std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(at));
  file << frame << std::flush;
  for (int i = 0; i < 3; ++i) Second();
  EXPECT_EQ(nodes_[0].known, (std::set<uint64_t>{1}));
  EXPECT_EQ(nodes_[0].stats.frames_damaged.Get(), 0u);
}

TEST_F(SharedCatalogTest, WhatIsGoneWhileNobodyLeadsIsForgottenByAll) {
  for (uint8_t n = 1; n <= 3; ++n) Start(n);
  for (int i = 0; i < 3; ++i) Second();
  Say(nodes_[1], {1, 2});
  for (int i = 0; i < 3; ++i) Second();
  ASSERT_TRUE(nodes_[2].known.contains(1));
  // The leader dies before it copies this, and the log is written anew without it.
  nodes_[0].catalog = nullptr;
  Say(nodes_[1], {}, {1});
  Open(nodes_[1]);
  for (int i = 0; i < 90; ++i) Second();
  EXPECT_EQ(nodes_[2].known, (std::set<uint64_t>{2}));
}

TEST_F(SharedCatalogTest, InWhichOrderLogsAreReadForTheFirstTimeMattersToNobody) {
  for (uint8_t n = 1; n <= 4; ++n) Start(n);
  for (int i = 0; i < 3; ++i) Second();
  // The third gave up what the second then stored, and the other way round.
  Say(nodes_[2], {7});
  Say(nodes_[2], {}, {7});
  Say(nodes_[1], {7, 8});
  Say(nodes_[1], {}, {8});
  Say(nodes_[2], {8});
  nodes_[0].catalog = nullptr;  // Another leads, and reads all logs anew.
  for (int i = 0; i < 20; ++i) Second();
  EXPECT_EQ(nodes_[3].known, (std::set<uint64_t>{7, 8}));
}

TEST_F(SharedCatalogTest, UsesOfLongAgoAreNoneOfNow) {
  for (uint8_t n = 1; n <= 2; ++n) Start(n);
  for (int i = 0; i < 3; ++i) Second();
  const auto use = [this] {
    store::CatalogFrame frame;
    frame.Add({What::kUsed, {}, {}});
    ASSERT_TRUE(nodes_[1].catalog->Say(frame.Take(NodeOf(2)), now_).ok());
    for (int i = 0; i < 3; ++i) Second();
  };
  use();
  EXPECT_EQ(nodes_[0].uses, 1);
  nodes_[0].catalog = nullptr;
  Start(3);
  Start(4);
  for (int i = 0; i < 20; ++i) Second();
  EXPECT_EQ(nodes_[2].uses + nodes_[3].uses, 0);
  use();
  EXPECT_EQ(nodes_[2].uses, 1);
  EXPECT_EQ(nodes_[3].uses, 1);
}

TEST_F(SharedCatalogTest, ALeaderThatCannotWriteLeadsNoMoreUntilItCan) {
  for (uint8_t n = 1; n <= 2; ++n) Start(n);
  // More than is copied at once.
  for (uint64_t at = 0; at < 40; ++at) {
    std::vector<uint64_t> numbers(1000);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = 1000 * at + i;
    Say(nodes_[1], numbers);
  }
  {
    const FileSizeLimit limit(kMiB / 2);
    EXPECT_FALSE(nodes_[0].catalog->Hear(now_, &nodes_[0]).ok());
  }
  EXPECT_EQ(nodes_[0].stats.leads.Get(), 0u);
  for (int i = 0; i < 20; ++i) Second();
  EXPECT_EQ(Leaders(), 1);
  EXPECT_EQ(nodes_[0].known.size(), 40000u);
}

TEST_F(SharedCatalogTest, AMergedLogOfALaterVersionIsLeftAlone) {
  Start(1);
  std::string header = store::EncodeCatalogHeader({NodeOf(9), 5});
  header[8] = 2;
  std::ofstream(Path(kMerged) / ToString(LogName{{}, 5}), std::ios::binary) << header;
  for (int i = 0; i < 30; ++i) {
    const absl::Status heard = nodes_[0].catalog->Hear(now_, &nodes_[0]);
    EXPECT_TRUE(absl::IsUnimplemented(heard)) << heard;
    now_ += kSecond;
  }
  EXPECT_EQ(NamesIn(kMerged).size(), 1u);
}

TEST_F(SharedCatalogTest, ACatalogOfAYearIsNoLongerThanWhatItSays) {
  for (uint8_t n = 1; n <= 3; ++n) Start(n);
  uint64_t next = 0;
  std::vector<uint64_t> there;
  for (int i = 0; i < 200; ++i) {
    std::vector<uint64_t> fresh(2000);
    for (uint64_t& number : fresh) number = next++;
    Say(nodes_[1], fresh, there);
    there = fresh;
    Second();
  }
  for (int i = 0; i < 3; ++i) Second();
  const std::set<uint64_t> expected(there.begin(), there.end());
  EXPECT_EQ(nodes_[0].known, expected);
  EXPECT_EQ(nodes_[2].known, expected);
  EXPECT_GT(nodes_[0].stats.terms.Get(), 1u);
  for (int i = 0; i < 130; ++i) Second();  // What is old stays for a while.
  uintmax_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(Path("v1/catalog"))) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  EXPECT_LT(bytes, 16 * kMiB) << "of " << next * 170 << " said";
}

// How many calls for metadata a second takes of a whole cluster, of `count` nodes that say nothing.
uint64_t CallsOf(const std::deque<CatalogStats*>& stats) {
  uint64_t calls = 0;
  for (const CatalogStats* node : stats) calls += node->metadata_calls.Get();
  return calls;
}

TEST_F(SharedCatalogTest, CallsForMetadataGrowWithTheNodesAndNotWithTheKeys) {
  std::deque<CatalogStats*> stats;
  std::vector<double> per_node;
  for (uint8_t n = 1; n <= 32; ++n) {
    stats.push_back(&Start(n).stats);
    if (n != 2 && n != 8 && n != 32) continue;
    for (const uint64_t keys : {1000, 20000}) {
      std::vector<uint64_t> numbers(1000);
      for (uint64_t at = 0; at < keys; at += numbers.size()) {
        for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = (uint64_t{n} << 32) + at + i;
        Say(nodes_.back(), numbers);
      }
      for (int i = 0; i < 5; ++i) Second();
      const uint64_t before = CallsOf(stats);
      for (int i = 0; i < 10; ++i) Second();
      per_node.push_back(static_cast<double>(CallsOf(stats) - before) / 10 / n);
    }
  }
  for (const double calls : per_node) EXPECT_LE(calls, 6) << "a second of a node";
}

// Nodes come, go, hang and come back in random order; in the end all that live know the same.
TEST_F(SharedCatalogTest, InTheEndEveryNodeKnowsWhatIsThere) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    fs::remove_all(Path("v1"));
    nodes_.clear();
    std::mt19937 random(seed);
    std::vector<std::set<uint64_t>> there(5);
    for (uint8_t n = 0; n < 5; ++n) Start(static_cast<uint8_t>(n + 1));
    std::vector<std::unique_ptr<SharedCatalog>> away(5);
    uint64_t next = 0;
    for (int step = 0; step < 200; ++step) {
      const size_t n = random() % 5;
      Node& node = nodes_[n];
      switch (random() % 6) {
        case 0:
        case 1:
          if (node.catalog == nullptr) break;
          Say(node, {next});
          there[n].insert(next++);
          break;
        case 2:
          if (node.catalog == nullptr || there[n].empty()) break;
          Say(node, {}, {*there[n].begin()});
          there[n].erase(there[n].begin());
          break;
        case 3:  // Hangs, or comes back from that.
          std::swap(node.catalog, away[n]);
          break;
        case 4:  // Is started again.
          away[n] = nullptr;
          node.catalog = nullptr;
          node.known.clear();
          Open(node);
          break;
        default:
          now_ += static_cast<TimeNs>(random() % 12) * kSecond;
          Second();
      }
    }
    // All are back, as they were.
    for (size_t n = 0; n < 5; ++n) {
      if (nodes_[n].catalog == nullptr) nodes_[n].catalog = std::move(away[n]);
      if (nodes_[n].catalog == nullptr) Open(nodes_[n]);
    }
    for (int i = 0; i < 20; ++i) Second();
    for (size_t n = 0; n < 5; ++n) {
      std::set<uint64_t> expected;
      for (size_t other = 0; other < 5; ++other) {
        if (other != n) expected.insert(there[other].begin(), there[other].end());
      }
      EXPECT_EQ(nodes_[n].known, expected) << n;
    }
  }
}

}  // namespace
}  // namespace kvstream::catalog
