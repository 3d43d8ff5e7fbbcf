// What the loop says and hears, over a real catalog in a folder; the thread that looks is real,
// too.
#include "server/engine/cataloguer.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/base/clock.h"
#include "server/catalog/node_id.h"
#include "server/catalog/node_log.h"
#include "server/store/chunk_format.h"
#include "tests/support/fake_tier.h"
#include "tests/support/log_recorder.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::engine {
namespace {

namespace fs = std::filesystem;

constexpr TierId kNvme{0};
constexpr TierId kPfs{1};
constexpr ChunkShape kShape{4096, 4096};

class CataloguerTest : public testing::Test, public tier::CompletionSink, public EventPoster {
 protected:
  ~CataloguerTest() override { cataloguer_.Stop(Now() + 60 * kSecond); }

  void OnCompletions(std::span<tier::Completion>) override {}
  void Post(Event event) override {
    std::scoped_lock lock(mu_);
    heard_.push_back(std::get<HintsHeard>(std::move(event)));
  }

  static KeyDigest Key(uint64_t number) {
    KeyDigest key;
    std::memcpy(key.bytes.data(), &number, sizeof number);
    return key;
  }
  static ContentId ContentOf(uint64_t number) {
    return store::ContentIdOf(kShape, std::vector<uint64_t>{number});
  }
  // As Staging does it.
  void Publish(uint64_t number) {
    const std::vector<uint64_t> checksums = {number};
    const store::ChunkFacts chunk{Key(number), SiblingsId{number}, {},
                                  kShape,      ContentOf(number),  checksums};
    index_.AddReplica(chunk, kPfs);
    asides_.NotePublished(kPfs, chunk, /*own=*/true);
  }
  void Hear(const std::vector<uint64_t>& files, const std::vector<uint64_t>& gone = {},
            uint64_t mount = 0) {
    HintsHeard event;
    event.tier = kPfs;
    event.mount = mount;
    event.run = run_;
    for (const uint64_t number : files) {
      event.files.push_back({.key = Key(number),
                             .siblings = SiblingsId{number},
                             .name_space = {},
                             .shape = kShape,
                             .content = ContentOf(number),
                             .checksums = {number},
                             .before = std::nullopt,
                             .unused_seconds = 0});
    }
    for (const uint64_t number : gone) event.gone.push_back(Key(number));
    cataloguer_.OnHeard(event, now_);
  }
  bool Has(uint64_t number) const { return index_.OnTiers(Key(number), TierSet::Of(kPfs)); }
  const TierEngineStats& pfs() const { return stats_.tiers[1]; }
  // Entries of this node's log, by what they say.
  std::vector<store::CatalogEntry::What> Said() {
    Counter calls;
    std::vector<store::CatalogEntry::What> said;
    const UniqueFd root(open(pfs_folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const UniqueFd home(open(nvme_folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const auto nodes = catalog::Folder::Open(root.get(), catalog::kNodesFolder, &calls);
    const auto name = catalog::FindLog(*nodes, *catalog::LoadNodeId(home.get()));
    if (!name.ok() || !name->has_value()) return said;
    catalog::LogReader reader(catalog::ToString(**name));
    const auto read = reader.ReadNew(*nodes, [&](const store::NodeId&, std::string_view frame) {
      store::ForEachEntry(frame,
                          [&](const store::CatalogEntry& entry) { said.push_back(entry.what); });
    });
    EXPECT_TRUE(read.ok()) << read.status();
    return said;
  }

  std::mutex mu_;
  std::vector<HintsHeard> heard_;
  test::LogRecorder log_;
  tier::TemporaryFolder nvme_folder_;
  tier::TemporaryFolder pfs_folder_;
  test::FakeTier nvme_{{.tier = {.id = kNvme, .name = "nvme", .root = nvme_folder_.path()}}, this};
  test::FakeTier pfs_tier_{{.tier = {.id = kPfs, .name = "pfs", .root = pfs_folder_.path()}}, this};
  const std::vector<tier::Tier*> tiers_{&nvme_, &pfs_tier_};
  const std::vector<CapacityOptions> capacities_{{}, {0, 0, /*shared=*/true, /*hints_max=*/5}};
  EngineStats stats_;
  store::ChunkIndex index_;
  Asides asides_{tiers_, &stats_};
  Evictor evictor_{{tiers_, &index_, &asides_, &stats_}, capacities_};
  Restorer restorer_{{tiers_, &index_, &asides_, &evictor_, this, &stats_}, {}, capacities_};
  Cataloguer cataloguer_{
      {tiers_, &index_, &evictor_, &restorer_, this, &stats_}, CatalogOptions(), capacities_};
  // Never begun: it is told that what was heard was taken, which is all that is asked of it.
  const std::shared_ptr<CatalogRun> run_ = std::make_shared<CatalogRun>(
      this, std::make_shared<catalog::CatalogStats>(), CatalogRun::Plan{});
  TimeNs now_ = 1000 * kSecond;
};

TEST_F(CataloguerTest, WhatIsPublishedGivenUpAndUsedIsSaidOnce) {
  asides_.SetListener(&cataloguer_);
  cataloguer_.Tick(now_);
  Publish(1);
  Publish(2);
  asides_.GiveUp(kPfs, store::ChunkPath({}, Key(1)), Key(1), [](bool, TimeNs) {});
  Hear({7});
  for (int i = 0; i < 5; ++i) {
    cataloguer_.OnUsed(Key(7), now_);
    cataloguer_.OnUsed(Key(2), now_);  // Our own: we know.
    now_ += 60 * kSecond;
  }
  now_ += 600 * kSecond;
  cataloguer_.OnUsed(Key(7), now_);
  cataloguer_.Stop(Now() + 60 * kSecond);
  using What = store::CatalogEntry::What;
  EXPECT_EQ(Said(),
            (std::vector<What>{What::kFile, What::kFile, What::kGone, What::kUsed, What::kUsed}));
}

TEST_F(CataloguerTest, HintsAreKnownUpToTheLimitAndGoWhenTheyAreGone) {
  cataloguer_.Tick(now_);
  Publish(1);
  Hear({1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_TRUE(Has(1) && Has(2) && Has(6));
  EXPECT_FALSE(Has(7));
  cataloguer_.PublishStats(now_);
  EXPECT_EQ(pfs().hints.Get(), 5u);
  EXPECT_EQ(pfs().hints_heard.Get(), 5u);
  EXPECT_EQ(pfs().hints_refused.Get(), 2u);
  Hear({}, {1, 2});
  EXPECT_TRUE(Has(1)) << "it is our own";
  EXPECT_FALSE(Has(2));
  // What goes and comes back in one breath is there.
  Hear({3}, {3});
  EXPECT_TRUE(Has(3));
}

TEST_F(CataloguerTest, OnceAllIsToldWhatWasNotIsForgotten) {
  cataloguer_.Tick(now_);
  Publish(1);
  Hear({2, 3, 4});
  HintsHeard begin;
  begin.tier = kPfs;
  begin.telling_all = true;
  begin.run = run_;
  cataloguer_.OnHeard(begin, now_);
  Hear({3});
  Hear({5}, {5});
  HintsHeard end;
  end.tier = kPfs;
  end.all_told = true;
  end.run = run_;
  cataloguer_.OnHeard(end, now_);
  EXPECT_EQ(cataloguer_.NextDeadline(), 0);
  cataloguer_.Tick(now_);
  EXPECT_TRUE(Has(1)) << "it is our own";
  EXPECT_FALSE(Has(2));
  EXPECT_TRUE(Has(3));
  EXPECT_FALSE(Has(4));
  EXPECT_TRUE(Has(5));
}

TEST_F(CataloguerTest, WhatWasHeardOnAnotherFileSystemIsNotHere) {
  cataloguer_.Tick(now_);
  Hear({1}, {}, /*mount=*/7);
  EXPECT_FALSE(Has(1));
}

TEST_F(CataloguerTest, WhatTheCatalogDoesNotTakeIsKeptUpToALimitAndThenCounted) {
  std::ofstream(fs::path(pfs_folder_.path()) / "v1") << "in the way";
  asides_.SetListener(&cataloguer_);
  cataloguer_.Tick(now_);
  // For hours, a few at a time: all of it waits.
  uint64_t number = 1;
  for (; number < 10000; ++number) {
    Publish(number);
    now_ += kSecond;
    cataloguer_.Tick(now_);
  }
  EXPECT_EQ(pfs().catalog_frames_unsaid.Get(), 0u);
  for (; pfs().catalog_frames_unsaid.Get() == 0; ++number) {
    ASSERT_LT(number, 1000000u);
    Publish(number);
  }
  EXPECT_GT(number, 100000u) << "16 MiB";
  EXPECT_EQ(log_.Count("the catalog of a shared tier takes nothing"), 1u);
}

}  // namespace
}  // namespace kvstream::engine
