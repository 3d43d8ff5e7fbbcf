// The operator's controls under load: tiers that come and go, and a drain.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "client/admin.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

constexpr Worker::Shape kShape = {
    .chunk_bytes = 64 * 1024, .segment_bytes = 16 * 1024, .buffer_bytes = 4 * 1024 * 1024};
constexpr size_t kKeysPerStore = 8;

// Clients that store new keys and read old ones until told to stop.
class Load {
 public:
  explicit Load(const std::string& socket) {
    for (uint64_t w = 0; w < 2; ++w) {
      threads_.emplace_back([this, socket, w] { Write(socket, (w + 1) << 32); });
      threads_.emplace_back([this, socket, w] { Read(socket, w); });
    }
  }
  ~Load() { Stop(); }
  void Stop() {
    stopping_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  uint64_t stores() const { return stores_; }
  uint64_t hits() const { return hits_; }
  uint64_t wrong() const { return wrong_; }
  // Keys that were said to be durable.
  std::vector<uint64_t> committed() {
    std::lock_guard lock(mu_);
    return committed_;
  }

 private:
  void Write(const std::string& socket, uint64_t first) {
    Worker worker(socket, kShape);
    for (uint64_t n = 0; !stopping_; ++n) {
      const auto keys = Keys(first + n * kKeysPerStore, kKeysPerStore);
      for (size_t i = 0; i < keys.size(); ++i) worker.Fill(keys[i], i);
      v1::Store store = worker.StoreOf(keys);
      store.set_want_durable(true);
      auto operation = worker.client().Store(std::move(store));
      if (!operation.ok() || !(*operation)->WaitEnded(kPatience)) return;
      if ((*operation)->status().code() == absl::StatusCode::kUnavailable) return;  // Draining.
      if (!(*operation)->status().ok()) continue;
      std::lock_guard lock(mu_);
      committed_.insert(committed_.end(), keys.begin(), keys.end());
      ++stores_;
    }
  }
  void Read(const std::string& socket, uint64_t seed) {
    Worker worker(socket, kShape);
    std::mt19937_64 random(seed);
    while (!stopping_) {
      std::vector<uint64_t> keys;
      for (const auto known = committed(); !known.empty() && keys.size() < kKeysPerStore;) {
        keys.push_back(known[random() % known.size()]);
      }
      if (keys.empty()) {
        std::this_thread::yield();
        continue;
      }
      const v1::RequestDone done = worker.Get(keys);
      std::vector<uint32_t> valid(done.other_valid().begin(), done.other_valid().end());
      for (uint32_t i = 0; i < done.leading_valid(); ++i) valid.push_back(i);
      for (const uint32_t i : valid) worker.Holds(keys[i], i) ? ++hits_ : ++wrong_;
    }
  }

  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> stores_{0};
  std::atomic<uint64_t> hits_{0};
  std::atomic<uint64_t> wrong_{0};
  std::mutex mu_;
  std::vector<uint64_t> committed_;
  std::vector<std::thread> threads_;
};

class ControlTest : public testing::TestWithParam<bool> {};

TEST_P(ControlTest, TiersThatComeAndGoUnderLoadLoseNothing) {
  TestDaemon daemon([](config::Options& o) {
    o.replicate_all = GetParam();
    o.pool_bytes = 256 * kMiB;
  });
  Admin admin(daemon.socket(), kPatience);
  Load load(daemon.socket());
  std::mt19937_64 random(20261129);
  const char* const tiers[] = {"nvme", "pfs"};
  for (int round = 0; round < 30; ++round) {
    const std::string tier = tiers[random() % 2];
    const bool both = round % 10 == 9;
    for (const char* name : tiers) {
      if (!both && name != tier) continue;
      ASSERT_EQ(admin.SetTierInService(name, false).value(), v1::TIER_STATE_OUT);
    }
    if (!both) {  // Operations go on meanwhile.
      const uint64_t stores = load.stores() + 2;
      const uint64_t hits = load.hits();
      daemon.WaitUntil([&] { return load.stores() > stores && load.hits() > hits; },
                       "work goes on");
    }
    for (const char* name : tiers) {
      ASSERT_EQ(admin.SetTierInService(name, true).value(), v1::TIER_STATE_OK);
    }
  }
  load.Stop();
  EXPECT_EQ(load.wrong(), 0u);
  EXPECT_EQ(daemon.stats().chunks_lost.Get(), 0u);
  EXPECT_GE(daemon.stats().tiers[0].times_out.Get() + daemon.stats().tiers[1].times_out.Get(), 30u);
  daemon.WaitWritten();
  Worker worker(daemon.socket(), kShape);
  const auto committed = load.committed();
  ASSERT_GT(committed.size(), 30 * kKeysPerStore);
  EXPECT_EQ(worker.Look(committed), committed.size());
  for (const uint64_t key : committed) {
    ASSERT_EQ(worker.Get({key}).leading_valid(), 1u) << key;
    ASSERT_TRUE(worker.Holds(key, 0)) << key;
  }
  RecordProperty("committed", static_cast<int>(committed.size()));
}

INSTANTIATE_TEST_SUITE_P(Copies, ControlTest, testing::Bool(), [](const auto& param) {
  return param.param ? "OnEveryTier" : "OnOneTier";
});

TEST(ControlDrainTest, ADrainUnderLoadLeavesAllThatWasStagedOnDisk) {
  TestDaemon daemon;
  Admin admin(daemon.socket(), kPatience);
  Load load(daemon.socket());
  daemon.WaitUntil([&] { return load.stores() > 10; }, "stores have begun");
  const auto reply = admin.Drain(kPatience);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->unwritten_bytes(), 0u);
  EXPECT_EQ(reply->running_operations(), 0u);
  load.Stop();
  EXPECT_EQ(load.wrong(), 0u);
  const uint64_t stored = daemon.stats().chunks_stored.Get();
  EXPECT_GE(stored, load.committed().size());
  for (size_t tier = 0; tier < 2; ++tier) {
    EXPECT_EQ(daemon.Files(tier).size() + daemon.stats().tiers[tier].writes_dropped.Get(), stored);
  }
}

}  // namespace
}  // namespace kvstream
