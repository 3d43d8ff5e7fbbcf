// What operators ask of the whole index: namespaces listed, chunks evicted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "client/admin.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kChunkBytes = 64 * 1024;
constexpr size_t kPrefix = 32;
constexpr uint64_t kFileBytes = kChunkBytes + 4096;

class EvictTest : public testing::Test {
 protected:
  EvictTest() : admin_(daemon_.socket(), kPatience) {}

  v1::EvictReply Evict(const v1::EvictRequest& request) {
    const auto reply = admin_.Evict(request);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.value_or(v1::EvictReply());
  }
  v1::EvictRequest Of(const Worker& worker) const {
    v1::EvictRequest request;
    request.set_namespace_id(worker.namespace_id());
    return request;
  }
  std::optional<v1::ListNamespacesReply::Entry> Listed(const Worker& worker) {
    const auto reply = admin_.ListNamespaces();
    EXPECT_TRUE(reply.ok()) << reply.status();
    for (const auto& entry : reply->namespaces()) {
      if (entry.namespace_id() == worker.namespace_id()) return entry;
    }
    return std::nullopt;
  }
  void WaitForFiles(size_t files) {
    for (size_t t = 0; t < 2; ++t) {
      daemon_.WaitUntil([&] { return daemon_.Files(t).size() == files; }, "files are deleted");
      EXPECT_EQ(daemon_.stats().tiers[t].chunk_files.Get(), files);
      EXPECT_EQ(daemon_.stats().tiers[t].chunk_bytes.Get(), files * kFileBytes);
    }
  }
  static Worker::Shape ShapeOf(const std::string& model) {
    return {.chunk_bytes = kChunkBytes,
            .segment_bytes = 16 * 1024,
            .buffer_bytes = kPrefix * kChunkBytes,
            .change_namespace = [model](v1::Namespace* space) { space->set_model(model); }};
  }

  TestDaemon daemon_{[](config::Options& o) { o.cache = config::CacheChoice::kArc; }};
  Admin admin_;
  Worker one_{daemon_.socket(), ShapeOf("one")};
  Worker other_{daemon_.socket(), ShapeOf("other")};
};

