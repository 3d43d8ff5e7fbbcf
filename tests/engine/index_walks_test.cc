// What operators ask of the whole index, in virtual time over two tiers.
#include "server/engine/index_walks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/memory/sealed_memory.h"
#include "server/store/chunk_format.h"
#include "server/store/chunk_key.h"
#include "tests/support/fake_tier.h"
#include "tests/support/log_recorder.h"

namespace kvstream::engine {
namespace {

using ::testing::HasSubstr;

constexpr TierId kNvme{0};
constexpr TierId kPfs{1};
constexpr ChunkShape kShape{.payload_bytes = 60 * kKiB, .segment_bytes = 60 * kKiB};
constexpr uint64_t kFileBytes = 64 * kKiB;

class IndexWalksTest : public testing::Test, public tier::CompletionSink {
 protected:
  IndexWalksTest() {
    std::vector<tier::Tier*> tiers;
    for (uint32_t t = 0; t < 2; ++t) {
      test::FakeTier::Options options;
      options.tier.id = TierId{t};
      options.tier.name = t == 0 ? "nvme" : "pfs";
      tiers_[t] = std::make_unique<test::FakeTier>(options, this);
      tiers.push_back(tiers_[t].get());
    }
    asides_ = std::make_unique<Asides>(tiers, &stats_);
    evictor_ = std::make_unique<Evictor>(Evictor::Parts{tiers, &index_, asides_.get(), &stats_},
                                         std::vector<CapacityOptions>{});
    sched::WriteQueueOptions writes;
    writes.lanes.resize(2);
    staging_ =
        std::make_unique<Staging>(Staging::Parts{tiers, &slots_, pool_->bytes().data(), &index_,
                                                 asides_.get(), evictor_.get(), &stats_},
                                  writes);
    walks_ = std::make_unique<IndexWalks>(
        IndexWalks::Parts{tiers, &index_, evictor_.get(), staging_.get(), &stats_});
  }
  void OnCompletions(std::span<tier::Completion> completions) override {
    for (tier::Completion& completion : completions) {
      if (completion.kind == tier::Completion::Kind::kSetAside) {
        asides_->OnCompletion(completion, now_);
      }
    }
  }

  static store::ChunkKey KeyOf(uint32_t number, uint32_t shard) {
    store::ChunkKey key;
    key.shard = shard;
    key.shards = 2;
    key.prefix_hash = std::string(12, 'k') + std::to_string(100000 + number);
    return key;
  }
  static KeyDigest Key(uint32_t number, uint32_t shard = 0) {
    return store::DigestOfKey(KeyOf(number, shard));
  }
  static SiblingsId Siblings(uint32_t number) { return store::SiblingsOf(KeyOf(number, 0)); }
  static std::string PathOf(uint32_t number) { return store::ChunkPath({}, Key(number)); }

  // Files that the index knows of. Numbers that follow one another are a prefix.
  void Add(uint32_t number, TierId tier, bool own = true) {
    const std::vector<uint64_t> checksums = {number};
    index_.AddReplica({Key(number), Siblings(number), {}, kShape, {}, checksums}, tier, own);
    tiers_[tier.value]->files()[PathOf(number)].resize(kFileBytes);
  }
  void AddPrefix(uint32_t first, uint32_t count, std::vector<TierId> on = {kNvme, kPfs}) {
    for (uint32_t number = first; number < first + count; ++number) {
      for (const TierId tier : on) Add(number, tier);
      if (number > first) index_.Follow(index_.Look(Key(number)), index_.Look(Key(number - 1)));
    }
    index_.Touch(Key(first + count - 1), now_, /*force=*/true);
  }

