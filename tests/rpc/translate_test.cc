#include "server/rpc/translate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "server/rpc/encode.h"
#include "server/rpc/translate_unary.h"
#include "server/store/chunk_key.h"
#include "tests/rpc/rig.h"

namespace kvstream::rpc {
namespace {

constexpr TimeNs kNow = 1000 * kSecond;

v1::ChunkAt ChunkOf(char hash, uint32_t group, uint32_t shard, uint64_t offset) {
  v1::ChunkAt chunk;
  chunk.set_prefix_hash(std::string(16, hash));
  chunk.set_group(group);
  chunk.set_shard(shard);
  chunk.mutable_placement()->mutable_host()->set_buffer_id(1);
  chunk.mutable_placement()->mutable_host()->set_offset(offset);
  return chunk;
}

class TranslateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto info = namespaces_.Register(TranslateNamespace(TestNamespace()), {});
    ASSERT_TRUE(info.ok()) << info.status();
    info_ = *info;
    id_ = RawBytes(info_->id);
  }

  // Two requests with three chunks.
  v1::ReadStep Step() const {
    v1::ReadStep step;
    step.set_operation_id(1);
    step.set_mode(v1::ReadStep::MODE_JOINT);
    step.set_deadline_ms(500);
    v1::ReadRequest* first = step.add_requests();
    first->set_request_id(10);
    first->set_namespace_id(id_);
    *first->add_chunks() = ChunkOf('a', 0, 1, 0);
    *first->add_chunks() = ChunkOf('b', 1, 0, 4096);
    v1::ReadRequest* second = step.add_requests();
    second->set_request_id(11);
    second->set_namespace_id(id_);
    second->set_salt("tenant");
    *second->add_chunks() = ChunkOf('a', 0, 1, 8192);
    return step;
  }

  v1::Store StoreOf() const {
    v1::Store store;
    store.set_operation_id(2);
    store.set_namespace_id(id_);
    store.set_deadline_ms(500);
    *store.add_chunks() = ChunkOf('a', 0, 0, 0);
    *store.add_chunks() = ChunkOf('a', 0, 1, 0);
    return store;
  }

  absl::StatusOr<engine::SessionMessage> Translate(const v1::ClientMessage& message) const {
    return TranslateMessage(message, {limits_, namespaces_, kNow});
  }

  absl::Status Refusal(const v1::ClientMessage& message) const {
    auto translated = Translate(message);
    if (!translated.ok()) {
      ADD_FAILURE() << "the stream would end: " << translated.status();
      return translated.status();
    }
    if (auto* refused = std::get_if<engine::Refused>(&*translated)) return refused->status;
    return absl::OkStatus();
  }

  Limits limits_ = TestLimits();
  store::NamespaceRegistry namespaces_{
      store::NamespaceLimits{16 * kKiB, 16 * kMiB, 4 * kMiB, 64 * kMiB}};
  store::NamespaceRef info_;
  std::string id_;
};

TEST_F(TranslateTest, AReadStepBecomesPlain) {
  v1::ClientMessage message;
  *message.mutable_read_step() = Step();
  message.mutable_read_step()->set_step_id(7);
  message.mutable_read_step()->set_ranks(4);
  message.mutable_read_step()->set_join_timeout_ms(30);
  auto translated = Translate(message);
  ASSERT_TRUE(translated.ok());
  const auto& step = std::get<engine::ReadStep>(*translated);
  EXPECT_EQ(step.client_op, 1u);
  EXPECT_TRUE(step.joint);
  EXPECT_EQ(step.step_id, 7u);
  EXPECT_EQ(step.ranks, 4u);
  EXPECT_EQ(step.join_deadline, kNow + 30 * kMillisecond);
  EXPECT_EQ(step.deadline, kNow + 500 * kMillisecond);
  ASSERT_EQ(step.requests.size(), 2u);
  EXPECT_EQ(step.requests[0].request_id, 10u);
  EXPECT_EQ(step.requests[0].name_space, info_);
  ASSERT_EQ(step.requests[0].chunks.size(), 2u);
  store::ChunkKey key{info_->id, 0, 1, 2, store::DigestOfSalt(""), std::string(16, 'a')};
  EXPECT_EQ(step.requests[0].chunks[0].key, store::DigestOfKey(key));
  EXPECT_EQ(std::get<engine::HostRange>(step.requests[0].chunks[1].place).offset, 4096u);
  key.salt = store::DigestOfSalt("tenant");
  EXPECT_EQ(step.requests[1].chunks[0].key, store::DigestOfKey(key));
}

