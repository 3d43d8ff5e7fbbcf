#include "server/rpc/unix_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <fstream>
#include <string>

#include "tests/rpc/rig.h"

namespace kvstream::rpc {
namespace {

using ::testing::HasSubstr;

// A bound socket of this type, as another program would make it.
UniqueFd Bind(const std::string& path, int type) {
  UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

absl::StatusOr<UnixSocketPath> Take(const std::string& path) {
  UnixSocketOptions options;
  options.path = path;
  return UnixSocketPath::Take(options);
}

bool Exists(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0;
}

TEST(UnixSocketTest, ASocketOfADeadProcessIsTakenOver) {
  TempDir dir;
  for (int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    { UniqueFd dead = Bind(dir.Path("s"), type); }
    ASSERT_TRUE(Exists(dir.Path("s")));
    auto path = Take(dir.Path("s"));
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_TRUE(ListenSeqpacket(*path).ok());
  }
}

// A process that cannot end keeps its descriptors.
TEST(UnixSocketTest, AReleasedPathIsTheNextOnesThoughTheSocketIsStillOpen) {
  TempDir dir;
  auto first = Take(dir.Path("s"));
  ASSERT_TRUE(first.ok());
  const auto listener = ListenSeqpacket(*first);
  ASSERT_TRUE(listener.ok());
  first->Release();
  EXPECT_FALSE(Exists(dir.Path("s")));
  auto second = Take(dir.Path("s"));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(ListenSeqpacket(*second).ok());
  first->Release();
  EXPECT_TRUE(Exists(dir.Path("s"))) << "it is the second one's name now";
}

TEST(UnixSocketTest, APathThatAnotherHoldsIsRefusedUntilItLetsGo) {
  TempDir dir;
  {
    auto first = Take(dir.Path("s"));
    ASSERT_TRUE(first.ok());
    auto second = Take(dir.Path("s"));
    EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(second.status().message()),
                HasSubstr("another process listens on " + dir.Path("s")));
  }
  EXPECT_TRUE(Take(dir.Path("s")).ok());
}

TEST(UnixSocketTest, AListenerThatKnowsNoLockIsRespected) {
  TempDir dir;
  for (int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    const std::string path = dir.Path(std::to_string(type));
    UniqueFd live = Bind(path, type);
    ASSERT_EQ(listen(live.get(), 1), 0);
    EXPECT_EQ(Take(path).status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(Exists(path));
  }
}

TEST(UnixSocketTest, AFileThatIsNoSocketIsNeverRemoved) {
  TempDir dir;
  std::ofstream(dir.Path("s")) << "precious";
  EXPECT_EQ(Take(dir.Path("s")).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Exists(dir.Path("s")));
}

TEST(UnixSocketTest, APathTooLongForASocketIsRefused) {
  TempDir dir;
  EXPECT_EQ(Take(dir.Path(std::string(108, 's'))).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Take("").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(UnixSocketTest, AMissingFolderAndAMissingGroupAreNamed) {
  TempDir dir;
  EXPECT_EQ(Take(dir.Path("no/s")).status().code(), absl::StatusCode::kNotFound);
  UnixSocketOptions options;
  options.path = dir.Path("s");
  options.group = "kvstream-no-such-group";
  const absl::Status status = UnixSocketPath::Take(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("kvstream-no-such-group"));
}

TEST(UnixSocketTest, ListeningSetsTheModeAndLeavesTheUmask) {
  TempDir dir;
  const mode_t before = umask(022);
  UnixSocketOptions options;
  options.path = dir.Path("s");
  options.mode = 0666;
  auto path = UnixSocketPath::Take(options);
  ASSERT_TRUE(path.ok());
  auto fd = ListenSeqpacket(*path);
  ASSERT_TRUE(fd.ok());
  struct stat info;
  ASSERT_EQ(stat(options.path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0666u);
  EXPECT_EQ(umask(before), 022u);
}

TEST(UnixSocketTest, TheNameGoesWithItsOwner) {
  TempDir dir;
  {
    auto path = Take(dir.Path("s"));
    ASSERT_TRUE(path.ok());
    ASSERT_TRUE(ListenSeqpacket(*path).ok());
    EXPECT_TRUE(Exists(dir.Path("s")));
  }
  EXPECT_FALSE(Exists(dir.Path("s")));
}

}  // namespace
}  // namespace kvstream::rpc
