#include "server/metrics/metrics.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "server/base/unique_fd.h"
#include "tests/metrics/every_number.h"
#include "tests/support/fake_gpu.h"

namespace kvstream::metrics {
namespace {

using testing::HasSubstr;
using testing::Not;

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

TEST_F(MetricsTest, ADaemonIsReadyUntilItDrainsOrATierSettlesOrAGpuIsLostOrHangs) {
  EXPECT_THAT(text_, HasSubstr("\nkvstreamd_ready 0\n"));
  const uint64_t draining = world_->engine.draining.Get();
  world_->engine.draining.Set(0);
  std::array<uint64_t, 2> hung{};
  for (size_t i = 0; i < 2; ++i) {
    hung[i] = world_->StatsOf(i).hung.Get();
    world_->StatsOf(i).hung.Set(0);
  }
  EXPECT_THAT(Get(server_->port(), "/metrics"), HasSubstr("\nkvstreamd_ready 0\n"));
  std::array<uint64_t, kTiersMax> settling{};
  for (size_t t = 0; t < kTiersMax; ++t) {
    settling[t] = world_->engine.tiers[t].settling.Get();
    world_->engine.tiers[t].settling.Set(0);
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
  for (size_t t = 0; t < kTiersMax; ++t) world_->engine.tiers[t].settling.Set(settling[t]);
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