  using Evicted = std::optional<absl::StatusOr<EvictResult>>;
  void Evict(EvictChunks request, Evicted* result) {
    request.reply = [result](absl::StatusOr<EvictResult> got) { *result = std::move(got); };
    walks_->Begin(std::move(request));
  }
  using Listed = std::optional<absl::StatusOr<NamespaceUsages>>;
  void List(Listed* result) {
    walks_->Begin(
        ListUsage{[result](absl::StatusOr<NamespaceUsages> got) { *result = std::move(got); }});
  }
  void Turn() {
    evictor_->Tick(now_);
    walks_->Pump(now_);
    walks_->SendReplies();
  }
  // Turns of the loop until it waits for nothing; a tier that hangs has no events.
  void Run(bool pfs_hangs = false) {
    for (int turns = 0; turns < 100000; ++turns) {
      Turn();
      TimeNs next = std::min(walks_->NextDeadline(), tiers_[0]->NextEventAt());
      if (!pfs_hangs) next = std::min(next, tiers_[1]->NextEventAt());
      if (next == kNever) return;
      now_ = std::max(now_, next);
      tiers_[0]->AdvanceTo(now_);
      if (!pfs_hangs) tiers_[1]->AdvanceTo(now_);
    }
    ADD_FAILURE() << "it does not end";
  }

