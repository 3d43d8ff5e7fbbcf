#include "server/metrics/metrics.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "server/base/unique_fd.h"
#include "tests/support/fake_gpu.h"

namespace kvstream::metrics {
namespace {

using engine::EngineStats;
using engine::TierEngineStats;
using gpu::DeviceStats;
using rpc::RpcStats;
using testing::HasSubstr;
using testing::Not;
using tier::TierStats;

// A GET over a plain socket: status line, headers and body.
std::string Get(int port, const std::string& path) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ADD_FAILURE() << "cannot connect to port " << port;
    return "";
  }
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string reply;
  char buffer[4096];
  for (ssize_t n; (n = ::recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) {
    reply.append(buffer, static_cast<size_t>(n));
  }
  return reply;
}

template <typename Stats>
struct Expected {
  std::string name;
  std::function<void(Stats&, uint64_t)> add;
};

#define KV_NUMBER(Stats, name, field)                          \
  Expected<Stats> {                                            \
    name, [](Stats& stats, uint64_t n) { stats.field.Add(n); } \
  }

const Expected<EngineStats> kEngine[] = {
    KV_NUMBER(EngineStats, "pool_bytes", pool_bytes),
    KV_NUMBER(EngineStats, "pool_reserved_bytes", pool_reserved_bytes),
    KV_NUMBER(EngineStats, "pool_used_bytes", pool_used_bytes),
    KV_NUMBER(EngineStats, "cache_bytes", cache_bytes),
    KV_NUMBER(EngineStats, "cache_chunks", cache_chunks),
    KV_NUMBER(EngineStats, "cache_inserted_total", cache_inserted),
    KV_NUMBER(EngineStats, "cache_evicted_total", cache_evicted),
    KV_NUMBER(EngineStats, "staged_bytes", staged_bytes),
    KV_NUMBER(EngineStats, "pool_huge_pages", pool_huge_pages),
    KV_NUMBER(EngineStats, "sessions", sessions_open),
    KV_NUMBER(EngineStats, "sessions_opened_total", sessions_opened),
    KV_NUMBER(EngineStats, "host_buffers", host_buffers),
    KV_NUMBER(EngineStats, "host_buffer_bytes", host_buffer_bytes),
    KV_NUMBER(EngineStats, "unmapping_bytes", unmapping_bytes),
    KV_NUMBER(EngineStats, "regions", regions),
    KV_NUMBER(EngineStats, "landing_regions", landing_regions),
    KV_NUMBER(EngineStats, "landing_parts_overdue", landing_parts_overdue),
    KV_NUMBER(EngineStats, "landing_timeouts_total", landing_timeouts),
    KV_NUMBER(EngineStats, "leases", leases),
    KV_NUMBER(EngineStats, "leased_chunks", leased_chunks),
    KV_NUMBER(EngineStats, "leases_expired_total", leases_expired),
    KV_NUMBER(EngineStats, "operations_running", operations_running),
    KV_NUMBER(EngineStats, "read_steps_total", read_steps),
    KV_NUMBER(EngineStats, "stores_total", stores),
    KV_NUMBER(EngineStats, "lookups_total", lookups),
    KV_NUMBER(EngineStats, "lookup_keys_total", lookup_keys),
    KV_NUMBER(EngineStats, "lookup_hits_total", lookup_hits),
    KV_NUMBER(EngineStats, "operations_rejected_total", rejected),
    KV_NUMBER(EngineStats, "operations_cancelled_total", cancelled),
    KV_NUMBER(EngineStats, "deadlines_exceeded_total", deadlines_exceeded),
    KV_NUMBER(EngineStats, "chunks_delivered_total", chunks_delivered),
    KV_NUMBER(EngineStats, "chunks_failed_total", chunks_failed),
    KV_NUMBER(EngineStats, "chunks_missing_total", chunks_missing),
    KV_NUMBER(EngineStats, "delivered_bytes_total", bytes_delivered),
    KV_NUMBER(EngineStats, "delivered_from_pool_bytes_total", bytes_from_pool),
    KV_NUMBER(EngineStats, "chunks_stored_total", chunks_stored),
    KV_NUMBER(EngineStats, "stored_bytes_total", bytes_stored),
    KV_NUMBER(EngineStats, "chunks_existed_total", chunks_existed),
    KV_NUMBER(EngineStats, "chunks_dropped_total", chunks_dropped),
    KV_NUMBER(EngineStats, "chunks_lost_total", chunks_lost),
    KV_NUMBER(EngineStats, "staged_chunks_damaged_total", staged_chunks_damaged),
    KV_NUMBER(EngineStats, "index_chunks", index_chunks),
    KV_NUMBER(EngineStats, "unhandled_events", unhandled_events),
    KV_NUMBER(EngineStats, "draining", draining),
};

const Expected<RpcStats> kRpc[] = {
    KV_NUMBER(RpcStats, "streams", streams_open),
    KV_NUMBER(RpcStats, "calls_waiting", calls_waiting),
    KV_NUMBER(RpcStats, "lookup_keys_waiting", lookup_keys_waiting),
    KV_NUMBER(RpcStats, "calls_refused_total", calls_refused),
    KV_NUMBER(RpcStats, "streams_held_total", streams_held),
    KV_NUMBER(RpcStats, "hellos_missed_total", hellos_missed),
    KV_NUMBER(RpcStats, "accept_paused", accept_paused),
    KV_NUMBER(RpcStats, "accept_failures_total", accept_failures),
    KV_NUMBER(RpcStats, "sessions_refused_total", sessions_refused),
    KV_NUMBER(RpcStats, "streams_refused_total", streams_refused),
    KV_NUMBER(RpcStats, "sessions_overrun_total", sessions_overrun),
    KV_NUMBER(RpcStats, "namespaces_refused_total", namespaces_refused),
};

const Expected<TierEngineStats> kTierEngine[] = {
    KV_NUMBER(TierEngineStats, "tier_out", out),
    KV_NUMBER(TierEngineStats, "tier_failing", failing),
    KV_NUMBER(TierEngineStats, "tier_writes_out", writes_out),
    KV_NUMBER(TierEngineStats, "tier_writes_hang", writes_hang),
    KV_NUMBER(TierEngineStats, "tier_degraded", degraded),
    KV_NUMBER(TierEngineStats, "tier_late", late),
    KV_NUMBER(TierEngineStats, "tier_late_total", times_late),
    KV_NUMBER(TierEngineStats, "tier_chunk_files", chunk_files),
    KV_NUMBER(TierEngineStats, "tier_chunk_bytes", chunk_bytes),
    KV_NUMBER(TierEngineStats, "tier_space_bytes", space_bytes),
    KV_NUMBER(TierEngineStats, "tier_cut_off_bytes", cut_off_bytes),
    KV_NUMBER(TierEngineStats, "tier_evictions_in_vain", evictions_in_vain),
    KV_NUMBER(TierEngineStats, "tier_space_free_bytes", space_free_bytes),
    KV_NUMBER(TierEngineStats, "tier_evicted_files_total", files_evicted),
    KV_NUMBER(TierEngineStats, "tier_evicted_bytes_total", bytes_evicted),
    KV_NUMBER(TierEngineStats, "tier_eviction_failures_total", eviction_failures),
    KV_NUMBER(TierEngineStats, "tier_evictions_stuck_total", evictions_stuck),
    KV_NUMBER(TierEngineStats, "tier_probing", probing),
    KV_NUMBER(TierEngineStats, "tier_probes_total", probes),
    KV_NUMBER(TierEngineStats, "tier_held_out", held_out),
    KV_NUMBER(TierEngineStats, "tier_in_flight_bytes", in_flight_bytes),
    KV_NUMBER(TierEngineStats, "tier_window_bytes", window_bytes),
    KV_NUMBER(TierEngineStats, "tier_quarantined_bytes", quarantined_bytes),
    KV_NUMBER(TierEngineStats, "tier_quarantine_limit_bytes", quarantine_limit_bytes),
    KV_NUMBER(TierEngineStats, "tier_write_backlog_bytes", write_backlog_bytes),
    KV_NUMBER(TierEngineStats, "tier_read_rate_bytes_per_second", read_rate),
    KV_NUMBER(TierEngineStats, "tier_write_rate_bytes_per_second", write_rate),
    KV_NUMBER(TierEngineStats, "tier_delivered_bytes_total", bytes_delivered),
    KV_NUMBER(TierEngineStats, "tier_segments_read_total", segments_read),
    KV_NUMBER(TierEngineStats, "tier_segments_hedged_total", segments_hedged),
    KV_NUMBER(TierEngineStats, "tier_corrupt_reads_total", corrupt_reads),
    KV_NUMBER(TierEngineStats, "tier_missing_files_total", missing_files),
    KV_NUMBER(TierEngineStats, "tier_failed_reads_total", failed_reads),
    KV_NUMBER(TierEngineStats, "tier_chunks_written_total", chunks_written),
    KV_NUMBER(TierEngineStats, "tier_chunks_existed_total", chunks_existed),
    KV_NUMBER(TierEngineStats, "tier_failed_writes_total", failed_writes),
    KV_NUMBER(TierEngineStats, "tier_writes_dropped_total", writes_dropped),
    KV_NUMBER(TierEngineStats, "tier_files_set_aside_total", files_set_aside),
    KV_NUMBER(TierEngineStats, "tier_set_aside_failures_total", set_aside_failures),
    KV_NUMBER(TierEngineStats, "tier_outages_total", times_out),
    KV_NUMBER(TierEngineStats, "tier_scrubbing", scrubbing),
    KV_NUMBER(TierEngineStats, "tier_scrub_files_total", scrubbed_files),
    KV_NUMBER(TierEngineStats, "tier_scrub_bytes_total", scrubbed_bytes),
    KV_NUMBER(TierEngineStats, "tier_scrub_damaged_total", scrub_damaged),
    KV_NUMBER(TierEngineStats, "tier_scrub_repaired_total", scrub_repaired),
    KV_NUMBER(TierEngineStats, "tier_scrub_unreadable_total", scrub_unreadable),
};

const Expected<TierStats> kTier[] = {
    KV_NUMBER(TierStats, "tier_open_files", open_files),
    KV_NUMBER(TierStats, "tier_read_bytes_total", bytes_read),
    KV_NUMBER(TierStats, "tier_written_bytes_total", bytes_written),
    KV_NUMBER(TierStats, "tier_read_errors_total", read_errors),
    KV_NUMBER(TierStats, "tier_write_errors_total", write_errors),
    KV_NUMBER(TierStats, "tier_short_reads_resumed_total", short_reads_resumed),
    KV_NUMBER(TierStats, "tier_retries_total", retries),
    KV_NUMBER(TierStats, "tier_unknown_completions_total", unknown_completions),
    KV_NUMBER(TierStats, "tier_descriptor_shortages_total", descriptor_shortages),
    KV_NUMBER(TierStats, "tier_temporaries_left_total", temporaries_left),
    KV_NUMBER(TierStats, "tier_remounts_total", remounts),
};

const Expected<DeviceStats> kGpu[] = {
    KV_NUMBER(DeviceStats, "gpu_usable", usable),
    KV_NUMBER(DeviceStats, "gpu_hung", hung),
    KV_NUMBER(DeviceStats, "gpu_regions", regions),
    KV_NUMBER(DeviceStats, "gpu_mapped_bytes", mapped_bytes),
    KV_NUMBER(DeviceStats, "gpu_queued_bytes", queued_bytes),
    KV_NUMBER(DeviceStats, "gpu_in_bytes_total", bytes_in),
    KV_NUMBER(DeviceStats, "gpu_out_bytes_total", bytes_out),
    KV_NUMBER(DeviceStats, "gpu_fragments_total", fragments),
    KV_NUMBER(DeviceStats, "gpu_batches_total", batches),
    KV_NUMBER(DeviceStats, "gpu_unclosed_total", unclosed),
};

#undef KV_NUMBER

// A daemon whose every number has another value, with a tier that opened and one that did not, and
// two GPUs; and what one scrape of it says. One for all tests, because the server takes its time to
// stop.
class MetricsTest : public testing::Test {
 protected:
  struct World {
    World() {
      daemon.version = "1.2.3";
      daemon.boot.bytes[15] = 0xab;
      daemon.ready.Set(1);
      daemon.pool_configured_bytes = 2000;
      daemon.pool_pinned_bytes = 1000;
      facts.io_engine = "io_uring";
      facts.direct = true;
      facts.alignment = 512;
      uint64_t n = 0;
      for (const auto& expected : kEngine) expected.add(engine, ++n);
      for (const auto& expected : kRpc) expected.add(rpc, ++n);
      for (const auto& expected : kTierEngine) expected.add(engine.tiers[0], ++n);
      for (const auto& expected : kTier) expected.add(tier, ++n);
      for (const auto& expected : kTierEngine) expected.add(engine.tiers[1], ++n);
      for (const size_t gpu : {0, 1}) {
        StatsOf(gpu).usable.Set(0);
        for (const auto& expected : kGpu) expected.add(StatsOf(gpu), ++n);
      }
      engine.read_step_us.Observe(1);
      engine.read_step_us.Observe(1'000'000);
      engine.read_step_us.Observe(uint64_t{1} << 33);
    }

