#include "server/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "tests/config/complaints.h"

namespace kvstream::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ConfigTest, SmallestConfigTakesTheDefaults) {
  const auto options = ParseConfig(std::string(kSockets) + kTier, "test");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->grpc_socket, "/run/k.sock");
  EXPECT_EQ(options->handoff_socket, "/run/k.sock.handoff");
  EXPECT_EQ(options->socket_mode, 0660u);
  EXPECT_EQ(options->pool_bytes, 1024 * kMiB);
  EXPECT_EQ(options->pool_reserved_bytes, 512 * kMiB);
  EXPECT_EQ(options->pin, PinPolicy::kShrink);
  EXPECT_EQ(options->cache, CacheChoice::kArc);
  EXPECT_EQ(options->gpu.mode, GpuMode::kAuto);
  EXPECT_EQ(options->gpu.direct_bytes_min, 64 * kKiB);
  EXPECT_EQ(options->gpu.direct_store_bytes_min, 256 * kKiB);
  EXPECT_EQ(options->gpu.landing_ack, 5 * kSecond);
  EXPECT_EQ(options->hedge_after, 100 * kMillisecond);
  EXPECT_EQ(options->routing.policy, Policy::kCompletion);
  EXPECT_EQ(options->routing.ahead, 100 * kMillisecond);
  EXPECT_TRUE(options->routing.narrowing && options->routing.hedging);
  EXPECT_TRUE(options->replicate_all);
  EXPECT_EQ(options->segment_bytes_default, 4 * kMiB);
  EXPECT_EQ(options->deadline_max, 600 * kSecond);
  EXPECT_EQ(options->metrics_listen, "127.0.0.1:9464");
  EXPECT_EQ(options->drain, 20 * kSecond);
  EXPECT_TRUE(options->reflection);
  EXPECT_EQ(options->scrub_bytes_per_second, 64 * kMiB);
  EXPECT_EQ(options->scrub_every, 0);
  EXPECT_EQ(options->snapshot_every, 10 * 60 * kSecond);
}

TEST(ConfigTest, ReservedShareOfThePoolIsWholePages) {
  const auto options =
      ParseConfig(std::string(kSockets) + kTier + "pool { mib: 101 reads_percent: 33 }", "test");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->pool_reserved_bytes % 4096, 0u);
  EXPECT_EQ(options->pool_reserved_bytes, 101 * kMiB * 33 / 100 / 4096 * 4096);
}

TEST(ConfigTest, GpuValuesAreResolved) {
  const auto options = ParseConfig(
      std::string(kSockets) + kTier +
          "pool { pin: EXIT } "
          "gpu { mode: REQUIRED direct_kib_min: 8 direct_store_kib_min: 9 landing_ack_ms: 20 }",
      "test");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->pin, PinPolicy::kExit);
  EXPECT_EQ(options->gpu.mode, GpuMode::kRequired);
  EXPECT_EQ(options->gpu.direct_bytes_min, 8 * kKiB);
  EXPECT_EQ(options->gpu.direct_store_bytes_min, 9 * kKiB);
  EXPECT_EQ(options->gpu.landing_ack, 20 * kMillisecond);
  const auto off = ParseConfig(std::string(kSockets) + kTier + "gpu { mode: OFF }", "test");
  ASSERT_TRUE(off.ok()) << off.status();
  EXPECT_EQ(off->gpu.mode, GpuMode::kOff);
}

TEST(ConfigTest, EmptyConfigNamesWhatIsRequired) {
  EXPECT_THAT(Complaints(""),
              ElementsAre("sockets.grpc: is required", "tiers: there are 0, not 1 .. 8"));
}

TEST(ConfigTest, EveryErrorIsReportedAtOnce) {
  EXPECT_THAT(Complaints("sockets { grpc: 'k.sock' mode: '0888' }"
                         "tiers { name: 'nvme' root: '/a' }"
                         "tiers { name: 'nvme' root: '/a' io_kib: 3 }"
                         "pool { copy_threads: 0 }"
                         "gpu { direct_kib_min: 0 landing_ack_ms: 9 }"
                         "drain_ms: 99"),
              ElementsAre("sockets.grpc: 'k.sock' is not an absolute path",
                          "sockets.handoff: 'k.sock.handoff' is not an absolute path",
                          "sockets.mode: '0888' is not an octal number in 0000 .. 0777",
                          "tiers[1].io_kib: 3 is not a power of two in 4 .. 65536",
                          "tiers[1].name: 'nvme' is the name of tiers[0] too",
                          "tiers[1].root: '/a' is the root of tiers[0] too",
                          "pool.copy_threads: 0 is not in 1 .. 64",
                          "gpu.direct_kib_min: 0 is not in 1 .. 2048",
                          "gpu.landing_ack_ms: 9 is not in 10 .. 600000",
                          "drain_ms: 99 is not in 100 .. 600000"));
}

