#include "server/rpc/translate_unary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "server/rpc/encode.h"
#include "server/store/chunk_key.h"
#include "tests/rpc/rig.h"

namespace kvstream::rpc {
namespace {

class TranslateUnaryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto info = namespaces_.Register(TranslateNamespace(TestNamespace()), {});
    ASSERT_TRUE(info.ok()) << info.status();
    info_ = *info;
    id_ = RawBytes(info_->id);
  }

  v1::LookupRequest LookupOf() const {
    v1::LookupRequest request;
    request.set_namespace_id(id_);
    request.set_prefix_hashes(std::string(64, 'a') + std::string(64, 'b'));
    request.set_prefix_hash_bytes(64);
    return request;
  }

  Limits limits_ = TestLimits();
  store::NamespaceRegistry namespaces_{
      store::NamespaceLimits{16 * kKiB, 16 * kMiB, 4 * kMiB, 64 * kMiB}};
  store::NamespaceRef info_;
  std::string id_;
};

template <typename Message>
struct Case {
  std::function<void(Message*)> spoil;
  absl::StatusCode code;
  std::string says;
};

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST_F(TranslateUnaryTest, ALookupAsksForTheLocalShardsOfTheChosenGroups) {
  v1::LookupRequest request = LookupOf();
  auto all = TranslateLookup(request, limits_, namespaces_);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->members, 3u);
  ASSERT_EQ(all->digests.size(), 6u);
  store::ChunkKey key{info_->id, 0, 1, 2, store::DigestOfSalt(""), std::string(64, 'b')};
  EXPECT_EQ(all->digests[4], store::DigestOfKey(key));

  request.add_groups(1);
  request.set_mode(v1::LookupRequest::MODE_PER_KEY);
  request.set_lease_ms(100);
  request.set_session_id(9);
  auto one = TranslateLookup(request, limits_, namespaces_);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->members, 1u);
  EXPECT_TRUE(one->per_key);
  EXPECT_EQ(one->lease_for, 100 * kMillisecond);
  EXPECT_EQ(one->session.value, 9u);
}

