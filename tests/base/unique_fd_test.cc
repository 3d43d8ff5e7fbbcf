#include "server/base/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <utility>

namespace kvstream {
namespace {

int NewFd() { return ::memfd_create("unique_fd_test", MFD_CLOEXEC); }
bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFdTest, OwnerClosesWhenItEnds) {
  const int raw = NewFd();
  {
    UniqueFd fd(raw);
    EXPECT_TRUE(fd.valid());
  }
  EXPECT_FALSE(IsOpen(raw));
}

TEST(UniqueFdTest, MoveLeavesTheSourceEmptyAndClosesTheTarget) {
  UniqueFd a(NewFd());
  UniqueFd b(NewFd());
  const int kept = a.get();
  const int closed = b.get();
  b = std::move(a);
  EXPECT_EQ(b.get(), kept);
  EXPECT_TRUE(IsOpen(kept));
  EXPECT_FALSE(IsOpen(closed));
}

TEST(UniqueFdTest, ReleasedDescriptorStaysOpen) {
  UniqueFd fd(NewFd());
  const UniqueFd released(fd.Release());
  EXPECT_FALSE(fd.valid());
  EXPECT_TRUE(IsOpen(released.get()));
}

}  // namespace
}  // namespace kvstream
