#include "server/tier/open_files.h"

#include <memory>

#include "gtest/gtest.h"

namespace kvstream::tier {
namespace {

OpenFile* Open(OpenFiles* files, const std::string& path, int fd) {
  OpenFile* file = files->Insert(path);
  file->fd = fd;
  files->Acquire(file);
  return file;
}

TEST(OpenFilesTest, FileInUseIsNeverEvicted) {
  OpenFiles files(2);
  OpenFile* a = Open(&files, "a", 10);
  OpenFile* b = Open(&files, "b", 11);
  EXPECT_TRUE(files.full());
  EXPECT_EQ(files.EvictIdle(), nullptr);
  EXPECT_EQ(files.Release(b), nullptr);
  EXPECT_EQ(files.EvictIdle()->fd, 11);
  EXPECT_FALSE(files.full());
  EXPECT_EQ(files.Find("a"), a);
  EXPECT_EQ(files.Find("b"), nullptr);
}

TEST(OpenFilesTest, LeastRecentlyUsedIsEvictedFirst) {
  OpenFiles files(3);
  OpenFile* a = Open(&files, "a", 10);
  OpenFile* b = Open(&files, "b", 11);
  (void)files.Release(a);
  (void)files.Release(b);
  files.Acquire(a);
  (void)files.Release(a);
  EXPECT_EQ(files.EvictIdle()->path, "b");
  EXPECT_EQ(files.EvictIdle()->path, "a");
  EXPECT_EQ(files.EvictIdle(), nullptr);
}

TEST(OpenFilesTest, ForgottenFileLeavesAfterItsLastUser) {
  OpenFiles files(2);
  OpenFile* old = Open(&files, "a", 10);
  files.Acquire(old);
  EXPECT_EQ(files.Forget("a"), nullptr);
  EXPECT_EQ(files.Find("a"), nullptr);
  // The path may be opened again meanwhile; both count.
  OpenFile* fresh = Open(&files, "a", 11);
  EXPECT_TRUE(files.full());
  EXPECT_EQ(files.Release(old), nullptr);
  EXPECT_EQ(files.Release(old)->fd, 10);
  EXPECT_EQ(files.Find("a"), fresh);
  EXPECT_FALSE(files.full());
}

TEST(OpenFilesTest, ForgottenIdleFileLeavesAtOnce) {
  OpenFiles files(2);
  (void)files.Release(Open(&files, "a", 10));
  EXPECT_EQ(files.Forget("a")->fd, 10);
  EXPECT_EQ(files.EvictIdle(), nullptr);
  EXPECT_EQ(files.Forget("a"), nullptr);
}

}  // namespace
}  // namespace kvstream::tier