    MetricsSource Source() const {
      return {&daemon,
              &engine,
              &rpc,
              {{TierId{0}, "nvme", &tier, &facts}, {TierId{1}, "pfs", nullptr, nullptr}},
              &gpus};
    }

    static std::shared_ptr<gpu::FakeGpuControl> ThreeUnused() {
      auto control = std::make_shared<gpu::FakeGpuControl>();
      control->unused.resize(3, "it fails");
      return control;
    }

    // As the GPU's copies would set them.
    DeviceStats& StatsOf(size_t gpu) { return const_cast<DeviceStats&>(gpus.stats(gpu)); }

    DaemonFacts daemon;
    EngineStats engine;
    RpcStats rpc;
    TierStats tier;
    tier::TierFacts facts;
    std::unique_ptr<gpu::Driver> driver = gpu::OpenFakeDriver(2, ThreeUnused());
    gpu::Gpus gpus{driver.get()};
  };

  static void SetUpTestSuite() {
    world_ = std::make_unique<World>();
    auto server = MetricsServer::Start("127.0.0.1:0", world_->Source());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    text_ = Get(server_->port(), "/metrics");
  }

  static void TearDownTestSuite() {
    server_.reset();
    world_.reset();
  }

  static inline std::unique_ptr<World> world_;
  static inline std::unique_ptr<MetricsServer> server_;
  static inline std::string text_;
};

TEST_F(MetricsTest, EveryNumberHasItsSeriesAndTiersAndGpusDoNotMix) {
  uint64_t n = 0;
  const auto check = [&n](const std::string& name, const std::string& labels) {
    EXPECT_THAT(text_,
                HasSubstr("\nkvstreamd_" + name + labels + " " + std::to_string(++n) + "\n"));
  };
  for (const auto& expected : kEngine) check(expected.name, "");
  for (const auto& expected : kRpc) check(expected.name, "");
  for (const auto& expected : kTierEngine) check(expected.name, "{tier=\"nvme\"}");
  for (const auto& expected : kTier) check(expected.name, "{tier=\"nvme\"}");
  for (const auto& expected : kTierEngine) check(expected.name, "{tier=\"pfs\"}");
  for (const auto& expected : kGpu)
    check(expected.name, "{gpu=\"GPU-00000000-0000-0000-0000-000000000000\"}");
  for (const auto& expected : kGpu)
    check(expected.name, "{gpu=\"GPU-00000000-0000-0000-0000-000000000001\"}");
}

TEST_F(MetricsTest, TierThatDidNotOpenShowsTheEnginesNumbersOnly) {
  EXPECT_THAT(text_, HasSubstr("kvstreamd_tier_out{tier=\"pfs\"}"));
  EXPECT_THAT(text_, Not(HasSubstr("kvstreamd_tier_read_bytes_total{tier=\"pfs\"}")));
  EXPECT_THAT(text_, Not(HasSubstr("kvstreamd_tier_info{tier=\"pfs\"")));
}

TEST_F(MetricsTest, DaemonTiersAndGpusAreDescribed) {
  EXPECT_THAT(text_, HasSubstr("kvstreamd_info{version=\"1.2.3\","
                               "boot=\"000000000000000000000000000000ab\"} 1\n"));
  EXPECT_THAT(text_, HasSubstr("kvstreamd_tier_info{tier=\"nvme\",io_engine=\"io_uring\","
                               "direct=\"true\",alignment_bytes=\"512\","
                               "registered_buffers=\"false\"} 1\n"));
  EXPECT_THAT(text_, HasSubstr("kvstreamd_gpu_info{gpu=\"GPU-00000000-0000-0000-0000-"
                               "000000000001\",name=\"Fake GPU\"} 1\n"));
  EXPECT_THAT(text_, HasSubstr("\nkvstreamd_pool_configured_bytes 2000\n"));
  EXPECT_THAT(text_, HasSubstr("\nkvstreamd_pool_pinned_bytes 1000\n"));
  EXPECT_THAT(text_, HasSubstr("\nkvstreamd_gpus_unused 3\n"));
}

TEST_F(MetricsTest, ADaemonIsReadyUntilItDrainsOrAGpuIsLostOrHangs) {
  EXPECT_THAT(text_, HasSubstr("\nkvstreamd_ready 0\n"));
  const uint64_t draining = world_->engine.draining.Get();
  world_->engine.draining.Set(0);
  std::array<uint64_t, 2> hung{};
  for (size_t i = 0; i < 2; ++i) {
    hung[i] = world_->StatsOf(i).hung.Get();
    world_->StatsOf(i).hung.Set(0);
  }
  EXPECT_THAT(Get(server_->port(), "/metrics"), HasSubstr("\nkvstreamd_ready 1\n"));
  const uint64_t usable = world_->StatsOf(1).usable.Get();
  world_->StatsOf(1).usable.Set(0);
  EXPECT_THAT(Get(server_->port(), "/metrics"), HasSubstr("\nkvstreamd_ready 0\n"));
  world_->StatsOf(1).usable.Set(usable);
  world_->StatsOf(1).hung.Set(1);
  EXPECT_THAT(Get(server_->port(), "/metrics"), HasSubstr("\nkvstreamd_ready 0\n"));
  for (size_t i = 0; i < 2; ++i) world_->StatsOf(i).hung.Set(hung[i]);
  world_->engine.draining.Set(draining);
}

TEST_F(MetricsTest, HistogramsAreCumulativeAndInSeconds) {
  EXPECT_THAT(text_, HasSubstr("kvstreamd_read_step_seconds_count 3\n"));
  EXPECT_THAT(text_, HasSubstr("kvstreamd_read_step_seconds_bucket{le=\"1.048576\"} 2\n"));
  EXPECT_THAT(text_, HasSubstr("kvstreamd_read_step_seconds_bucket{le=\"0.524288\"} 1\n"));
  EXPECT_THAT(text_, HasSubstr("kvstreamd_read_step_seconds_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text_, HasSubstr("kvstreamd_store_release_seconds_count 0\n"));
  EXPECT_THAT(text_, HasSubstr("kvstreamd_lookup_seconds_count 0\n"));
}

TEST_F(MetricsTest, NamesAreUniqueAndFollowTheRules) {
  std::istringstream lines(text_);
  std::set<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, keyword, name, type;
    words >> hash >> keyword >> name >> type;
    if (keyword != "TYPE" || !name.starts_with("kvstreamd_")) continue;
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(name.ends_with("_total"), type == "counter") << name;
  }
  EXPECT_GT(names.size(), std::size(kEngine) + std::size(kTierEngine) + std::size(kTier));
}

TEST_F(MetricsTest, AddressTellsThePortInUse) {
  EXPECT_NE(server_->port(), 0);
  EXPECT_EQ(server_->address(), "127.0.0.1:" + std::to_string(server_->port()));
}

TEST_F(MetricsTest, OtherPathsAreNotFound) {
  EXPECT_THAT(Get(server_->port(), "/"), HasSubstr(" 404 "));
  EXPECT_THAT(Get(server_->port(), "/metrics/../etc/passwd"), Not(HasSubstr("root:")));
}

TEST_F(MetricsTest, BusyAddressIsUnavailableAndNamed) {
  const auto second = MetricsServer::Start(server_->address(), world_->Source());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(server_->address()));
}

TEST_F(MetricsTest, MalformedAddressIsUnavailableAndNamed) {
  for (const std::string bad : {"nonsense", "127.0.0.1:99999", "203.0.113.1:0"}) {
    const auto server = MetricsServer::Start(bad, world_->Source());
    EXPECT_EQ(server.status().code(), absl::StatusCode::kUnavailable) << bad;
    EXPECT_THAT(std::string(server.status().message()), HasSubstr(bad));
  }
}

TEST(MetricsServerTest, ScrapeSeesNumbersAsTheyAreNow) {
  const DaemonFacts daemon;
  EngineStats engine;
  const RpcStats rpc;
  const auto server = MetricsServer::Start("127.0.0.1:0", {&daemon, &engine, &rpc, {}});
  ASSERT_TRUE(server.ok()) << server.status();
  engine.stores.Add(1);
  EXPECT_THAT(Get((*server)->port(), "/metrics"), HasSubstr("\nkvstreamd_stores_total 1\n"));
  engine.stores.Add(1);
  EXPECT_THAT(Get((*server)->port(), "/metrics"), HasSubstr("\nkvstreamd_stores_total 2\n"));
}

}  // namespace
}  // namespace kvstream::metrics
