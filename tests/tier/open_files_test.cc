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

TEST(OpenFilesTest, AllAreForgottenAndThoseInUseLeaveAfterTheirLastUser) {
  OpenFiles files(4);
  OpenFile* used = files.Insert("used");
  files.Acquire(used);
  OpenFile* idle = files.Insert("idle");
  files.Acquire(idle);
  EXPECT_EQ(files.Release(idle), nullptr);
  const auto left = files.ForgetAll();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0]->path, "idle");
  EXPECT_EQ(files.Find("used"), nullptr);
  EXPECT_EQ(files.EvictIdle(), nullptr);
  EXPECT_NE(files.Release(used), nullptr);
  EXPECT_TRUE(files.ForgetAll().empty());
}

}  // namespace
}  // namespace kvstream::tier