TEST_F(TranslateUnaryTest, ALookupThatAsksForNoLocalShardIsRefused) {
  v1::Namespace name_space = TestNamespace();
  name_space.set_model("another");
  auto info = namespaces_.Register(TranslateNamespace(name_space), {{0, {1}}});
  ASSERT_TRUE(info.ok());
  v1::LookupRequest request = LookupOf();
  request.set_namespace_id(RawBytes((*info)->id));
  EXPECT_EQ(TranslateLookup(request, limits_, namespaces_)->members, 1u);
  request.add_groups(1);
  EXPECT_EQ(TranslateLookup(request, limits_, namespaces_).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(TranslateUnaryTest, EveryInvalidFieldOfALookupIsNamed) {
  using Request = v1::LookupRequest;
  const std::vector<Case<Request>> cases = {
      {[](Request* r) { r->set_namespace_id("x"); }, kInvalid, "namespace_id: 1 bytes"},
      {[](Request* r) { r->set_namespace_id(std::string(16, 'n')); }, absl::StatusCode::kNotFound,
       "namespace_id: 6e6e"},
      {[](Request* r) { r->set_salt(std::string(257, 's')); }, kInvalid, "salt: 257 bytes"},
      {[](Request* r) { r->mutable_prefix_hashes()->resize(5 * 64); }, kInvalid,
       "prefix_hashes: 5 hashes, must be 0 .. 4"},
      {[](Request* r) { r->mutable_prefix_hashes()->pop_back(); }, kInvalid,
       "prefix_hashes: 127 bytes, not a multiple of prefix_hash_bytes, 64"},
      {[](Request* r) { r->clear_prefix_hash_bytes(); }, kInvalid,
       "prefix_hash_bytes: 0 bytes, must be 16 .. 64"},
      {[](Request* r) { r->set_prefix_hash_bytes(8); }, kInvalid,
       "prefix_hash_bytes: 8 bytes, must be 16 .. 64"},
      {[](Request* r) { r->set_prefix_hash_bytes(UINT32_MAX); }, kInvalid,
       "prefix_hash_bytes: 4294967295 bytes, must be 16 .. 64"},
      {[](Request* r) { r->add_groups(2); }, kInvalid, "groups[0]: 2, must be 0 .. 1"},
      {[](Request* r) { r->add_groups(1), r->add_groups(1); }, kInvalid,
       "groups[1]: group 1 twice"},
      {[](Request* r) { r->set_mode(static_cast<Request::Mode>(7)); }, kInvalid,
       "mode: 7 is not a mode"},
      {[](Request* r) { r->set_lease_ms(20001); }, kInvalid,
       "lease_ms: 20001 ms, must be 0 .. 20000"},
      {[](Request* r) { r->set_lease_ms(1); }, kInvalid, "session_id: missing"},
  };
  for (const auto& c : cases) {
    Request request = LookupOf();
    c.spoil(&request);
    const absl::Status refusal = TranslateLookup(request, limits_, namespaces_).status();
    EXPECT_EQ(refusal.code(), c.code) << c.says;
    EXPECT_THAT(std::string(refusal.message()), ::testing::StartsWith(c.says));
  }
}

TEST_F(TranslateUnaryTest, EveryInvalidFieldOfARegionIsNamed) {
  using Request = v1::RegisterMemoryRequest;
  Request valid;
  valid.set_session_id(1);
  valid.set_gpu_uuid("GPU-1");
  valid.set_cuda_ipc_handle(std::string(64, 'h'));
  valid.set_allocation_bytes(4096);
  valid.set_block_count(4);
  v1::TensorLayout* tensor = valid.add_tensors();
  tensor->set_block_stride(1024);
  tensor->add_runs()->set_length(1024);
  auto region = TranslateRegion(valid);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(region->tensors[0].runs[0].length, 1024u);

  const std::vector<Case<Request>> cases = {
      {[](Request* r) { r->set_session_id(0); }, kInvalid, "session_id: missing"},
      {[](Request* r) { r->set_gpu_uuid(""); }, kInvalid, "gpu_uuid: 0 bytes"},
      {[](Request* r) { r->clear_memory(); }, kInvalid, "memory: missing"},
      {[](Request* r) { r->set_cuda_ipc_handle("x"); }, kInvalid, "cuda_ipc_handle: 1 bytes"},
      {[](Request* r) { r->set_handoff_memory_id(0); }, kInvalid, "handoff_memory_id: missing"},
      {[](Request* r) { r->set_allocation_bytes(0); }, kInvalid, "allocation_bytes: missing"},
      {[](Request* r) { r->set_block_count(0); }, kInvalid, "block_count: missing"},
      {[](Request* r) { r->set_landing_parts(1); }, kInvalid, "landing_parts: must be 0"},
      {[](Request* r) { r->clear_tensors(); }, kInvalid, "landing_parts: 0, must be 1 .. 64"},
      {[](Request* r) {
         r->clear_tensors();
         r->set_landing_parts(2);
       },
       kInvalid, "allocation_bytes: 4096 make 2 parts of less than 4096"},
      {[](Request* r) { r->mutable_tensors(0)->clear_runs(); }, kInvalid, "tensors: 0 runs in all"},
      {[](Request* r) { r->add_tensors(); }, kInvalid, "tensors[1].runs: missing"},
      {[](Request* r) {
         for (int i = 0; i < 1 << 16; ++i) r->mutable_tensors(0)->add_runs()->set_length(1);
       },
       kInvalid, "tensors: 65537 runs in all"},
      {[](Request* r) { r->mutable_tensors(0)->add_runs(); }, kInvalid,
       "tensors[0].runs[1].length: missing"},
      {[](Request* r) { r->set_block_count(5); }, kInvalid, "tensors[0].runs[0]: ends outside"},
      {[](Request* r) { r->mutable_tensors(0)->set_tensor_offset(~uint64_t{0}); }, kInvalid,
       "tensors[0].runs[0]: ends outside"},
      {[](Request* r) { r->mutable_tensors(0)->set_block_stride(~uint64_t{0}); }, kInvalid,
       "tensors[0].runs[0]: ends outside"},
  };
  for (const auto& c : cases) {
    Request request = valid;
    c.spoil(&request);
    const absl::Status refusal = TranslateRegion(request).status();
    EXPECT_EQ(refusal.code(), c.code) << c.says;
    EXPECT_THAT(std::string(refusal.message()), ::testing::StartsWith(c.says));
  }
}

TEST_F(TranslateUnaryTest, ANamespaceSurvivesThereAndBack) {
  v1::Namespace name_space = TestNamespace();
  name_space.add_strides(5);
  (*name_space.mutable_extra())["k"] = "v";
  auto info = namespaces_.Register(TranslateNamespace(name_space), {});
  ASSERT_TRUE(info.ok());
  v1::Namespace back;
  EncodeNamespace((*info)->spec, &back);
  EXPECT_EQ(TranslateNamespace(back), (*info)->spec);
}

}  // namespace
}  // namespace kvstream::rpc
