// What tiers give up, in virtual time.
#include "server/engine/evictor.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "server/engine/staging.h"
#include "server/memory/sealed_memory.h"
#include "server/store/chunk_format.h"
#include "server/store/chunk_key.h"
#include "tests/support/fake_tier.h"
#include "tests/support/log_recorder.h"

namespace kvstream::engine {
namespace {

constexpr TierId kTier{0};
constexpr ChunkShape kShape{.payload_bytes = 60 * kKiB, .segment_bytes = 60 * kKiB};
constexpr uint64_t kFileBytes = 64 * kKiB;

class EvictorTest : public testing::Test, public tier::CompletionSink {
 protected:
  EvictorTest() { EXPECT_EQ(kShape.file_bytes(), kFileBytes); }

  void Start(const CapacityOptions& capacity, uint64_t room = UINT64_MAX / 2) {
    test::FakeTier::Options options;
    options.tier.id = kTier;
    options.tier.name = "nvme";
    options.capacity_bytes = room;
    tier_ = std::make_unique<test::FakeTier>(options, this);
    const std::vector<tier::Tier*> tiers{tier_.get()};
    asides_ = std::make_unique<Asides>(tiers, &stats_);
    evictor_ = std::make_unique<Evictor>(Evictor::Parts{tiers, &index_, asides_.get(), &stats_},
                                         std::vector<CapacityOptions>{capacity});
    sched::WriteQueueOptions writes;
    writes.lanes.push_back({});
    staging_ = std::make_unique<Staging>(Staging::Parts{tiers,
                                                        &slots_,
                                                        pool_->bytes().data(),
                                                        &index_,
                                                        asides_.get(),
                                                        evictor_.get(),
                                                        &stats_,
                                                        nullptr,
                                                        {}},
                                         writes);
  }
  void OnCompletions(std::span<tier::Completion> completions) override {
    for (tier::Completion& completion : completions) {
      if (completion.kind == tier::Completion::Kind::kSetAside) {
        asides_->OnCompletion(completion, tier_->now());
      } else if (completion.kind == tier::Completion::Kind::kMeasure) {
        evictor_->OnMeasured(completion, tier_->now());
      } else {
        staging_->OnWritten(completion, tier_->now());
      }
    }
  }

  static store::ChunkKey KeyOf(uint32_t number, uint32_t shard = 0) {
    store::ChunkKey key;
    key.shard = shard;
    key.shards = 2;
    key.prefix_hash = std::string(12, 'k') + std::to_string(1000 + number);
    return key;
  }
  static KeyDigest Key(uint32_t number, uint32_t shard = 0) {
    return store::DigestOfKey(KeyOf(number, shard));
  }
  static std::string PathOf(uint32_t number, uint32_t shard = 0) {
    return store::ChunkPath({}, Key(number, shard));
  }
  // A file that the index knows of. Numbers that follow one another are a prefix.
  void Add(uint32_t number, uint32_t shard = 0, bool own = true) {
    const std::vector<uint64_t> checksums = {number};
    const store::ChunkFacts facts{
        Key(number, shard), store::SiblingsOf(KeyOf(number)), {}, kShape, {}, checksums};
    index_.AddReplica(facts, kTier, own);
    tier_->files()[PathOf(number, shard)].resize(kFileBytes);
  }
  void AddPrefix(uint32_t first, uint32_t count) {
    for (uint32_t number = first; number < first + count; ++number) {
      Add(number);
      if (number > first) index_.Follow(index_.Look(Key(number)), index_.Look(Key(number - 1)));
    }
    index_.Touch(Key(first + count - 1), tier_->now(), /*force=*/true);
  }
  // Until nothing is under way.
  void Run() {
    for (int turns = 0; turns < 1000; ++turns) {
      evictor_->Tick(tier_->now());
      EXPECT_GT(evictor_->NextDeadline(), tier_->now()) << "the loop would spin";
      staging_->Pump({}, false, tier_->now());
      if (tier_->NextEventAt() == kNever) return;
      tier_->AdvanceTo(tier_->NextEventAt());
    }
    ADD_FAILURE() << "it does not end";
  }
  bool Has(uint32_t number, uint32_t shard = 0) {
    const bool known = index_.OnTiers(Key(number, shard), TierSet::Of(kTier));
    EXPECT_EQ(known, tier_->files().contains(PathOf(number, shard)));
    return known;
  }
  uint64_t BytesThere() const {
    uint64_t bytes = 0;
    for (const auto& [path, file] : tier_->files()) bytes += file.size();
    return bytes;
  }
  StagedId Stage(uint32_t number) {
    NewChunk chunk;
    chunk.encoded_key = store::EncodeKey(KeyOf(number));
    chunk.key = Key(number);
    chunk.siblings = store::SiblingsOf(KeyOf(number));
    chunk.shape = kShape;
    chunk.slots.push_back(*slots_.AllocateWrite(kShape.PaddedBytesOf(0)));
    std::byte* const bytes = pool_->bytes().data() + chunk.slots[0].offset;
    chunk.checksums = {store::SegmentChecksum(chunk.key, 0, {bytes, kShape.payload_bytes})};
    const StagedId id = staging_->Add(std::move(chunk), tier_->now());
    staging_->Get(id).waiters.push_back({OperationId{number}, 0});
    return id;
  }

