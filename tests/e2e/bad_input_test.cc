// Bad input over real gRPC: a typed error that names the field, nothing half done, no crash.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>

#include "server/base/unique_fd.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

class BadInputTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(worker_.Put({1, 2}).ok()); }

  absl::Status Read(const std::function<void(v1::ReadStep&)>& spoil) {
    v1::ReadStep step = worker_.StepOf({1, 2});
    spoil(step);
    auto operation = worker_.client().ReadStep(std::move(step));
    if (!operation.ok()) return operation.status();
    EXPECT_TRUE((*operation)->WaitEnded(kPatience));
    return (*operation)->status();
  }

  absl::Status Write(const std::function<void(v1::Store&)>& spoil) {
    v1::Store store = worker_.StoreOf({3, 4});
    spoil(store);
    auto operation = worker_.client().Store(std::move(store));
    if (!operation.ok()) return operation.status();
    EXPECT_TRUE((*operation)->WaitEnded(kPatience));
    return (*operation)->status();
  }

  void TearDown() override {
    // Whatever was refused, the session still works and nothing of the refused was kept.
    EXPECT_EQ(worker_.Get({1, 2}).leading_valid(), 2u);
    EXPECT_EQ(worker_.Look({3}), 0u);
  }

  TestDaemon daemon_;
  Worker worker_{daemon_.socket()};
};

v1::HostRange* Range(v1::ReadStep& step, int chunk) {
  return step.mutable_requests(0)->mutable_chunks(chunk)->mutable_placement()->mutable_host();
}