TEST(ConfigTest, UnknownFieldIsReportedWithItsPlace) {
  const auto lines = Complaints("sockets {\n  grcp: '/a'\n}\n");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("test:2:"));
  EXPECT_THAT(lines[0], HasSubstr("grcp"));
}

TEST(ConfigTest, UnfinishedTextIsReportedWithItsPlace) {
  const auto lines = Complaints("sockets {\n  grpc: '/a'\n");
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines[0], HasSubstr("test:3:"));
}

TEST(ConfigTest, NumberThatDoesNotFitItsFieldIsAnError) {
  EXPECT_THAT(ComplaintsWith("pool { copy_threads: 4294967296 }"), ElementsAre(HasSubstr("test:")));
  EXPECT_THAT(ComplaintsWith("drain_ms: -1"), ElementsAre(HasSubstr("test:")));
}

struct RangeCase {
  std::string field;  // "message { name" or "name": what comes before the colon.
  std::string path;
  uint64_t min;
  uint64_t max;
};

const RangeCase kRanges[] = {
    {"pool { mib", "pool.mib", 16, 1048576},
    {"pool { reads_percent", "pool.reads_percent", 10, 90},
    {"pool { copy_threads", "pool.copy_threads", 1, 64},
    {"gpu { direct_kib_min", "gpu.direct_kib_min", 1, 2048},
    {"gpu { direct_store_kib_min", "gpu.direct_store_kib_min", 1, 2048},
    {"gpu { landing_ack_ms", "gpu.landing_ack_ms", 10, 600000},
    {"reads { hedge_after_ms", "reads.hedge_after_ms", 1, 60000},
    {"routing { fixed_percent", "routing.fixed_percent", 0, 100},
    {"routing { published_chunks", "routing.published_chunks", 1, 4096},
    {"routing { ahead_ms", "routing.ahead_ms", 0, 10000},
    {"scrub { mib_per_s", "scrub.mib_per_s", 1, 16384},
    {"scrub { every_hours", "scrub.every_hours", 0, 8760},
    {"restart { snapshot_minutes", "restart.snapshot_minutes", 0, 1440},
    {"restart { temporaries_minutes", "restart.temporaries_minutes", 0, 10080},
    {"writes { max_defer_ms", "writes.max_defer_ms", 0, 3600000},
    {"writes { watermark_percent", "writes.watermark_percent", 1, 100},
    {"limits { lookup_keys_max", "limits.lookup_keys_max", 1, 1048576},
    {"limits { chunks_per_operation_max", "limits.chunks_per_operation_max", 1, 1048576},
    {"limits { operations_per_session_max", "limits.operations_per_session_max", 1, 65536},
    {"limits { host_buffers_per_session_max", "limits.host_buffers_per_session_max", 1, 4096},
    {"limits { host_buffer_mib_per_session_max", "limits.host_buffer_mib_per_session_max", 1,
     16777216},
    {"limits { sessions_max", "limits.sessions_max", 1, 65536},
    {"limits { deadline_ms_max", "limits.deadline_ms_max", 1, 86400000},
    {"limits { lease_ms_max", "limits.lease_ms_max", 1, 86400000},
    {"limits { message_mib_max", "limits.message_mib_max", 1, 1024},
    {"limits { unread_events_mib_max", "limits.unread_events_mib_max", 1, 1024},
    {"limits { unhandled_messages_per_session_max", "limits.unhandled_messages_per_session_max", 1,
     65536},
    {"limits { unhandled_mib_per_session_max", "limits.unhandled_mib_per_session_max", 1, 1024},
    {"limits { calls_max", "limits.calls_max", 1, 65536},
    {"limits { lookup_keys_waiting_max", "limits.lookup_keys_waiting_max", 1048576, 67108864},
    {"limits { hello_ms", "limits.hello_ms", 100, 600000},
    {"drain_ms", "drain_ms", 100, 600000},
};