TEST_F(TranslateTest, AStepOfItsOwnWaitsForNobody) {
  v1::ClientMessage message;
  *message.mutable_read_step() = Step();
  message.mutable_read_step()->set_ranks(4);
  message.mutable_read_step()->set_join_timeout_ms(30);
  auto translated = Translate(message);
  ASSERT_TRUE(translated.ok());
  const auto& step = std::get<engine::ReadStep>(*translated);
  EXPECT_EQ(step.ranks, 1u);
  EXPECT_EQ(step.join_deadline, kNow);
}

TEST_F(TranslateTest, AStoreSaysWhatItComesAfter) {
  v1::ClientMessage message;
  *message.mutable_store() = StoreOf();
  EXPECT_FALSE(std::get<engine::Store>(*Translate(message)).after.has_value());
  message.mutable_store()->set_after_prefix_hash(std::string(16, 'p'));
  const auto translated = Translate(message);
  const auto& store = std::get<engine::Store>(*translated);
  store::ChunkKey before = store.chunks[0].key;
  before.prefix_hash = std::string(16, 'p');
  before.shard += 1;
  ASSERT_TRUE(store.after.has_value());
  EXPECT_EQ(*store.after, store::SiblingsOf(before));
  message.mutable_store()->set_after_prefix_hash("short");
  EXPECT_THAT(Refusal(message).message(), testing::HasSubstr("after_prefix_hash"));
}

TEST_F(TranslateTest, AStoreBecomesPlain) {
  v1::ClientMessage message;
  *message.mutable_store() = StoreOf();
  message.mutable_store()->set_admission_ms(~uint64_t{0});
  message.mutable_store()->set_want_durable(true);
  auto translated = Translate(message);
  ASSERT_TRUE(translated.ok());
  const auto& store = std::get<engine::Store>(*translated);
  EXPECT_EQ(store.client_op, 2u);
  EXPECT_TRUE(store.want_durable);
  EXPECT_EQ(store.deadline, kNow + 500 * kMillisecond);
  EXPECT_EQ(store.admission_deadline, store.deadline);
  ASSERT_EQ(store.chunks.size(), 2u);
  EXPECT_EQ(store.chunks[1].key.shard, 1u);
  EXPECT_EQ(store.chunks[1].key.shards, 2u);
  EXPECT_EQ(store.chunks[1].digest, store::DigestOfKey(store.chunks[1].key));
}

TEST_F(TranslateTest, DuplicateKeysInOneStepMayGoToTwoPlaces) {
  v1::ClientMessage message;
  *message.mutable_read_step() = Step();
  *message.mutable_read_step()->mutable_requests(1)->add_chunks() = ChunkOf('a', 0, 1, 65536);
  EXPECT_TRUE(Refusal(message).ok());
}

