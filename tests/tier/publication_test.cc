#include "server/tier/publication.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/tier/tier_harness.h"

namespace kvstream::tier {
namespace {

namespace fs = std::filesystem;
constexpr char kPath[] = "v1/a/b/chunk.kv";

class PublicationTest : public testing::Test {
 protected:
  std::string Content() const {
    std::ifstream file(fs::path(folder_.path()) / kPath);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  const TemporaryFolder folder_;
  const UniqueFd root_{open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  const Blocks blocks_ = Blocks::Pattern(8 * kKiB, 7);
};

TEST_F(PublicationTest, AFileComesUnderItsNameWholeAndLeavesNothingElse) {
  {
    Publication publication(root_.get(), kPath, /*direct=*/false, /*fsync=*/false);
    ASSERT_EQ(publication.Begin(), 0);
    ASSERT_EQ(publication.Append(blocks_.Part(0, 4096)), 0);
    EXPECT_FALSE(fs::exists(fs::path(folder_.path()) / kPath));
    ASSERT_EQ(publication.Append(blocks_.Part(4096, 4096)), 0);
    ASSERT_EQ(publication.Finish(), 0);
    EXPECT_FALSE(fs::exists(fs::path(folder_.path()) / kPath));
    ASSERT_EQ(publication.Link(), 0);
    EXPECT_EQ(folder_.Files().size(), 1u);
  }
  EXPECT_EQ(folder_.Files().size(), 1u);
  const std::string want(reinterpret_cast<const char*>(blocks_.data()), blocks_.size());
  EXPECT_EQ(Content(), want);
}

TEST_F(PublicationTest, WhatIsNotFinishedLeavesNothing) {
  {
    Publication publication(root_.get(), kPath, false, false);
    ASSERT_EQ(publication.Begin(), 0);
    ASSERT_EQ(publication.Append(blocks_.Part(0, 4096)), 0);
    EXPECT_EQ(folder_.Files().size(), 1u);
  }
  EXPECT_EQ(folder_.Files().size(), 0u);
}

TEST_F(PublicationTest, ANameThatIsTakenStays) {
  fs::create_directories((fs::path(folder_.path()) / kPath).parent_path());
  std::ofstream(fs::path(folder_.path()) / kPath) << "another";
  {
    Publication publication(root_.get(), kPath, false, false);
    ASSERT_EQ(publication.Begin(), 0);
    ASSERT_EQ(publication.Append(blocks_.bytes()), 0);
    ASSERT_EQ(publication.Finish(), 0);
    EXPECT_EQ(publication.Link(), EEXIST);
  }
  EXPECT_EQ(Content(), "another");
  EXPECT_EQ(folder_.Files().size(), 1u);
}

}  // namespace
}  // namespace kvstream::tier