  const test::LogRecorder log_;
  const std::unique_ptr<memory::SealedMemory> pool_ =
      *memory::SealedMemory::Create("evictor-test", kMiB, false);
  EngineStats stats_;
  const TierEngineStats& tier_stats_ = stats_.tiers[0];
  sched::SlotAllocator slots_{kMiB, 64 * kKiB};
  store::ChunkIndex index_;
  std::unique_ptr<test::FakeTier> tier_;
  std::unique_ptr<Asides> asides_;
  std::unique_ptr<Evictor> evictor_;
  std::unique_ptr<Staging> staging_;
};

TEST_F(EvictorTest, WithinItsLimitATierKeepsAll) {
  Start({.bytes_max = 64 * kFileBytes});
  for (uint32_t number = 1; number <= 62; ++number) Add(number);
  Run();
  EXPECT_EQ(tier_->files().size(), 62u);
  EXPECT_EQ(tier_stats_.files_evicted.Get(), 0u);
}

TEST_F(EvictorTest, BeyondItThePrefixNobodyUsedGoesFromItsEnd) {
  Start({.bytes_max = 64 * kFileBytes});
  AddPrefix(1, 40);
  AddPrefix(101, 40);
  Run();
  EXPECT_EQ(tier_->files().size(), 60u);
  EXPECT_TRUE(Has(1) && Has(20) && Has(140));
  EXPECT_FALSE(Has(21) || Has(40));
  EXPECT_EQ(tier_stats_.files_evicted.Get(), 20u);
  EXPECT_EQ(tier_stats_.bytes_evicted.Get(), 20 * kFileBytes);
  evictor_->PublishStats();
  EXPECT_EQ(tier_stats_.chunk_files.Get(), 60u);
  EXPECT_EQ(tier_stats_.chunk_bytes.Get(), BytesThere());
}

TEST_F(EvictorTest, ShardsOfAChunkGoTogether) {
  Start({.bytes_max = 16 * kFileBytes});
  for (const uint32_t shard : {0, 1}) {
    for (uint32_t number = 1; number <= 10; ++number) Add(number, shard);
  }
  Run();
  for (uint32_t number = 1; number <= 10; ++number) EXPECT_EQ(Has(number, 0), Has(number, 1));
  EXPECT_EQ(tier_->files().size(), 14u);
}

TEST_F(EvictorTest, WhatALeaseProtectsStaysWithAllThatIsBeforeIt) {
  Start({.bytes_max = 16 * kFileBytes});
  AddPrefix(1, 20);
  EXPECT_TRUE(index_.AddLease(Key(20)));
  Run();
  EXPECT_EQ(tier_->files().size(), 20u);
  EXPECT_EQ(tier_stats_.evictions_stuck.Get(), 1u);
  EXPECT_EQ(log_.Count("a tier is full, and has nothing to give up: tier=nvme"), 1u);
  AddPrefix(101, 3);
  tier_->AdvanceTo(tier_->now() + kSecond);
  Run();
  EXPECT_FALSE(Has(101) || Has(103));
  EXPECT_TRUE(Has(1) && Has(20));
  index_.DropLease(Key(20));
  tier_->AdvanceTo(tier_->now() + kSecond);
  Run();
  EXPECT_FALSE(Has(20) || Has(16));
  EXPECT_TRUE(Has(1) && Has(15));
}

TEST_F(EvictorTest, TheFileSystemsFloorIsKept) {
  Start({.free_percent_min = 25}, 100 * kFileBytes);
  for (uint32_t number = 1; number <= 80; ++number) Add(number);
  Run();
  EXPECT_EQ(tier_->files().size(), 71u);  // An eighth more than the floor is free.
  tier_->AdvanceTo(tier_->now() + 2 * kSecond);
  Run();
  EXPECT_EQ(tier_->files().size(), 71u);
  EXPECT_EQ(tier_stats_.space_bytes.Get(), 100 * kFileBytes);
  EXPECT_EQ(tier_stats_.space_free_bytes.Get(), 29 * kFileBytes);
}

TEST_F(EvictorTest, AWriteThatFindsNoRoomIsBegunAgainOnceThereIsSome) {
  Start({}, 8 * kFileBytes);
  for (uint32_t number = 1; number <= 8; ++number) Add(number);
  Stage(100);
  Run();
  const auto notices = staging_->TakeNotices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].code, absl::StatusCode::kOk);
  EXPECT_TRUE(Has(100));
  EXPECT_EQ(tier_->files().size(), 8u);
  EXPECT_EQ(tier_stats_.failed_writes.Get(), 0u);
}