template <typename Message>
struct Case {
  std::function<void(Message*)> spoil;
  absl::StatusCode code;
  std::string says;
};

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST_F(TranslateTest, EveryInvalidFieldOfAReadStepIsNamed) {
  using Step = v1::ReadStep;
  auto chunk = [](Step* s) { return s->mutable_requests(0)->mutable_chunks(1); };
  auto place = [=](Step* s) { return chunk(s)->mutable_placement(); };
  const std::vector<Case<Step>> cases = {
      {[](Step* s) { s->set_operation_id(0); }, kInvalid, "operation_id: missing"},
      {[](Step* s) { s->clear_mode(); }, kInvalid, "mode: 0 is not a mode"},
      {[](Step* s) { s->set_mode(static_cast<Step::Mode>(9)); }, kInvalid, "mode: 9"},
      {[](Step* s) { s->set_ranks(4097); }, kInvalid, "ranks: 4097, must be 0 .. 4096"},
      {[](Step* s) { s->set_deadline_ms(0); }, kInvalid, "deadline_ms: 0 ms, must be 1 .. 10000"},
      {[](Step* s) { s->set_deadline_ms(10001); }, kInvalid, "deadline_ms: 10001 ms"},
      {[](Step* s) { s->set_deadline_ms(~uint64_t{0}); }, kInvalid, "deadline_ms: "},
      {[](Step* s) { s->clear_requests(); }, kInvalid, "requests: 0 requests, must be 1 .. 4"},
      {[](Step* s) {
         while (s->requests_size() < 5) s->add_requests();
       },
       kInvalid, "requests: 5 requests"},
      {[](Step* s) { s->mutable_requests(1)->clear_chunks(); }, kInvalid,
       "requests[1].chunks: missing"},
      {[](Step* s) {
         for (int i = 0; i < 2; ++i) *s->mutable_requests(1)->add_chunks() = ChunkOf('c', 0, 0, 0);
       },
       kInvalid, "requests: 5 chunks in all, must be 1 .. 4"},
      {[](Step* s) { s->mutable_requests(1)->set_request_id(10); }, kInvalid,
       "requests[1].request_id: 10 is also that of requests[0]"},
      {[](Step* s) { s->mutable_requests(1)->set_namespace_id("short"); }, kInvalid,
       "requests[1].namespace_id: 5 bytes, must be 16"},
      {[](Step* s) { s->mutable_requests(1)->set_namespace_id(std::string(16, '\x2a')); },
       absl::StatusCode::kNotFound,
       "requests[1].namespace_id: 2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a is not registered"},
      {[](Step* s) { s->mutable_requests(1)->set_salt(std::string(257, 's')); }, kInvalid,
       "requests[1].salt: 257 bytes, must be 0 .. 256"},
      {[=](Step* s) { chunk(s)->set_prefix_hash("abc"); }, kInvalid,
       "requests[0].chunks[1].prefix_hash: 3 bytes, must be 16 .. 64"},
      {[=](Step* s) { chunk(s)->set_prefix_hash(std::string(65, 'h')); }, kInvalid,
       "requests[0].chunks[1].prefix_hash: 65 bytes"},
      {[=](Step* s) { chunk(s)->set_group(2); }, kInvalid,
       "requests[0].chunks[1].group: 2, must be 0 .. 1"},
      {[=](Step* s) { chunk(s)->set_shard(1); }, kInvalid,
       "requests[0].chunks[1].shard: 1, must be 0 .. 0"},
      {[=](Step* s) { chunk(s)->clear_placement(); }, kInvalid,
       "requests[0].chunks[1].placement: missing"},
      {[=](Step* s) { place(s)->mutable_device()->add_blocks(1); }, kInvalid,
       "requests[0].chunks[1].placement.device.region_id: missing"},
      {[=](Step* s) { place(s)->mutable_device()->mutable_blocks()->Resize(1048577, 0); }, kInvalid,
       "requests: 1048577 blocks in all"},
      {[=](Step* s) { place(s)->mutable_host()->set_buffer_id(0); }, kInvalid,
       "requests[0].chunks[1].placement.host.buffer_id: missing"},
      {[=](Step* s) { place(s)->mutable_host()->set_offset(~uint64_t{0} - 998); }, kInvalid,
       "requests[0].chunks[1].placement.host.offset: "},
      {[=](Step* s) { place(s)->mutable_host()->set_offset(4095); }, kInvalid,
       "requests[0].chunks[1].placement.host: overlaps requests[0].chunks[0].placement.host in "
       "buffer 1"},
      {[](Step* s) {
         s->mutable_requests(1)->mutable_chunks(0)->mutable_placement()->mutable_host()->set_offset(
             0);
       },
       kInvalid, "requests[1].chunks[0].placement.host: overlaps requests[0].chunks[0]"},
  };
  for (const auto& c : cases) {
    v1::ClientMessage message;
    *message.mutable_read_step() = this->Step();
    ASSERT_TRUE(Refusal(message).ok());
    c.spoil(message.mutable_read_step());
    const absl::Status refusal = Refusal(message);
    EXPECT_EQ(refusal.code(), c.code) << c.says;
    EXPECT_THAT(std::string(refusal.message()), ::testing::StartsWith(c.says));
  }
}

