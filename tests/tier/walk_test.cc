#include "server/tier/walk.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "server/base/unique_fd.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::tier {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

const std::string kSpace(32, 'a');
const std::string kFirst = "0123" + std::string(28, '4');
const std::string kOther = "01ff" + std::string(28, '5');

class WalkTest : public testing::Test {
 protected:
  void Make(const std::string& path) {
    const fs::path file = root() / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "x";
  }
  fs::path root() const { return folder_.path(); }

  // Every path that the walk gives.
  std::vector<std::string> Paths() {
    std::vector<std::string> paths;
    const absl::Status status = Run([&](const std::string& path) {
      paths.push_back(path);
      return true;
    });
    EXPECT_TRUE(status.ok()) << status;
    return paths;
  }
  absl::Status Run(absl::FunctionRef<bool(const std::string&)> visit) {
    const UniqueFd fd(open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    counts_ = {};
    temporaries_.clear();
    entered_ = 0;
    return WalkChunks(
        fd.get(), [this] { return ++entered_ <= enter_max_; }, visit,
        [this](int, const char* name) { temporaries_.emplace_back(name); }, &counts_);
  }

  TemporaryFolder folder_;
  WalkCounts counts_;
  std::vector<std::string> temporaries_;
  int entered_ = 0;  // Folders.
  int enter_max_ = 1000;
};

TEST_F(WalkTest, EachFolderIsAskedForAndTheWalkEndsWhereItMayNotEnter) {
  Make("v1/" + kSpace + "/01/23/" + kFirst + ".kv");
  fs::create_directories(root() / "v1" / kSpace / "44" / "55");
  EXPECT_EQ(Paths().size(), 1u);
  EXPECT_EQ(entered_, 6);  // v1, the namespace, and two below it, with one each.
  enter_max_ = 3;
  EXPECT_LE(Paths().size(), 0u);
  EXPECT_EQ(entered_, 4);
}

TEST_F(WalkTest, ARootWithoutFilesHasNone) {
  EXPECT_THAT(Paths(), IsEmpty());
  fs::create_directories(root() / "v1" / kSpace / "01" / "23");
  EXPECT_THAT(Paths(), IsEmpty());
  EXPECT_EQ(counts_.foreign + counts_.temporary + counts_.unreadable, 0u);
}

TEST_F(WalkTest, ChunkFilesOfAllFoldersAreFound) {
  const std::string b = "v1/" + std::string(32, 'b');
  Make("v1/" + kSpace + "/01/23/" + kFirst + ".kv");
  Make("v1/" + kSpace + "/01/ff/" + kOther + ".kv");
  Make(b + "/01/23/" + kFirst + ".kv");
  EXPECT_THAT(Paths(), testing::UnorderedElementsAre("v1/" + kSpace + "/01/23/" + kFirst + ".kv",
                                                     "v1/" + kSpace + "/01/ff/" + kOther + ".kv",
                                                     b + "/01/23/" + kFirst + ".kv"));
  EXPECT_EQ(counts_.foreign, 0u);
}

TEST_F(WalkTest, ForeignNamesAreCountedAndLeftAlone) {
  const std::string leaf = "v1/" + kSpace + "/01/23/";
  Make(".kvstreamd.lock");  // Not below v1: none of the walk's.
  const std::vector<std::string> foreign = {
      "v1/notes.txt",
      "v1/" + std::string(31, 'a') + "/01/23/" + kFirst + ".kv",  // The folder counts, once.
      "v1/" + std::string(32, 'A') + "/01/23/" + kFirst + ".kv",
      "v1/" + kSpace + "/1/x",
      "v1/" + kSpace + "/01/2g/x",
      leaf + kFirst,
      leaf + kFirst + ".kv.old",
      leaf + kOther + ".kv",  // In another's folder.
      leaf + "x.kv"};
  for (const std::string& path : foreign) Make(path);
  fs::create_directories(root() / (leaf + kFirst + ".kv"));  // A folder with a file's name.
  EXPECT_THAT(Paths(), IsEmpty());
  EXPECT_EQ(counts_.foreign, foreign.size() + 1);
  EXPECT_EQ(counts_.unreadable, 0u);
  for (const std::string& path : foreign) EXPECT_TRUE(fs::exists(root() / path)) << path;
}

TEST_F(WalkTest, TemporariesAreNotForeign) {
  const std::string leaf = "v1/" + kSpace + "/01/23/";
  Make(leaf + ".tmp-" + kFirst);
  Make(leaf + ".aside-" + kFirst);
  Make("v1/.probe-" + kFirst);
  EXPECT_THAT(Paths(), IsEmpty());
  EXPECT_EQ(counts_.temporary, 3u);
  EXPECT_EQ(counts_.foreign, 0u);
}

TEST_F(WalkTest, LinksAreNotFollowedAtAnyDepth) {
  const std::string file = "/01/23/" + kFirst + ".kv";
  TemporaryFolder elsewhere;
  fs::create_directories(fs::path(elsewhere.path()) / kSpace / "01" / "23");
  std::ofstream(elsewhere.path() + "/" + kSpace + file) << "x";
  Make("v1/" + kSpace + "/02/keep");
  fs::create_symlink(elsewhere.path() + "/" + kSpace, root() / "v1" / std::string(32, 'c'));
  fs::create_symlink(elsewhere.path() + "/" + kSpace + "/01", root() / "v1" / kSpace / "01");
  fs::create_directories(root() / "v1" / kSpace / "03");
  fs::create_symlink(elsewhere.path() + "/" + kSpace + "/01/23",
                     root() / "v1" / kSpace / "03" / "23");
  fs::create_directories(root() / "v1" / kSpace / "04" / "23");
  const std::string name = "0423" + std::string(28, '4') + ".kv";
  fs::create_symlink(elsewhere.path() + "/" + kSpace + file,
                     root() / "v1" / kSpace / "04" / "23" / name);
  EXPECT_THAT(Paths(), IsEmpty());
  EXPECT_EQ(counts_.foreign, 5u);  // Four links and the file "keep".
}

TEST_F(WalkTest, ALinkInPlaceOfTheTopIsAnError) {
  TemporaryFolder elsewhere;
  fs::create_symlink(elsewhere.path(), root() / "v1");
  EXPECT_FALSE(Run([](const std::string&) { return true; }).ok());
}

TEST_F(WalkTest, AVisitorThatHasHadEnoughEndsTheWalk) {
  Make("v1/" + kSpace + "/01/23/" + kFirst + ".kv");
  Make("v1/" + kSpace + "/01/ff/" + kOther + ".kv");
  Make("v1/" + std::string(32, 'b') + "/01/23/" + kFirst + ".kv");
  int visited = 0;
  ASSERT_TRUE(Run([&](const std::string&) { return ++visited < 2; }).ok());
  EXPECT_EQ(visited, 2);
}

// More names than one call of the kernel gives: a walk that visits as it reads meets the new ones.
TEST_F(WalkTest, WhatAVisitorMakesInAFolderIsNotMet) {
  const fs::path leaf = root() / "v1" / kSpace / "01" / "23";
  fs::create_directories(leaf);
  const auto make = [&](int number) {
    const std::string digits = std::to_string(10000 + number);
    const fs::path file = leaf / ("0123" + std::string(23, '7') + digits + ".kv");
    ASSERT_TRUE(UniqueFd(open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644)).valid());
  };
  constexpr int kFiles = 1000;
  for (int i = 0; i < kFiles; ++i) make(i);
  int visited = 0;
  ASSERT_TRUE(Run([&](const std::string&) {
                for (int i = 0; i < kFiles && visited == 0; ++i) make(kFiles + i);
                return ++visited < 3 * kFiles;
              }).ok());
  EXPECT_EQ(visited, kFiles);
}

TEST_F(WalkTest, AFolderThatCannotBeReadIsCountedAndPassedOver) {
  if (geteuid() == 0) GTEST_SKIP() << "SKIPPED: root reads every folder";
  Make("v1/" + kSpace + "/01/23/" + kFirst + ".kv");
  Make("v1/" + kSpace + "/01/ff/" + kOther + ".kv");
  fs::permissions(root() / "v1" / kSpace / "01" / "23", fs::perms::none);
  EXPECT_THAT(Paths(), ElementsAre("v1/" + kSpace + "/01/ff/" + kOther + ".kv"));
  EXPECT_EQ(counts_.unreadable, 1u);
  fs::permissions(root() / "v1" / kSpace / "01" / "23", fs::perms::owner_all);
}

}  // namespace
}  // namespace kvstream::tier
