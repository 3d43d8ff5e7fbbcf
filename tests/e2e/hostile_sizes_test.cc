// The largest, the smallest and the overlapping; and every limit of SessionLimits, held.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/raw_session.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

bool Has(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

absl::Status EndOf(const absl::StatusOr<std::shared_ptr<StoreOperation>>& operation) {
  if (!operation.ok()) return operation.status();
  EXPECT_TRUE((*operation)->WaitEnded(kPatience));
  return (*operation)->status();
}

absl::Status EndOf(const absl::StatusOr<std::shared_ptr<ReadOperation>>& operation) {
  if (!operation.ok()) return operation.status();
  EXPECT_TRUE((*operation)->WaitEnded(kPatience));
  return (*operation)->status();
}

v1::LookupRequest LookupOf(const Worker& worker, size_t hashes) {
  v1::LookupRequest request;
  request.set_namespace_id(worker.namespace_id());
  for (size_t i = 0; i < hashes; ++i) AddPrefixHash(worker.At(1, 0).prefix_hash(), &request);
  return request;
}

TEST(HostileSizesTest, TheLargestLookupIsAnsweredAndOneKeyMoreIsRefused) {
  TestDaemon daemon;
  Worker worker(daemon.socket());
  ASSERT_TRUE(worker.Put({1}).ok());
  const size_t most = daemon.options().lookup_keys_max;
  EXPECT_EQ(most, 1048576u);
  const auto answer = worker.client().Lookup(LookupOf(worker, most));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->leading_run(), most);
  const absl::Status refused = worker.client().Lookup(LookupOf(worker, most + 1)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_TRUE(Has(refused, "prefix_hashes")) << refused;
}

TEST(HostileSizesTest, AnOperationOfMoreChunksThanTheLimitIsRefused) {
  TestDaemon daemon([](config::Options& o) { o.chunks_per_operation_max = 8; });
  Worker worker(daemon.socket());
  const absl::Status stored = EndOf(worker.client().Store(worker.StoreOf(Keys(1, 9))));
  EXPECT_EQ(stored.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Has(stored, "chunks: 9 chunks, must be 1 .. 8")) << stored;
  ASSERT_TRUE(worker.Put(Keys(1, 8)).ok());
  // Spread over requests, the chunks count together.
  v1::ReadStep step = worker.StepOf(Keys(1, 8));
  *step.add_requests() = worker.StepOf({1}, 8).requests(0);
  step.mutable_requests(1)->set_request_id(2);
  const absl::Status read = EndOf(worker.client().ReadStep(std::move(step)));
  EXPECT_EQ(read.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Has(read, "9 chunks in all")) << read;
  EXPECT_EQ(worker.Get(Keys(1, 8)).leading_valid(), 8u);
}

TEST(HostileSizesTest, RangesThatWrapAroundAreRefusedInStoresToo) {
  TestDaemon daemon;
  Worker worker(daemon.socket());
  const uint64_t chunk = worker.shape().chunk_bytes;
  for (const uint64_t offset : {UINT64_MAX, UINT64_MAX - chunk + 1, UINT64_MAX - chunk,
                                worker.buffer().size() - chunk + 1, worker.buffer().size()}) {
    v1::Store store = worker.StoreOf({1});
    store.mutable_chunks(0)->mutable_placement()->mutable_host()->set_offset(offset);
    const absl::Status status = EndOf(worker.client().Store(std::move(store)));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(Has(status, "chunks[0].placement.host")) << status;
  }
  EXPECT_EQ(worker.Look({1}), 0u);
}

TEST(HostileSizesTest, DestinationsMayNotOverlapAcrossTheRequestsOfAStep) {
  TestDaemon daemon;
  Worker worker(daemon.socket());
  ASSERT_TRUE(worker.Put({1, 2}).ok());
  v1::ReadStep step = worker.StepOf({1});
  *step.add_requests() = worker.StepOf({2}).requests(0);
  step.mutable_requests(1)->set_request_id(2);
  const absl::Status status = EndOf(worker.client().ReadStep(std::move(step)));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(Has(status, "overlaps requests[0].chunks[0]")) << status;
}

TEST(HostileSizesTest, OperationsThatOverlapEachOtherEndAndHarmNobodyElse) {
  TestDaemon daemon;
  Worker careless(daemon.socket()), careful(daemon.socket());
  ASSERT_TRUE(careful.Put(Keys(1, 8)).ok());
  std::vector<std::shared_ptr<ReadOperation>> reads;
  std::vector<std::shared_ptr<StoreOperation>> stores;
  for (uint64_t i = 0; i < 32; ++i) {
    auto read = careless.client().ReadStep(careless.StepOf(Keys(1, 8)));
    ASSERT_TRUE(read.ok()) << read.status();
    reads.push_back(*std::move(read));
    // Out of memory that is being read into: whatever bytes these are, they are stored and verified
    // under keys of their own.
    auto store = careless.client().Store(careless.StoreOf({100 + i}));
    ASSERT_TRUE(store.ok()) << store.status();
    stores.push_back(*std::move(store));
  }
  EXPECT_EQ(careful.Get(Keys(1, 8)).leading_valid(), 8u);
  for (uint64_t slot = 0; slot < 8; ++slot) EXPECT_TRUE(careful.Holds(1 + slot, slot));
  for (const auto& read : reads) EXPECT_TRUE(read->WaitEnded(kPatience));
  for (const auto& store : stores) EXPECT_TRUE(store->WaitEnded(kPatience));
}

TEST(HostileSizesTest, HugeRegistrationsAreRefusedBeforeTheyCost) {
  TestDaemon daemon;
  Worker worker(daemon.socket());
  const auto stub = v1::KvCache::NewStub(ChannelTo(daemon));
  const auto refuse = [&](const v1::RegisterNamespaceRequest& request, const std::string& field) {
    grpc::ClientContext context;
    SetPatience(&context);
    v1::RegisterNamespaceReply reply;
    const grpc::Status status = stub->RegisterNamespace(&context, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(status.error_message().find(field), 0u) << status.error_message();
  };
  v1::RegisterNamespaceRequest locals, shards, groups, strides;
  for (int i = 0; i < 2'000'000; ++i) locals.add_local_shards();
  locals.mutable_namespace_();
  refuse(locals, "local_shards: 2000000 entries");
  shards.mutable_namespace_();
  shards.add_local_shards()->mutable_shards()->Resize(2'000'000, 0);
  refuse(shards, "local_shards[0].shards: 2000000 entries");
  for (int i = 0; i < 2'000'000; ++i) groups.mutable_namespace_()->add_groups();
  refuse(groups, "groups: 2000000 entries");
  strides.mutable_namespace_()->mutable_strides()->Resize(2'000'000, 1);
  refuse(strides, "strides: 2000000 entries");
}

// Every limit of SessionLimits is held. Where the proof is elsewhere, this list says where:
//   segment_kib, segment_kib_max           store/namespace_test (at registration)
//   sessions_max                           rpc/handoff_test, and here
//   message_mib_max                        rpc/service_test, and here on the stream
//   unread_events_mib_max                  rpc/session_stream_test, e2e/hostile_floods_test
//   unhandled_*_per_session_max, calls_max,
//   lookup_keys_waiting_max, hello_ms      rpc/backpressure_test; hello_ms e2e/hostile_sockets_test
//   operations_per_session_max             e2e/bad_input_test
//   lookup_keys_max, chunks_per_operation_max  above
TEST(SessionLimitsTest, HostBuffersAreLimitedInNumberAndBytesAndRoomComesBack) {
  TestDaemon daemon([](config::Options& o) {
    o.host_buffers_per_session_max = 3;
    o.host_buffer_bytes_per_session_max = 40 * kMiB;
  });
  Worker worker(daemon.socket());  // Has one of 32 MiB.
  const absl::Status large = worker.client().CreateHostBuffer(9 * kMiB).status();
  EXPECT_EQ(large.code(), absl::StatusCode::kResourceExhausted) << large;
  auto second = worker.client().CreateHostBuffer(4096);
  auto third = worker.client().CreateHostBuffer(4096);
  ASSERT_TRUE(second.ok() && third.ok());
  EXPECT_EQ(worker.client().CreateHostBuffer(4096).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(worker.client().DropHostBuffer(*std::move(third)).ok());
  EXPECT_TRUE(worker.client().CreateHostBuffer(8 * kMiB - 4096).ok());
}

TEST(SessionLimitsTest, DeadlinesAndLeasesAreLimited) {
  TestDaemon daemon([](config::Options& o) {
    o.deadline_max = 70 * kSecond;
    o.lease_max = 2 * kSecond;
  });
  Worker worker(daemon.socket());
  v1::ReadStep step = worker.StepOf({1});
  step.set_deadline_ms(70001);
  const absl::Status read = EndOf(worker.client().ReadStep(std::move(step)));
  EXPECT_TRUE(Has(read, "deadline_ms: 70001 ms, must be 1 .. 70000")) << read;
  v1::Store store = worker.StoreOf({1});
  store.set_deadline_ms(70001);
  const absl::Status stored = EndOf(worker.client().Store(std::move(store)));
  EXPECT_TRUE(Has(stored, "deadline_ms: 70001 ms, must be 1 .. 70000")) << stored;
  v1::LookupRequest lookup = LookupOf(worker, 1);
  lookup.set_lease_ms(2001);
  const absl::Status leased = worker.client().Lookup(lookup).status();
  EXPECT_TRUE(Has(leased, "lease_ms: 2001 ms, must be 0 .. 2000")) << leased;
}

TEST(SessionLimitsTest, SessionsAreLimitedAndRoomComesBack) {
  TestDaemon daemon([](config::Options& o) { o.sessions_max = 2; });
  Worker first(daemon.socket());
  auto second = std::make_unique<Worker>(daemon.socket());
  const absl::Status refused =
      Client::Connect({.grpc_socket = daemon.socket(), .connect_timeout = kPatience}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  second = nullptr;
  Worker third(daemon.socket());
  EXPECT_TRUE(third.Put({1}).ok());
}

TEST(SessionLimitsTest, AMessageLargerThanTheLimitEndsItsStreamAlone) {
  TestDaemon daemon([](config::Options& o) { o.message_bytes_max = kMiB; });
  Worker other(daemon.socket());
  RawSession session(daemon);
  v1::ClientMessage message;
  message.mutable_store()->set_salt(std::string(2 * kMiB, 's'));
  session.Write(message);
  while (session.Next().has_value()) {
  }
  const grpc::Status end = session.Finish();
  EXPECT_FALSE(end.ok());
  ExpectInVocabulary(end, "a message of 2 MiB");
  EXPECT_TRUE(other.Put({1}).ok());
}

}  // namespace
}  // namespace kvstream