TEST_F(EvictorTest, WhereThereIsNothingToGiveUpTheWriteFails) {
  Start({}, kFileBytes / 2);
  Stage(100);
  Run();
  const auto notices = staging_->TakeNotices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(tier_stats_.failed_writes.Get(), 1u);
  EXPECT_EQ(tier_stats_.evictions_stuck.Get(), 1u);
}

TEST_F(EvictorTest, AFileThatCannotBeDeletedIsCountedAndSaid) {
  Start({});
  asides_->GiveUp(kTier, PathOf(1), Key(1), [](bool unlinked, TimeNs) { EXPECT_FALSE(unlinked); });
  asides_->OnCompletion({.kind = tier::Completion::Kind::kSetAside,
                         .tier = kTier,
                         .ticket = Ticket{1},
                         .code = absl::StatusCode::kUnavailable,
                         .error = EIO},
                        0);
  EXPECT_EQ(tier_stats_.eviction_failures.Get(), 1u);
  EXPECT_EQ(tier_stats_.set_aside_failures.Get(), 0u);
  EXPECT_EQ(log_.Count("chunks that are given up cannot be deleted: tier=nvme"), 1u);
}

TEST_F(EvictorTest, WhereDeletingMakesNoRoomTheTierIsNotEmptied) {
  Start({.free_percent_min = 1}, 1000 * kFileBytes);
  for (uint32_t number = 1; number <= 100; ++number) Add(number);
  for (int round = 0; round < 6; ++round) {
    // Others take what it frees.
    std::vector<std::byte>& others = tier_->files()["others"];
    others.resize(others.size() + 999 * kFileBytes - BytesThere());
    Run();
    tier_->AdvanceTo(tier_->now() + 2 * kSecond);
  }
  EXPECT_EQ(tier_stats_.evictions_in_vain.Get(), 1u);
  EXPECT_LT(tier_stats_.files_evicted.Get(), 50u);
  EXPECT_EQ(log_.Count("deleting chunks makes no room, and is left off for a minute: tier=nvme"),
            1u);
}

TEST_F(EvictorTest, WhatIsNotOursStaysAndIsNotCounted) {
  Start({.bytes_max = 16 * kFileBytes});
  for (uint32_t number = 1; number <= 12; ++number) Add(number, 0, /*own=*/false);
  for (uint32_t number = 21; number <= 36; ++number) Add(number);
  Run();
  for (uint32_t number = 1; number <= 12; ++number) EXPECT_TRUE(Has(number));
  EXPECT_EQ(index_.tier_usage(kTier).files, 15u);
  EXPECT_FALSE(Has(21));
}

TEST_F(EvictorTest, AFileSystemThatIsMountedAnewBeginsEmpty) {
  Start({.bytes_max = 16 * kFileBytes});
  for (uint32_t number = 1; number <= 12; ++number) Add(number);
  tier_->files().clear();
  tier_->stats().remounts.Add();
  Run();
  EXPECT_EQ(index_.tier_usage(kTier).bytes, 0u);
  EXPECT_FALSE(Has(1));
  EXPECT_EQ(tier_stats_.files_evicted.Get(), 0u);
}

TEST_F(EvictorTest, WhatNoPrefixReachesIsCounted) {
  Start({});
  AddPrefix(1, 5);
  index_.RemoveReplicas(Key(3), kTier);
  tier_->files().erase(PathOf(3));
  Run();
  evictor_->PublishStats();
  EXPECT_EQ(tier_stats_.cut_off_bytes.Get(), 2 * kFileBytes);
}

// Whatever is stored again while its file is being deleted: what was said to be durable is there.
TEST_F(EvictorTest, AStoreOfWhatIsBeingGivenUpIsWrittenAnew) {
  Start({.bytes_max = 16 * kFileBytes});
  for (uint32_t number = 1; number <= 16; ++number) Add(number);
  evictor_->Tick(0);
  ASSERT_FALSE(index_.OnTiers(Key(1), TierSet::Of(kTier)));
  ASSERT_TRUE(tier_->files().contains(PathOf(1))) << "not yet";
  Stage(1);
  Run();
  EXPECT_EQ(staging_->TakeNotices().at(0).code, absl::StatusCode::kOk);
  EXPECT_TRUE(Has(1));
}

}  // namespace
}  // namespace kvstream::engine