TEST_F(BadInputTest, RangesOutsideTheBufferAreRefused) {
  const uint64_t size = worker_.buffer().size();
  for (const uint64_t offset : {size, size - 1, size - worker_.shape().chunk_bytes + 1, UINT64_MAX,
                                UINT64_MAX - worker_.shape().chunk_bytes + 1}) {
    const absl::Status status = Read([&](v1::ReadStep& s) { Range(s, 1)->set_offset(offset); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find("requests[0].chunks[1]"), absl::string_view::npos) << status;
  }
}

TEST_F(BadInputTest, UnknownBuffersAreRefused) {
  const absl::Status status = Read([](v1::ReadStep& s) { Range(s, 0)->set_buffer_id(999); });
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_NE(status.message().find("999"), absl::string_view::npos) << status;
}

TEST_F(BadInputTest, OverlappingDestinationsAreRefused) {
  const absl::Status status =
      Read([this](v1::ReadStep& s) { Range(s, 1)->set_offset(worker_.shape().chunk_bytes - 1); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

TEST_F(BadInputTest, EmptyAndShortAndLongKeysAreRefused) {
  for (const size_t length : {0, 15, 65, 10000}) {
    const absl::Status status = Read([&](v1::ReadStep& s) {
      s.mutable_requests(0)->mutable_chunks(1)->set_prefix_hash(std::string(length, 'x'));
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find("requests[0].chunks[1].prefix_hash"), absl::string_view::npos)
        << status;
  }
}

TEST_F(BadInputTest, DuplicateKeysInAStoreAreRefused) {
  const absl::Status status =
      Write([](v1::Store& s) { s.mutable_chunks(1)->set_prefix_hash(s.chunks(0).prefix_hash()); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

TEST_F(BadInputTest, UnknownNamespacesGroupsAndShardsAreRefused) {
  EXPECT_EQ(Write([](v1::Store& s) { s.set_namespace_id(std::string(16, 'n')); }).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Write([](v1::Store& s) { s.set_namespace_id("short"); }).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Write([](v1::Store& s) { s.mutable_chunks(0)->set_group(1); }).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Write([](v1::Store& s) { s.mutable_chunks(0)->set_shard(1); }).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(BadInputTest, AbsentDeadlinesModesAndChunksAreRefused) {
  for (const auto& spoil : std::vector<std::function<void(v1::ReadStep&)>>{
           [](v1::ReadStep& s) { s.clear_deadline_ms(); },
           [](v1::ReadStep& s) { s.set_deadline_ms(UINT64_MAX); },
           [](v1::ReadStep& s) { s.clear_mode(); }, [](v1::ReadStep& s) { s.clear_requests(); },
           [](v1::ReadStep& s) { s.mutable_requests(0)->clear_chunks(); },
           [](v1::ReadStep& s) { s.mutable_requests(0)->mutable_chunks(0)->clear_placement(); }}) {
    EXPECT_EQ(Read(spoil).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(BadInputTest, GpuPlacementsAreRefusedByName) {
  const absl::Status status = Read([](v1::ReadStep& s) {
    s.mutable_requests(0)->mutable_chunks(0)->mutable_placement()->mutable_device()->set_region_id(
        1);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

TEST_F(BadInputTest, UnsealedDescriptorsAreRefused) {
  const UniqueFd plain(memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(plain.get(), 8192), 0);
  EXPECT_EQ(worker_.client().AttachHostBuffer(plain.get(), 8192).status().code(),
            absl::StatusCode::kInvalidArgument);
  const UniqueFd file(open("/tmp", O_TMPFILE | O_RDWR, 0600));
  if (file.valid()) {
    ASSERT_EQ(ftruncate(file.get(), 8192), 0);
    EXPECT_EQ(worker_.client().AttachHostBuffer(file.get(), 8192).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(BadInputTest, AClientsOwnSealedMemoryIsReadInto) {
  const UniqueFd fd(memfd_create("own", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const uint64_t bytes = worker_.shape().chunk_bytes;
  ASSERT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  auto buffer = worker_.client().AttachHostBuffer(fd.get(), bytes);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  v1::ReadStep step = worker_.StepOf({1});
  Range(step, 0)->set_buffer_id(buffer->id());
  auto operation = worker_.client().ReadStep(std::move(step));
  ASSERT_TRUE(operation.ok());
  ASSERT_TRUE((*operation)->WaitEnded(kPatience));
  EXPECT_TRUE((*operation)->status().ok());
  worker_.Fill(1, 0);
  EXPECT_EQ(std::memcmp(buffer->data(), worker_.buffer().data(), bytes), 0);
  EXPECT_TRUE(worker_.client().DropHostBuffer(*std::move(buffer)).ok());
}

TEST_F(BadInputTest, LeasesNeedTheirSession) {
  v1::LookupRequest request;
  request.set_namespace_id(worker_.namespace_id());
  AddPrefixHash(worker_.At(1, 0).prefix_hash(), &request);
  request.set_lease_ms(UINT64_MAX);
  EXPECT_EQ(worker_.client().Lookup(request).status().code(), absl::StatusCode::kInvalidArgument);
  request.set_lease_ms(60000);
  const auto lease = worker_.client().Lookup(request);
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(daemon_.stats().leases.Get(), 1u);
  Worker stranger(daemon_.socket());
  ASSERT_TRUE(stranger.client().Release(lease->lease_id()).ok());
  EXPECT_EQ(stranger.Get({1}).leading_valid(), 1u);  // The stranger's messages are in order.
  EXPECT_EQ(daemon_.stats().leases.Get(), 1u);
  ASSERT_TRUE(worker_.client().Release(lease->lease_id()).ok());
  ASSERT_TRUE(worker_.client().Release(lease->lease_id()).ok());
  EXPECT_EQ(worker_.Get({1}).leading_valid(), 1u);
  daemon_.WaitUntil([&] { return daemon_.stats().leases.Get() == 0; }, "the lease is gone");
}

TEST_F(BadInputTest, TooManyOperationsAreRefusedAndTheRestGoesOn) {
  TestDaemon daemon([](config::Options& o) { o.operations_per_session_max = 2; });
  Worker worker(daemon.socket());
  std::vector<std::shared_ptr<ReadOperation>> operations;
  for (uint64_t i = 0; i < 3; ++i) {
    v1::ReadStep step = worker.StepOf({1});
    step.set_mode(v1::ReadStep::MODE_JOINT);
    step.set_step_id(100 + i);
    step.set_ranks(2);
    step.set_join_timeout_ms(60000);
    step.set_deadline_ms(60000);
    operations.push_back(*worker.client().ReadStep(std::move(step)));
  }
  ASSERT_TRUE(operations[2]->WaitEnded(kPatience));
  EXPECT_EQ(operations[2]->status().code(), absl::StatusCode::kResourceExhausted);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(worker.client().Cancel(*operations[i]).ok());
    ASSERT_TRUE(operations[i]->WaitEnded(kPatience));
    EXPECT_EQ(operations[i]->status().code(), absl::StatusCode::kCancelled);
  }
}

}  // namespace
}  // namespace kvstream