TEST_F(EvictTest, ANamespaceIsListedWithWhatItHasOnEachTier) {
  ASSERT_TRUE(one_.Put(Keys(1, 5)).ok());
  daemon_.WaitWritten();
  const auto entry = Listed(one_);
  ASSERT_TRUE(entry.has_value());
  EXPECT_EQ(entry->chunks(), 5u);
  EXPECT_EQ(entry->bytes(), 5 * kChunkBytes);
  EXPECT_EQ(entry->staged_chunks(), 5u);  // In the DRAM cache.
  ASSERT_EQ(entry->tiers_size(), 2);
  for (const auto& tier : entry->tiers()) {
    EXPECT_EQ(tier.files(), 5u);
    EXPECT_EQ(tier.bytes(), 5 * kFileBytes);
    EXPECT_EQ(tier.hints(), 0u);
  }
  EXPECT_LE(entry->unused_ms_min(), entry->unused_ms_max());
  EXPECT_LT(entry->unused_ms_max(), 600'000u);
  const auto empty = Listed(other_);
  ASSERT_TRUE(empty.has_value()) << "it is registered";
  EXPECT_EQ(empty->chunks(), 0u);
}

TEST_F(EvictTest, ANamespaceGoesWithAllItsFilesAndCopiesAndOthersStay) {
  ASSERT_TRUE(one_.Put(Keys(1, kPrefix)).ok());
  ASSERT_TRUE(other_.Put(Keys(1, kPrefix)).ok());
  daemon_.WaitWritten();

  v1::EvictRequest request = Of(one_);
  request.set_dry_run(true);
  EXPECT_EQ(Evict(request).chunks(), kPrefix);
  EXPECT_EQ(one_.Look(Keys(1, kPrefix)), kPrefix) << "it was only counted";

  request.set_dry_run(false);
  const v1::EvictReply reply = Evict(request);
  EXPECT_EQ(reply.chunks(), kPrefix);
  EXPECT_EQ(reply.bytes(), 3 * kPrefix * kFileBytes) << "on two tiers and in the pool";
  EXPECT_EQ(reply.kept(), 0u);
  EXPECT_EQ(one_.Look(Keys(1, kPrefix)), 0u);
  EXPECT_EQ(other_.Look(Keys(1, kPrefix)), kPrefix);
  WaitForFiles(kPrefix);
  EXPECT_EQ(other_.Get(Keys(1, kPrefix)).leading_valid(), kPrefix);

  ASSERT_TRUE(one_.Put(Keys(1, kPrefix)).ok()) << "its names are free again";
  EXPECT_EQ(one_.Get(Keys(1, kPrefix)).leading_valid(), kPrefix);
  EXPECT_TRUE(one_.Holds(kPrefix, kPrefix - 1));
}

TEST_F(EvictTest, APrefixGoesFromTheChunkThatWasNamed) {
  ASSERT_TRUE(one_.Put(Keys(1, kPrefix)).ok());
  ASSERT_TRUE(one_.Put(Keys(1001, 4)).ok());
  daemon_.WaitWritten();
  v1::EvictRequest request = Of(one_);
  request.add_prefix_hashes(one_.At(11, 0).prefix_hash());
  EXPECT_EQ(Evict(request).chunks(), kPrefix - 10);
  EXPECT_EQ(one_.Look(Keys(1, kPrefix)), 10u);
  EXPECT_EQ(one_.Look(Keys(1001, 4)), 4u);
  WaitForFiles(10 + 4);
}

TEST_F(EvictTest, WhatWasUsedJustNowIsNotOld) {
  ASSERT_TRUE(one_.Put(Keys(1, 3)).ok());
  v1::EvictRequest request;
  request.set_older_than_ms(3'600'000);
  EXPECT_EQ(Evict(request).chunks(), 0u);
  EXPECT_EQ(one_.Look(Keys(1, 3)), 3u);
}

TEST_F(EvictTest, ALeasedChunkStays) {
  ASSERT_TRUE(one_.Put(Keys(1, 4)).ok());
  daemon_.WaitWritten();
  v1::LookupRequest lookup;
  lookup.set_namespace_id(one_.namespace_id());
  lookup.set_lease_ms(60'000);
  for (const uint64_t key : Keys(3, 2)) {
    AddPrefixHash(one_.At(key, 0).prefix_hash(), &lookup);
  }
  const auto leased = one_.client().Lookup(lookup);
  ASSERT_TRUE(leased.ok()) << leased.status();
  const v1::EvictReply reply = Evict(Of(one_));
  EXPECT_EQ(reply.chunks(), 2u);
  EXPECT_EQ(reply.kept(), 2u);
  EXPECT_EQ(one_.Look(Keys(1, 4)), 0u);
  EXPECT_EQ(one_.Look(Keys(3, 2)), 2u);
  ASSERT_TRUE(one_.client().Release(leased->lease_id()).ok());
}

TEST_F(EvictTest, WhatWasFoundAtAStartGoesThoughNobodyHasRegisteredIt) {
  ASSERT_TRUE(one_.Put(Keys(1, kPrefix)).ok());
  const v1::EvictRequest request = Of(one_);
  daemon_.Restart();
  daemon_.WaitUntil(
      [this] {
        return daemon_.stats().tiers[0].chunk_files.Get() == kPrefix &&
               daemon_.stats().tiers[1].chunk_files.Get() == kPrefix;
      },
      "its files are found");
  EXPECT_EQ(Admin(daemon_.socket(), kPatience).Evict(request)->chunks(), kPrefix);
  WaitForFiles(0);
}

TEST_F(EvictTest, ADaemonThatDrainsEvictsNoMore) {
  ASSERT_TRUE(one_.Put(Keys(1, 2)).ok());
  ASSERT_TRUE(admin_.Drain(kPatience).ok());
  EXPECT_EQ(admin_.Evict(Of(one_)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(daemon_.Files(0).size(), 2u);
}

TEST_F(EvictTest, WhatIsWrongIsRefusedAndNothingGoes) {
  ASSERT_TRUE(one_.Put(Keys(1, 2)).ok());
  v1::EvictRequest nobodys;
  nobodys.add_prefix_hashes(one_.At(1, 0).prefix_hash());
  v1::EvictRequest short_hash = Of(one_);
  short_hash.add_prefix_hashes("short");
  v1::EvictRequest salt = Of(one_);
  salt.set_salt("tenant");
  v1::EvictRequest short_id;
  short_id.set_namespace_id("short");
  const std::pair<v1::EvictRequest, const char*> cases[] = {
      {nobodys, "namespace_id: missing"},
      {salt, "salt: without prefix hashes"},
      {short_hash, "prefix_hashes[0]: 5 bytes"},
      {short_id, "namespace_id: 5 bytes"}};
  for (const auto& [request, cause] : cases) {
    const absl::Status status = admin_.Evict(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(cause));
  }
  EXPECT_EQ(one_.Look(Keys(1, 2)), 2u);
}

}  // namespace
}  // namespace kvstream
