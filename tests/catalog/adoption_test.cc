#include "server/catalog/adoption.h"

#include <filesystem>
#include <set>
#include <string>

#include "tests/catalog/catalog_cluster.h"

namespace kvstream::catalog {
namespace {

namespace fs = std::filesystem;

class AdoptionTest : public CatalogCluster {};

TEST_F(AdoptionTest, FilesOfANodeThatIsGoneAreTakenOverByOneThatLives) {
  for (uint8_t n = 1; n <= 3; ++n) Start(n);
  for (int i = 0; i < 3; ++i) Second();
  Say(nodes_[2], {1, 2, 3}, {2});
  for (int i = 0; i < 3; ++i) Second();
  nodes_[2].catalog = nullptr;
  for (int i = 0; i < 70; ++i) Second();
  EXPECT_TRUE(nodes_[0].adopted.empty()) << "it may come back";
  Age(3, 2);
  for (int i = 0; i < 70; ++i) Second();
  EXPECT_EQ(nodes_[0].adopted, (std::set<uint64_t>{1, 3}));
  EXPECT_TRUE(nodes_[1].adopted.empty());
  EXPECT_EQ(nodes_[0].stats.nodes_adopted.Get(), 1u);
  // The log of the one that has them says so.
  Counter calls;
  std::set<uint64_t> said;
  ASSERT_TRUE(ReadNodeFiles(*Folder::Open(Root().get(), kNodesFolder, &calls), NodeOf(1),
                            [&](const store::CatalogEntry& file) {
                              said.insert(NumberOf(file.chunk.key));
                              return true;
                            })
                  .ok());
  EXPECT_EQ(said, (std::set<uint64_t>{1, 3}));
  // It comes back, hears it once, and begins anew.
  for (const bool was_taken : {true, false}) {
    Open(nodes_[2]);
    EXPECT_EQ(nodes_[2].was_taken, was_taken);
    Say(nodes_[2], {9});
  }
  for (int i = 0; i < 3; ++i) Second();
  EXPECT_TRUE(nodes_[0].known.contains(9));
  EXPECT_TRUE(nodes_[2].known.contains(1));
}

TEST_F(AdoptionTest, ANodeThatWasOnlyAwayHearsThatItsFilesWereTaken) {
  for (uint8_t n = 1; n <= 2; ++n) Start(n);
  for (int i = 0; i < 3; ++i) Second();
  Say(nodes_[1], {1});
  Age(2, 2);
  Look(nodes_[0]);
  now_ += 70 * kSecond;
  Look(nodes_[0]);
  EXPECT_EQ(nodes_[0].adopted, (std::set<uint64_t>{1}));
  EXPECT_TRUE(absl::IsAborted(nodes_[1].catalog->Say(FrameOf(2, {2}), now_)));
  Open(nodes_[1]);
  EXPECT_TRUE(nodes_[1].was_taken);
  Say(nodes_[1], {2});
  for (int i = 0; i < 3; ++i) Second();
  EXPECT_TRUE(nodes_[0].known.contains(2));
}

TEST_F(AdoptionTest, WhoDiesWhileItTakesOverIsTakenOverWithThat) {
  for (uint8_t n = 1; n <= 3; ++n) Start(n);
  for (int i = 0; i < 3; ++i) Second();
  Say(nodes_[1], {2});
  Say(nodes_[0], {1});
  nodes_[1].catalog = nullptr;
  nodes_[0].catalog = nullptr;
  // The first had just taken the second's log.
  Counter calls;
  const auto folder = Folder::Open(Root().get(), kNodesFolder, &calls);
  const LogName log{NodeOf(2), 1};
  ASSERT_TRUE(folder->Move(ToString(log), ToString(Claim{log, NodeOf(1)})).ok());
  Age(1, 2);
  for (int i = 0; i < 90; ++i) Second();
  EXPECT_EQ(nodes_[2].adopted, (std::set<uint64_t>{1, 2}));
  const auto names = NamesIn(kNodesFolder);
  EXPECT_EQ(names.size(), 3u) << "its own log, and two marks";
}

}  // namespace
}  // namespace kvstream::catalog