TEST_F(TranslateTest, EveryInvalidFieldOfAStoreIsNamed) {
  using Store = v1::Store;
  const std::vector<Case<Store>> cases = {
      {[](Store* s) { s->set_operation_id(0); }, kInvalid, "operation_id: missing"},
      {[](Store* s) { s->clear_chunks(); }, kInvalid, "chunks: 0 chunks, must be 1 .. 4"},
      {[](Store* s) {
         while (s->chunks_size() < 5) s->add_chunks();
       },
       kInvalid, "chunks: 5 chunks"},
      {[](Store* s) { s->set_deadline_ms(0); }, kInvalid, "deadline_ms: 0 ms"},
      {[](Store* s) { s->set_deadline_ms(10001); }, kInvalid, "deadline_ms: 10001 ms"},
      {[](Store* s) { s->clear_namespace_id(); }, kInvalid, "namespace_id: 0 bytes"},
      {[](Store* s) { s->set_salt(std::string(257, 's')); }, kInvalid, "salt: 257 bytes"},
      {[](Store* s) { s->mutable_chunks(1)->set_shard(2); }, kInvalid,
       "chunks[1].shard: 2, must be 0 .. 1"},
      {[](Store* s) { s->mutable_chunks(1)->set_shard(0); }, kInvalid,
       "chunks[1]: names the same chunk as chunks[0]"},
      {[](Store* s) { s->mutable_chunks(0)->mutable_placement()->mutable_device(); }, kInvalid,
       "chunks[0].placement.device"},
      {[](Store* s) {
         auto* device = s->mutable_chunks(0)->mutable_placement()->mutable_device();
         device->mutable_blocks()->Resize(1048577, 0);
       },
       kInvalid, "chunks: 1048577 blocks in all"},
  };
  for (const auto& c : cases) {
    v1::ClientMessage message;
    *message.mutable_store() = StoreOf();
    ASSERT_TRUE(Refusal(message).ok());
    c.spoil(message.mutable_store());
    const absl::Status refusal = Refusal(message);
    EXPECT_EQ(refusal.code(), c.code) << c.says;
    EXPECT_THAT(std::string(refusal.message()), ::testing::StartsWith(c.says));
  }
}

TEST_F(TranslateTest, MessagesOutsideOperationsEndTheStreamWhenTheyMeanNothing) {
  v1::ClientMessage message;
  EXPECT_EQ(Translate(message).status().code(), kInvalid);
  message.mutable_hello();
  EXPECT_EQ(Translate(message).status().code(), kInvalid);
}

TEST_F(TranslateTest, SmallMessagesPass) {
  auto plain = [this](const v1::ClientMessage& message) { return *Translate(message); };
  v1::ClientMessage message;
  message.mutable_scattered()->set_region_id(7);
  message.mutable_scattered()->set_part(2);
  message.mutable_scattered()->set_sequence(9);
  auto acknowledged = std::get<engine::PartAcknowledged>(plain(message));
  EXPECT_FALSE(acknowledged.gathered);
  EXPECT_EQ(acknowledged.region_id, 7u);
  EXPECT_EQ(acknowledged.part, 2u);
  EXPECT_EQ(acknowledged.sequence, 9u);
  *message.mutable_gathered() = v1::Gathered();
  EXPECT_TRUE(std::get<engine::PartAcknowledged>(plain(message)).gathered);
  message.mutable_cancel()->set_operation_id(1);
  EXPECT_EQ(std::get<engine::Cancel>(plain(message)).client_op, 1u);
  message.mutable_forward_began()->set_step_id(2);
  EXPECT_EQ(std::get<engine::ForwardBegan>(plain(message)).step_id, 2u);
  message.mutable_release()->set_lease_id(3);
  EXPECT_EQ(std::get<engine::Release>(plain(message)).lease_id, 3u);
  message.mutable_heartbeat()->set_sequence(4);
  EXPECT_EQ(std::get<engine::Heartbeat>(plain(message)).sequence, 4u);
}

}  // namespace
}  // namespace kvstream::rpc
