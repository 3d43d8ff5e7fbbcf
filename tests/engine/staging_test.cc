// Writes of staged chunks that meet files on their way out of their names, in virtual time.
#include "server/engine/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "server/memory/sealed_memory.h"
#include "server/store/chunk_format.h"
#include "server/store/chunk_key.h"
#include "tests/support/fake_tier.h"
#include "tests/support/log_recorder.h"

namespace kvstream::engine {
namespace {

constexpr TierId kTier{0};
constexpr uint64_t kChunkBytes = 8192;

class StagingTest : public testing::Test, public tier::CompletionSink {
 protected:
  explicit StagingTest(uint64_t seed = 1) { Start(seed); }

  void Start(uint64_t seed) {
    test::FakeTier::Options options;
    options.tier.id = kTier;
    options.tier.name = "nvme";
    options.latency = 0;
    options.jitter = kMillisecond;
    options.seed = seed;
    tier_ = std::make_unique<test::FakeTier>(options, this);
    slots_ = std::make_unique<sched::SlotAllocator>(pool_->size(), pool_->size() / 4);
    index_ = std::make_unique<store::ChunkIndex>();
    asides_ = std::make_unique<Asides>(std::vector<tier::Tier*>{tier_.get()}, &stats_);
    sched::WriteQueueOptions writes;
    writes.lanes.push_back({});
    staging_ = std::make_unique<Staging>(Staging::Parts{{tier_.get()},
                                                        slots_.get(),
                                                        pool_->bytes().data(),
                                                        index_.get(),
                                                        asides_.get(),
                                                        nullptr,
                                                        &stats_,
                                                        nullptr,
                                                        {}},
                                         writes);
    now_ = 0;
  }

  void OnCompletions(std::span<tier::Completion> completions) override {
    for (tier::Completion& completion : completions) {
      if (completion.kind == tier::Completion::Kind::kSetAside) {
        asides_->OnCompletion(completion, now_);
      } else {
        staging_->OnWritten(completion, now_);
      }
    }
  }

  // The one chunk of these tests.
  void Add() {
    NewChunk chunk;
    chunk.encoded_key = encoded_;
    chunk.key = store::DigestOfEncodedKey(encoded_);
    chunk.shape = {kChunkBytes, kChunkBytes};
    chunk.slots.push_back(*slots_->AllocateWrite(kChunkBytes));
    std::byte* bytes = pool_->bytes().data() + chunk.slots[0].offset;
    std::memset(bytes, 0x5A, kChunkBytes);
    chunk.checksums = {store::SegmentChecksum(chunk.key, 0, {bytes, kChunkBytes})};
    key_ = chunk.key;
    id_ = staging_->Add(std::move(chunk), now_);
    path_ = staging_->Get(id_).path;
    staging_->Get(id_).waiters.push_back({OperationId{1}, 0});
    staging_->Pump({}, false, now_);
  }
  void AdvanceTo(TimeNs now) {
    while (tier_->NextEventAt() <= now) {
      now_ = std::max(now_, tier_->NextEventAt());
      tier_->AdvanceTo(now_);
      staging_->Pump({}, false, now_);
    }
    now_ = now;
    tier_->AdvanceTo(now_);
  }
  void Damage() { tier_->files().at(path_)[kHeaderBytes + 100] ^= std::byte{1}; }
  bool FileIsWhole() {
    const auto file = tier_->files().find(path_);
    return file != tier_->files().end() && file->second[kHeaderBytes + 100] == std::byte{0x5A};
  }
  // As a read that found it damaged does.
  void SetAside() {
    index_->RemoveReplicas(key_, kTier);
    asides_->Begin(kTier, path_, key_, [] {});
  }
  bool Indexed() const { return index_->Look(key_).place != store::PrefixOrder::kNone; }