std::string Set(const std::string& field, uint64_t value) {
  const bool nested = field.find('{') != std::string::npos;
  return field + ": " + std::to_string(value) + (nested ? " }" : "");
}

TEST(ConfigTest, EveryRangeAcceptsItsEndsAndRefusesTheNext) {
  for (const RangeCase& c : kRanges) {
    SCOPED_TRACE(c.path);
    // The smallest pools cannot hold the default segment; that is another test.
    const std::string small = c.path.starts_with("pool.")
                                  ? "limits { segment_kib: 16 segment_kib_max: 16 }"
                                  : std::string();
    EXPECT_THAT(ComplaintsWith(small + Set(c.field, c.min)), IsEmpty());
    EXPECT_THAT(ComplaintsWith(small + Set(c.field, c.max)), IsEmpty());
    const std::string limit =
        " is not in " + std::to_string(c.min) + " .. " + std::to_string(c.max);
    EXPECT_THAT(ComplaintsWith(small + Set(c.field, c.max + 1)),
                ElementsAre(c.path + ": " + std::to_string(c.max + 1) + limit));
    if (c.min == 0) continue;
    EXPECT_THAT(ComplaintsWith(small + Set(c.field, c.min - 1)),
                testing::Contains(c.path + ": " + std::to_string(c.min - 1) + limit));
  }
}

const RangeCase kTierRanges[] = {
    {"window_mib", "", 1, 4096},           {"write_window_mib", "", 1, 4096},
    {"write_backlog_mib", "", 1, 1048576}, {"quarantine_mib", "", 1, 32},
    {"open_files", "", 16, 100000},        {"io_threads", "", 1, 256},
};

TEST(ConfigTest, EveryRangeOfATierAcceptsItsEndsAndRefusesTheNext) {
  for (const RangeCase& c : kTierRanges) {
    SCOPED_TRACE(c.field);
    EXPECT_THAT(ComplaintsWithTier(Set(c.field, c.min)), IsEmpty());
    EXPECT_THAT(ComplaintsWithTier(Set(c.field, c.max)), IsEmpty());
    EXPECT_THAT(ComplaintsWithTier(Set(c.field, c.min - 1)),
                ElementsAre(HasSubstr("tiers[0]." + c.field)));
    EXPECT_THAT(ComplaintsWithTier(Set(c.field, c.max + 1)),
                ElementsAre(HasSubstr("tiers[0]." + c.field)));
  }
}

TEST(ConfigTest, LargestNumbersAreRefusedAndNeverOverflow) {
  for (const RangeCase& c : kRanges) {
    if (c.path.ends_with("percent") || c.path.ends_with("threads")) continue;
    const uint64_t largest = c.path == "reads.hedge_after_ms" || c.path.starts_with("routing") ||
                                     c.path.starts_with("gpu")
                                 ? uint64_t{std::numeric_limits<uint32_t>::max()}
                                 : std::numeric_limits<uint64_t>::max();
    EXPECT_THAT(ComplaintsWith(Set(c.field, largest)), testing::Not(IsEmpty())) << c.path;
  }
}

TEST(ConfigTest, SingleTierIsOneOfTheTiers) {
  EXPECT_THAT(ComplaintsWith("routing { policy: SINGLE single_tier: 'nvme' }"), IsEmpty());
  EXPECT_THAT(ComplaintsWith("routing { policy: SINGLE }"),
              ElementsAre("routing.single_tier: '' is no tier"));
  EXPECT_THAT(ComplaintsWith("routing { single_tier: 'tape' }"),
              ElementsAre("routing.single_tier: 'tape' is no tier"));
}

TEST(ConfigTest, SocketPathsFitASocketAddress) {
  const auto with_grpc = [](size_t bytes, const std::string& more) {
    return Complaints("sockets { grpc: '/" + std::string(bytes - 1, 'x') + "' " + more + "}" +
                      kTier);
  };
  EXPECT_THAT(with_grpc(100, "handoff: '/h'"), IsEmpty());
  EXPECT_THAT(with_grpc(101, "handoff: '/h'"), ElementsAre(HasSubstr("longer than 100 bytes")));
  // The derived handoff path is eight bytes longer, and has to fit as well.
  EXPECT_THAT(with_grpc(99, ""), IsEmpty());
  EXPECT_THAT(with_grpc(100, ""), ElementsAre(testing::StartsWith("sockets.handoff: ")));
}

