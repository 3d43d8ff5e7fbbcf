// The tiers of a configuration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/config/config.h"
#include "tests/config/complaints.h"

namespace kvstream::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(TiersTest, TierValuesAreResolvedToBytes) {
  const auto options = ParseConfig(std::string(kSockets) +
                                       "tiers { name: 'a' root: '/a' io_kib: 4 window_mib: 3 "
                                       "write_window_mib: 5 write_backlog_mib: 7 open_files: 16 "
                                       "shared: true required: false io_engine: THREADS "
                                       "io_threads: 4 mount_point: '/' capacity_mib: 64 "
                                       "free_percent_min: 0 }"
                                       "tiers { name: 'b' root: '/b' quarantine_mib: 9 }",
                                   "test");
  ASSERT_TRUE(options.ok()) << options.status();
  const TierOptions& a = options->tiers[0];
  EXPECT_EQ(a.io_bytes, 4096u);
  EXPECT_EQ(a.window_bytes, 3 * kMiB);
  EXPECT_EQ(a.write_window_bytes, 5 * kMiB);
  EXPECT_EQ(a.write_backlog_bytes, 7 * kMiB);
  EXPECT_EQ(a.quarantine_bytes, 3 * kMiB / 2);
  EXPECT_EQ(a.open_files, 16u);
  EXPECT_TRUE(a.shared);
  EXPECT_FALSE(a.required);
  EXPECT_EQ(a.io_engine, IoEngine::kThreads);
  EXPECT_EQ(a.io_threads, 4u);
  EXPECT_EQ(options->tiers[1].io_engine, IoEngine::kAuto);
  EXPECT_EQ(a.mount_point, "/");
  EXPECT_EQ(options->tiers[1].mount_point, "");
  EXPECT_EQ(options->tiers[1].io_threads, 16u);
  EXPECT_EQ(a.capacity_bytes, 64 * kMiB);
  EXPECT_EQ(a.free_percent_min, 0u);
  EXPECT_EQ(options->tiers[1].capacity_bytes, 0u);
  EXPECT_EQ(options->tiers[1].free_percent_min, 2u);
  const auto shared =
      ParseConfig(std::string(kSockets) + "tiers { name: 'a' root: '/a' shared: true }", "test");
  EXPECT_EQ(shared->tiers[0].free_percent_min, 0u);
  EXPECT_EQ(options->tiers[1].quarantine_bytes, 9 * kMiB);
}

TEST(TiersTest, DeviceRequestIsAPowerOfTwo) {
  for (const char* good : {"4", "512", "65536"}) {
    EXPECT_THAT(ComplaintsWithTier(std::string("io_kib: ") + good), IsEmpty()) << good;
  }
  for (const char* bad : {"0", "2", "3", "6", "65537", "131072"}) {
    EXPECT_THAT(ComplaintsWithTier(std::string("io_kib: ") + bad),
                ElementsAre(std::string("tiers[0].io_kib: ") + bad +
                            " is not a power of two in 4 .. 65536"));
  }
}

TEST(TiersTest, TierNamesAreOneToThirtyTwoPlainCharacters) {
  const auto with_name = [](const std::string& name) {
    return Complaints(std::string(kSockets) + "tiers { root: '/a' name: '" + name + "' }");
  };
  EXPECT_THAT(with_name(std::string(32, 'a')), IsEmpty());
  EXPECT_THAT(with_name("a-b_9"), IsEmpty());
  for (const std::string& bad : {std::string(), std::string(33, 'a'), std::string("Nvme"),
                                 std::string("a b"), std::string("a/b")}) {
    EXPECT_THAT(with_name(bad), ElementsAre(HasSubstr("tiers[0].name: '" + bad + "'")));
  }
}

TEST(TiersTest, TierCountIsBounded) {
  std::string text = kSockets;
  for (int i = 0; i < 8; ++i) {
    const std::string n = std::to_string(i);
    text += "tiers { name: 't" + n + "' root: '/r" + n + "' }";
  }
  EXPECT_THAT(Complaints(text), IsEmpty());
  EXPECT_THAT(Complaints(text + kTier), ElementsAre("tiers: there are 9, not 1 .. 8"));
}

TEST(TiersTest, RootsAreAbsolutePaths) {
  EXPECT_THAT(Complaints(std::string(kSockets) + "tiers { name: 'a' }"),
              ElementsAre("tiers[0].root: is required"));
  EXPECT_THAT(Complaints(std::string(kSockets) + "tiers { name: 'a' root: 'b' }"),
              ElementsAre("tiers[0].root: 'b' is not an absolute path"));
  EXPECT_THAT(Complaints(std::string(kSockets) + "tiers { name: 'a' root: '/b\\000c' }"),
              ElementsAre("tiers[0].root: contains a zero byte"));
}

TEST(TiersTest, ARootLiesBelowItsMountPoint) {
  for (const char* good : {"/", "/a", "/a/b"}) {
    EXPECT_THAT(Complaints(std::string(kSockets) + "tiers { name: 'a' root: '/a/b' mount_point: '" +
                           good + "' }"),
                IsEmpty())
        << good;
  }
  for (const char* bad : {"/a/b/c", "/a/bb", "/c"}) {
    EXPECT_THAT(
        Complaints(std::string(kSockets) + "tiers { name: 'a' root: '/a/b' mount_point: '" + bad +
                   "' }"),
        ElementsAre("tiers[0].root: '/a/b' is not below mount_point '" + std::string(bad) + "'"));
  }
  EXPECT_THAT(ComplaintsWithTier("mount_point: 'a'"),
              testing::Contains("tiers[0].mount_point: 'a' is not an absolute path"));
}

}  // namespace
}  // namespace kvstream::config