  const test::LogRecorder log_;
  const std::string encoded_ = store::EncodeKey({.prefix_hash = std::string(16, 'k')});
  std::unique_ptr<memory::SealedMemory> pool_ =
      *memory::SealedMemory::Create("staging-test", kMiB, false);
  EngineStats stats_;
  std::unique_ptr<test::FakeTier> tier_;
  std::unique_ptr<sched::SlotAllocator> slots_;
  std::unique_ptr<store::ChunkIndex> index_;
  std::unique_ptr<Asides> asides_;
  std::unique_ptr<Staging> staging_;
  TimeNs now_ = 0;
  KeyDigest key_;
  StagedId id_;
  std::string path_;
};

// Whichever comes first, and whichever ends first: what was said to be durable is there.
TEST_F(StagingTest, AStoreThatMeetsAFileOnItsWayOutIsWrittenAnew) {
  int existed = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Start(seed);
    Add();
    AdvanceTo(10 * kMillisecond);
    ASSERT_TRUE(staging_->empty() && FileIsWhole());
    staging_->TakeNotices();
    Damage();
    if (seed % 2 == 0) {
      SetAside();
      AdvanceTo(now_ + static_cast<TimeNs>(seed) * kMicrosecond);
      Add();
    } else {
      Add();
      AdvanceTo(now_ + static_cast<TimeNs>(seed) * kMicrosecond);
      SetAside();
    }
    AdvanceTo(now_ + kSecond);
    ASSERT_TRUE(staging_->empty() && asides_->empty()) << seed;
    const auto notices = staging_->TakeNotices();
    ASSERT_EQ(notices.size(), 1u) << seed;
    EXPECT_EQ(notices[0].code, absl::StatusCode::kOk) << seed;
    // A store whose write was over before anybody found the damage has met the file.
    if (!Indexed()) {
      ++existed;
      EXPECT_EQ(seed % 2, 1u) << seed;
      EXPECT_FALSE(tier_->files().contains(path_)) << seed;
    } else {
      EXPECT_TRUE(FileIsWhole()) << seed;
    }
    EXPECT_EQ(slots_->used(), 0u);
  }
  EXPECT_LT(existed, 60) << "of 100 whose order was open";
}

// A scrub knows that its bytes are not right, and fetches a copy first.
TEST_F(StagingTest, AStoreThatMeetsAFileThatIsKnownToBeDamagedReplacesIt) {
  for (const bool suspected : {false, true}) {
    Start(1);
    Add();
    AdvanceTo(10 * kMillisecond);
    staging_->TakeNotices();
    Damage();
    index_->RemoveReplicas(key_, kTier);
    if (suspected) asides_->Suspect(kTier, key_);
    Add();
    AdvanceTo(20 * kMillisecond);
    ASSERT_TRUE(staging_->empty());
    // A damaged payload under a sound header is not seen by who only looks at that.
    EXPECT_EQ(FileIsWhole(), suspected);
    EXPECT_TRUE(Indexed());
    const auto notices = staging_->TakeNotices();
    ASSERT_EQ(notices.size(), 1u);
    EXPECT_EQ(notices[0].code, absl::StatusCode::kOk);
    EXPECT_FALSE(asides_->Suspected(kTier, key_));
  }
}

TEST_F(StagingTest, AWriteThatWaitsForADamagedFileIsNotBegunForACondemnedChunk) {
  Add();
  AdvanceTo(kSecond);
  staging_->TakeNotices();
  ASSERT_TRUE(Indexed());
  Damage();
  SetAside();
  Add();  // Its write waits for that.
  const uint64_t written = tier_->stats().bytes_written.Get();
  staging_->Condemn(id_, now_);
  AdvanceTo(2 * kSecond);
  staging_->Pump({}, false, now_);
  AdvanceTo(3 * kSecond);
  EXPECT_EQ(tier_->stats().bytes_written.Get(), written);
  EXPECT_TRUE(staging_->empty() && asides_->empty());
  const auto notices = staging_->TakeNotices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(slots_->used(), 0u);
}

TEST_F(StagingTest, ACondemnedChunkIsWithdrawnAndNoCopyOfItIsKept) {
  Add();  // Its write is under way.
  staging_->Condemn(id_, now_);
  staging_->Condemn(id_, now_);
  EXPECT_EQ(stats_.staged_chunks_damaged.Get(), 1u);
  EXPECT_EQ(log_.Count("staged chunks change in the pool"), 1u);
  EXPECT_FALSE(index_->Find(key_).has_value());
  EXPECT_EQ(staging_->Find(key_), nullptr);
  // The bytes were changed before they were written.
  pool_->bytes()[staging_->Get(id_).slots[0].offset + 100] ^= std::byte{1};
  AdvanceTo(kSecond);
  EXPECT_TRUE(staging_->empty() && asides_->empty());
  EXPECT_TRUE(tier_->files().empty());
  EXPECT_FALSE(index_->Find(key_).has_value());
  const auto notices = staging_->TakeNotices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(slots_->used(), 0u);
  Add();
  AdvanceTo(2 * kSecond);
  EXPECT_TRUE(Indexed() && FileIsWhole());
}

TEST_F(StagingTest, DamagedFilesThatCannotBeSetAsideAreCountedAndSaidOnceAMinute) {
  const std::string path = "v1/aa/bb/x.kv";
  uint64_t done = 0;
  const auto fail = [&](uint64_t ticket, TimeNs now) {
    asides_->Begin(kTier, path, key_, [&done] { ++done; });
    asides_->OnCompletion({.kind = tier::Completion::Kind::kSetAside,
                           .tier = kTier,
                           .ticket = Ticket{ticket},
                           .code = absl::StatusCode::kUnavailable,
                           .error = EIO},
                          now);
  };
  for (uint64_t i = 1; i <= 3; ++i) fail(i, kSecond);
  EXPECT_EQ(done, 3u) << "nobody waits for ever";
  EXPECT_EQ(stats_.tiers[0].set_aside_failures.Get(), 3u);
  EXPECT_EQ(stats_.tiers[0].files_set_aside.Get(), 0u);
  EXPECT_EQ(log_.Count("damaged files cannot be set aside: tier=nvme"), 1u);
  fail(4, 62 * kSecond);
  EXPECT_EQ(log_.Count("damaged files cannot be set aside: tier=nvme"), 2u);
  tier_->Crash();  // It has them still.
}

}  // namespace
}  // namespace kvstream::engine
