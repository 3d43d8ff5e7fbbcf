// What the loop makes of what is found, in orders that threads seldom come in.
#include "server/engine/restorer.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "server/store/chunk_format.h"
#include "tests/support/fake_tier.h"
#include "tests/support/log_recorder.h"

namespace kvstream::engine {
namespace {

constexpr TierId kTier{0};
constexpr ChunkShape kShape{4096, 4096};

class RestorerTest : public testing::Test, public tier::CompletionSink, public EventPoster {
 protected:
  RestorerTest() { restorer_.Tick(0); }

  void OnCompletions(std::span<tier::Completion>) override {}
  void Post(Event) override {}

  static KeyDigest Key(uint8_t number) {
    KeyDigest key;
    key.bytes[0] = number;
    return key;
  }
  static ContentId ContentOf(uint8_t number) {
    return store::ContentIdOf(kShape, std::vector<uint64_t>{number});
  }
  void Found(const std::vector<uint8_t>& numbers, uint64_t mount = 0) {
    FilesFound event{kTier, mount, {}, {}, run_};
    for (const uint8_t number : numbers) {
      event.files.push_back({.key = Key(number),
                             .siblings = SiblingsId{number},
                             .name_space = {},
                             .shape = kShape,
                             .content = ContentOf(number),
                             .checksums = {number},
                             .before = std::nullopt,
                             .unused_seconds = 0});
    }
    restorer_.OnFound(event, 0);
  }
  void Missing(uint8_t number) { restorer_.OnFound({kTier, 0, {}, {Key(number)}, run_}, 0); }
  // As Staging does it.
  void Publish(uint8_t number) {
    const std::vector<uint64_t> checksums = {number};
    const store::ChunkFacts chunk{Key(number), SiblingsId{number}, {},
                                  kShape,      ContentOf(number),  checksums};
    index_.AddReplica(chunk, kTier);
    asides_.NotePublished(kTier, chunk, /*own=*/true);
  }
  bool Has(uint8_t number) const { return index_.OnTiers(Key(number), TierSet::Of(kTier)); }

  test::LogRecorder log_;
  test::FakeTier tier_{{.tier = {.id = kTier, .name = "nvme"}}, this};
  const std::vector<tier::Tier*> tiers_{&tier_};
  EngineStats stats_;
  store::ChunkIndex index_;
  Asides asides_{tiers_, &stats_};
  Evictor evictor_{{tiers_, &index_, &asides_, &stats_}, {}};
  Restorer restorer_{{tiers_, &index_, &asides_, &evictor_, this, &stats_}, RestartOptions(), {}};
  // Never begun: it is told that what it found was taken, which is all that is asked of it.
  const std::shared_ptr<RestoreRun> run_ =
      std::make_shared<RestoreRun>(this, &stats_, RestoreRun::Plan{});
};

TEST_F(RestorerTest, WhatIsFoundIsKnownAndWhatIsMissingIsNot) {
  Found({1, 2});
  EXPECT_TRUE(Has(1) && Has(2));
  EXPECT_EQ(stats_.tiers[0].restored_files.Get(), 2u);
  Missing(1);
  EXPECT_FALSE(Has(1));
  EXPECT_TRUE(Has(2));
}

TEST_F(RestorerTest, WhatWasStoredSinceIsNotMissing) {
  asides_.NoteChanges(kTier, true);
  Found({1});
  index_.RemoveReplicas(Key(1), kTier);  // A read did not find it.
  Publish(1);
  Missing(1);
  EXPECT_TRUE(Has(1));
}

TEST_F(RestorerTest, WhatWasGivenUpSinceDoesNotComeBack) {
  asides_.NoteChanges(kTier, true);
  asides_.GiveUp(kTier, store::ChunkPath({}, Key(1)), Key(1), [](bool, TimeNs) {});
  Found({1, 2});
  EXPECT_FALSE(Has(1));
  EXPECT_TRUE(Has(2));
}

TEST_F(RestorerTest, WhatWasFoundOnAnotherFileSystemIsNotHere) {
  Found({1}, 7);
  EXPECT_FALSE(Has(1));
  restorer_.OnRestored({kTier, 7, true, true});
  EXPECT_FALSE(restorer_.SnapshotRead(kTier));
  restorer_.OnRestored({kTier, 0, true, false});
  EXPECT_TRUE(restorer_.SnapshotRead(kTier));
}

}  // namespace
}  // namespace kvstream::engine