TEST(ConfigTest, SocketsDiffer) {
  EXPECT_THAT(Complaints("sockets { grpc: '/s' handoff: '/s' }" + std::string(kTier)),
              ElementsAre("sockets.handoff: is the same path as sockets.grpc"));
}

TEST(ConfigTest, SocketModeIsOctal) {
  const auto with_mode = [](const std::string& mode) {
    return Complaints("sockets { grpc: '/s' mode: '" + mode + "' }" + kTier);
  };
  const auto options = ParseConfig("sockets { grpc: '/s' mode: '600' }" + std::string(kTier), "t");
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->socket_mode, 0600u);
  for (const char* bad : {"", "8", "1777", "00660", "rw", "-1", "0x1"}) {
    EXPECT_THAT(with_mode(bad), ElementsAre(HasSubstr("sockets.mode"))) << bad;
  }
}

TEST(ConfigTest, LargestSegmentFitsHalfOfTheReservedPool) {
  const std::string pool = "pool { mib: 16 reads_percent: 50 }";
  EXPECT_THAT(ComplaintsWith(pool + "limits { segment_kib_max: 4096 }"), IsEmpty());
  EXPECT_THAT(
      ComplaintsWith(pool + "limits { segment_kib_max: 8192 }"),
      ElementsAre(
          "limits.segment_kib_max: 8192 is not a power of two of at most 65536 and 4096, half "
          "of what the pool reserves for reads"));
  EXPECT_THAT(ComplaintsWith("limits { segment_kib_max: 12288 }"),
              ElementsAre(HasSubstr("limits.segment_kib_max: 12288 is not a power of two")));
}

TEST(ConfigTest, DefaultSegmentIsAtMostTheLargest) {
  EXPECT_THAT(ComplaintsWith("limits { segment_kib: 8192 segment_kib_max: 4096 }"),
              ElementsAre("limits.segment_kib: 8192 is more than limits.segment_kib_max, 4096"));
  EXPECT_THAT(ComplaintsWith("limits { segment_kib: 5000 }"),
              ElementsAre("limits.segment_kib: 5000 is not a power of two in 16 .. 65536"));
}

TEST(ConfigTest, MetricsListenIsOneAddress) {
  for (const char* good : {"", "127.0.0.1:0", "[::1]:9464", "localhost:65535", "0.0.0.0:80"}) {
    EXPECT_THAT(ComplaintsWith("metrics { listen: '" + std::string(good) + "' }"), IsEmpty())
        << good;
  }
  for (const char* bad :
       {"9464", ":9464", "a:", "a:65536", "a:1,b:2", "a:1s", "::1:80", "a b:1", "a:-1", "[]:1"}) {
    EXPECT_THAT(ComplaintsWith("metrics { listen: '" + std::string(bad) + "' }"),
                ElementsAre(HasSubstr("metrics.listen: '" + std::string(bad) + "'")));
  }
}

TEST(ConfigTest, LogLevelIsOneOfFiveWords) {
  EXPECT_THAT(ComplaintsWith("logging { level: 'trace' }"), IsEmpty());
  EXPECT_THAT(ComplaintsWith("logging { level: 'loud' }"),
              ElementsAre("logging.level: 'loud' is not trace, debug, info, warn or error"));
}

TEST(ConfigTest, MissingFileIsNotFoundAndNamed) {
  const auto options = LoadConfig("/nonexistent/kvstream.textproto");
  EXPECT_EQ(options.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(options.status().message()),
              HasSubstr("/nonexistent/kvstream.textproto"));
}

TEST(ConfigTest, DirectoryIsAnErrorAndNamed) {
  const std::string directory = std::filesystem::temp_directory_path();
  const auto options = LoadConfig(directory);
  EXPECT_FALSE(options.ok());
  EXPECT_THAT(std::string(options.status().message()), HasSubstr(directory));
}

TEST(ConfigTest, HugeFileIsRefused) {
  std::string path = std::filesystem::temp_directory_path() / "kvstream-config-XXXXXX";
  const int fd = ::mkstemp(path.data());
  ASSERT_GE(fd, 0);
  ::close(fd);
  std::ofstream(path) << std::string((1 << 20) + 1, '#');
  const auto options = LoadConfig(path);
  std::filesystem::remove(path);
  EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(options.status().message()), HasSubstr("longer than"));
}

}  // namespace
}  // namespace kvstream::config