  const test::LogRecorder log_;
  const std::unique_ptr<memory::SealedMemory> pool_ =
      *memory::SealedMemory::Create("index-walks-test", kMiB, false);
  EngineStats stats_;
  sched::SlotAllocator slots_{kMiB, 64 * kKiB};
  store::ChunkIndex index_;
  std::array<std::unique_ptr<test::FakeTier>, 2> tiers_;
  std::unique_ptr<Asides> asides_;
  std::unique_ptr<Evictor> evictor_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<IndexWalks> walks_;
  TimeNs now_ = 1000 * kSecond;
};

TEST_F(IndexWalksTest, AListOfALargeIndexTakesTurnsAndListsShareThem) {
  AddPrefix(0, 9000, {kNvme});
  Add(9000, kPfs, /*own=*/false);
  std::array<Listed, 3> listed;
  for (Listed& list : listed) List(&list);
  Turn();
  EXPECT_FALSE(listed[0].has_value());
  EXPECT_EQ(walks_->NextDeadline(), 0) << "there is more to do";
  Run();
  for (const Listed& list : listed) {
    ASSERT_TRUE(list.has_value());
    const NamespaceUsage& usage = list->value().at(NamespaceId());
    EXPECT_EQ(usage.all.chunks, 9001u);
    EXPECT_EQ(usage.tiers[0].files, 9000u);
    EXPECT_EQ(usage.tiers[0].bytes, 9000 * kFileBytes);
    EXPECT_EQ(usage.tiers[1].files, 0u);
    EXPECT_EQ(usage.tiers[1].hints, 1u);
    EXPECT_EQ(usage.unused_seconds_max, 0u);
  }
}

TEST_F(IndexWalksTest, WhatIsOnlyOtherNodesHasNoUseHere) {
  Add(1, kPfs, /*own=*/false);
  Listed listed;
  List(&listed);
  Run();
  const NamespaceUsage& usage = listed->value().at(NamespaceId());
  EXPECT_GT(usage.unused_seconds_min, usage.unused_seconds_max);
  Evicted evicted;
  Evict({}, &evicted);
  Run();
  EXPECT_EQ(evicted->value().chunks, 0u) << "it is left to them";
  EXPECT_TRUE(index_.OnTiers(Key(1), TierSet::Of(kPfs)));
}

TEST_F(IndexWalksTest, AllGoesAndTheBooksAreRight) {
  AddPrefix(0, 5000);
  Evicted evicted;
  Evict({}, &evicted);
  Run();
  ASSERT_TRUE(evicted.has_value());
  EXPECT_EQ(evicted->value().chunks, 5000u);
  EXPECT_EQ(evicted->value().bytes, 10000 * kFileBytes);
  EXPECT_EQ(stats_.operator_evicted_chunks.Get(), 5000u);
  EXPECT_EQ(index_.chunks(), 0u);
  for (uint32_t t = 0; t < 2; ++t) {
    EXPECT_TRUE(tiers_[t]->files().empty());
    EXPECT_EQ(index_.tier_usage(TierId{t}).bytes, 0u);
  }
}

TEST_F(IndexWalksTest, ALongPrefixGoesFromWhereItWasNamed) {
  AddPrefix(0, 20000, {kNvme});
  AddPrefix(30000, 10, {kNvme});
  EvictChunks request;
  request.prefixes = {Siblings(15000), Siblings(30009)};
  Evicted evicted;
  Evict(std::move(request), &evicted);
  Run();
  EXPECT_EQ(evicted->value().chunks, 5001u);
  for (const uint32_t stays : {0u, 14999u, 30008u}) {
    EXPECT_TRUE(index_.OnTiers(Key(stays), TierSet::Of(kNvme))) << stays;
  }
  for (const uint32_t goes : {15000u, 19999u, 30009u}) {
    EXPECT_FALSE(index_.OnTiers(Key(goes), TierSet::Of(kNvme))) << goes;
  }
}

TEST_F(IndexWalksTest, ATierThatHangsKeepsItsOwnAndHoldsUpNobodyElse) {
  AddPrefix(0, 100);
  const TimeNs began = now_;
  Evicted evicted;
  Evict({}, &evicted);
  Listed listed;
  for (int i = 0; i < 10; ++i) Turn();
  EXPECT_FALSE(evicted.has_value());
  List(&listed);
  Turn();
  EXPECT_TRUE(listed.has_value()) << "it does not wait for the eviction";
  EXPECT_EQ(walks_->NextDeadline(), began + IndexWalks::kPatience) << "the loop would spin";
  Run(/*pfs_hangs=*/true);
  ASSERT_TRUE(evicted.has_value());
  EXPECT_EQ(evicted->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(evicted->status().message()), HasSubstr("tier pfs"));
  EXPECT_EQ(stats_.operator_evictions_unfinished.Get(), 1u);
  EXPECT_EQ(log_.Count("an eviction has left files"), 1u);
  EXPECT_TRUE(tiers_[0]->files().empty());
  EXPECT_EQ(index_.tier_usage(kPfs).files, 100u - 8) << "in the order of the index";
  EXPECT_LT(now_, began + 2 * IndexWalks::kPatience);
}

TEST_F(IndexWalksTest, SiblingsStayTogetherWhileOneIsStillToBeWritten) {
  Add(1, kNvme);
  NewChunk other;
  other.encoded_key = store::EncodeKey(KeyOf(1, 1));
  other.key = Key(1, 1);
  other.siblings = Siblings(1);
  other.shape = kShape;
  other.slots.push_back(*slots_.AllocateWrite(kShape.PaddedBytesOf(0)));
  other.checksums = {1};
  staging_->Add(std::move(other), now_);
  Evicted evicted;
  Evict({}, &evicted);
  Run();
  EXPECT_EQ(evicted->value().chunks, 0u);
  EXPECT_EQ(evicted->value().kept, 2u);
  EXPECT_TRUE(index_.OnTiers(Key(1), TierSet::Of(kNvme)));
}

TEST_F(IndexWalksTest, TooManyAreRefusedAndADrainAnswersThoseThatWait) {
  AddPrefix(0, 100);
  std::vector<Evicted> evicted(IndexWalks::kEvictionsMax + 1);
  for (Evicted& each : evicted) Evict({}, &each);
  Turn();
  ASSERT_TRUE(evicted.back().has_value());
  EXPECT_EQ(evicted.back()->status().code(), absl::StatusCode::kResourceExhausted);
  evicted.pop_back();
  walks_->EndEvictions(absl::UnavailableError("the daemon is draining"));
  Listed listed;
  List(&listed);
  walks_->EndLists(absl::UnavailableError("the daemon stops"));
  Turn();
  for (const Evicted& each : evicted) {
    ASSERT_TRUE(each.has_value());
    EXPECT_EQ(each->status().code(), absl::StatusCode::kUnavailable);
  }
  ASSERT_TRUE(listed.has_value());
  EXPECT_EQ(listed->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(walks_->NextDeadline(), kNever);
}

}  // namespace
}  // namespace kvstream::engine
