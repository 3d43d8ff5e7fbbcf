// Admin.Scrub: what the engine is asked for, and what becomes of the stream. The test plays the
// engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>
#include <thread>

#include "server/rpc/scrub_streams.h"
#include "tests/rpc/rig.h"

namespace kvstream::rpc {
namespace {

using ::testing::HasSubstr;

constexpr TierId kPfs{1};

struct ScrubCall {
  explicit ScrubCall(Rig& rig, const std::string& tier = "", uint64_t bytes_per_second = 0) {
    v1::ScrubRequest request;
    request.set_tier(tier);
    request.set_bytes_per_second(bytes_per_second);
    stream = rig.admin->Scrub(&context, request);
  }
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::ScrubProgress>> stream;
};

TEST(ScrubStreamTest, TheEngineIsAskedAndItsWordsAreHandedOn) {
  Rig rig;
  ScrubCall call(rig, "pfs", 5 * kMiB);
  auto begin = rig.poster.Next<engine::BeginScrub>();
  EXPECT_EQ(begin.tiers, TierSet::Of(kPfs));
  EXPECT_EQ(begin.bytes_per_second, 5 * kMiB);
  begin.sink->Send({.tier = kPfs});
  v1::ScrubProgress progress;
  ASSERT_TRUE(call.stream->Read(&progress));
  EXPECT_EQ(progress.tier(), "pfs");
  EXPECT_EQ(progress.boot_id(), std::string(16, 7));
  EXPECT_FALSE(progress.done());
  begin.sink->Send({kPfs, /*files=*/1, /*bytes=*/2, /*damaged=*/3, /*repaired=*/4, /*deleted=*/7,
                    /*unreadable=*/5, /*foreign=*/6, /*done=*/true});
  begin.sink->End(absl::OkStatus());
  ASSERT_TRUE(call.stream->Read(&progress));
  EXPECT_EQ(progress.files(), 1u);
  EXPECT_EQ(progress.bytes(), 2u);
  EXPECT_EQ(progress.damaged(), 3u);
  EXPECT_EQ(progress.repaired(), 4u);
  EXPECT_EQ(progress.deleted(), 7u);
  EXPECT_EQ(progress.unreadable(), 5u);
  EXPECT_EQ(progress.foreign(), 6u);
  EXPECT_TRUE(progress.done());
  EXPECT_FALSE(call.stream->Read(&progress));
  EXPECT_TRUE(call.stream->Finish().ok());
}

TEST(ScrubStreamTest, WithoutANameAllTiersThatOpenedAreMeant) {
  Rig rig;  // Its first tier did not open.
  ScrubCall call(rig);
  const auto begin = rig.poster.Next<engine::BeginScrub>();
  EXPECT_EQ(begin.tiers, TierSet::Of(kPfs));
  EXPECT_EQ(begin.bytes_per_second, 0u);
  begin.sink->End(absl::FailedPreconditionError("tier pfs is being scrubbed"));
  const grpc::Status status = call.stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(), "tier pfs is being scrubbed");
}

TEST(ScrubStreamTest, AScrubOfAllTiersIsNotOkWhileOneHasNotOpened) {
  Rig rig;  // Its first tier did not open.
  ScrubCall all(rig);
  rig.poster.Next<engine::BeginScrub>().sink->End(absl::OkStatus());
  const grpc::Status status = all.stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("tier nvme was not scrubbed: it did not open"));
  ScrubCall one(rig, "pfs");
  rig.poster.Next<engine::BeginScrub>().sink->End(absl::OkStatus());
  EXPECT_TRUE(one.stream->Finish().ok());
}

TEST(ScrubStreamTest, WhatCannotBeDoneIsRefusedWithoutAskingTheEngine) {
  Rig rig;
  const grpc::Status unknown = ScrubCall(rig, "tape").stream->Finish();
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(unknown.error_message(), "tier: no tier \"tape\", there are nvme, pfs");
  const grpc::Status missing = ScrubCall(rig, "nvme").stream->Finish();
  EXPECT_EQ(missing.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  for (const uint64_t rate : {uint64_t{1}, kMiB - 1, 16 * kGiB + 1, UINT64_MAX}) {
    const grpc::Status status = ScrubCall(rig, "pfs", rate).stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("must be 1048576 .. 17179869184"));
  }
  EXPECT_TRUE(rig.poster.empty());
}

TEST(ScrubStreamTest, ASlowReaderGetsTheNewestAndEveryTiersEnd) {
  Rig rig;
  ScrubCall call(rig, "pfs");
  const auto begin = rig.poster.Next<engine::BeginScrub>();
  for (uint64_t n = 1; n <= 10000; ++n) begin.sink->Send({.tier = kPfs, .files = n});
  begin.sink->Send({.tier = kPfs, .files = 10001, .done = true});
  begin.sink->End(absl::OkStatus());
  v1::ScrubProgress progress;
  uint64_t last = 0;
  uint64_t came = 0;
  bool done = false;
  while (call.stream->Read(&progress)) {
    ++came;
    EXPECT_GT(progress.files(), last);
    last = progress.files();
    done = progress.done();
  }
  EXPECT_EQ(last, 10001u);
  EXPECT_LT(came, 5000u);
  EXPECT_TRUE(done);
  EXPECT_TRUE(call.stream->Finish().ok());
}

TEST(ScrubStreamTest, AClientThatCancelsEndsItsScrub) {
  Rig rig;
  ScrubCall call(rig, "pfs");
  const auto begin = rig.poster.Next<engine::BeginScrub>();
  EXPECT_FALSE(begin.sink->cancelled());
  call.context.TryCancel();
  EXPECT_EQ(call.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  const absl::Time deadline = absl::Now() + kPatience;
  while (!begin.sink->cancelled() && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(begin.sink->cancelled());
  // The scrub hears of it later than the stream is gone.
  begin.sink->Send({.tier = kPfs});
  begin.sink->End(absl::CancelledError("cancelled"));
}

TEST(ScrubStreamTest, AnEngineThatDropsTheRequestEndsTheStream) {
  Rig rig;
  ScrubCall call(rig, "pfs");
  { const auto dropped = rig.poster.Next<engine::BeginScrub>(); }
  EXPECT_EQ(call.stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(ScrubStreamTest, AShutdownEndsStreamsAtOnceThoughTheirScrubHangs) {
  Rig rig;
  ScrubCall call(rig, "pfs");
  const auto begin = rig.poster.Next<engine::BeginScrub>();
  rig.server->Shutdown(absl::ToInt64Nanoseconds(kPatience));  // Its grace is not used up.
  const grpc::Status status = call.stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "the daemon is stopping");
  EXPECT_TRUE(begin.sink->cancelled());
  begin.sink->End(absl::OkStatus());  // To nobody.
}

TEST(ScrubStreamTest, StreamsAreBounded) {
  Rig rig;
  std::list<ScrubCall> calls;
  std::vector<engine::BeginScrub> begun;
  for (size_t i = 0; i < ScrubStreams::kStreamsMax; ++i) {
    calls.emplace_back(rig, "pfs");
    begun.push_back(rig.poster.Next<engine::BeginScrub>());
  }
  EXPECT_EQ(ScrubCall(rig, "pfs").stream->Finish().error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (engine::BeginScrub& begin : begun) begin.sink->End(absl::OkStatus());
  for (ScrubCall& call : calls) EXPECT_TRUE(call.stream->Finish().ok());
}

}  // namespace
}  // namespace kvstream::rpc
