// The operator's calls: tiers, drains, watches, the log's level.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <list>

#include "server/base/logging.h"
#include "server/rpc/rpc_server.h"
#include "tests/rpc/rig.h"

namespace kvstream::rpc {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

grpc::Status Set(Rig& rig, const std::string& tier, v1::TierState state,
                 v1::SetTierStateReply* reply) {
  grpc::ClientContext context;
  v1::SetTierStateRequest request;
  request.set_tier(tier);
  request.set_state(state);
  return rig.admin->SetTierState(&context, request, reply);
}

v1::Status StatusOf(Rig& rig) {
  grpc::ClientContext context;
  v1::Status status;
  EXPECT_TRUE(rig.admin->GetStatus(&context, v1::GetStatusRequest(), &status).ok());
  return status;
}

TEST(AdminTest, SetTierStateCarriesTheEnginesAnswer) {
  Rig rig;
  rig.poster.Answer([](engine::Event& event) {
    auto* set = std::get_if<engine::SetTierInService>(&event);
    if (set == nullptr) return false;
    EXPECT_EQ(set->tier, TierId{1});
    set->reply(false);  // Its quarantine is full, say.
    return true;
  });
  v1::SetTierStateReply reply;
  for (const v1::TierState state : {v1::TIER_STATE_OUT, v1::TIER_STATE_OK}) {
    ASSERT_TRUE(Set(rig, "pfs", state, &reply).ok());
    EXPECT_EQ(reply.state(), v1::TIER_STATE_OUT);
    EXPECT_EQ(reply.boot_id(), std::string(16, 7));
  }
}

TEST(AdminTest, SetTierStateRefusesWhatItCannotDo) {
  Rig rig;
  v1::SetTierStateReply reply;
  const grpc::Status unknown = Set(rig, "tape", v1::TIER_STATE_OUT, &reply);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(unknown.error_message(), "tier: no tier \"tape\", there are nvme, pfs");
  const grpc::Status missing = Set(rig, "nvme", v1::TIER_STATE_OUT, &reply);
  EXPECT_EQ(missing.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(missing.error_message(), HasSubstr("no such directory"));
  for (const v1::TierState state :
       {v1::TIER_STATE_UNSPECIFIED, v1::TIER_STATE_DEGRADED, v1::TIER_STATE_PROBING}) {
    const grpc::Status refused = Set(rig, "pfs", state, &reply);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(refused.error_message(), HasSubstr("must be TIER_STATE_OK or TIER_STATE_OUT"));
  }
  EXPECT_TRUE(rig.poster.empty());
}

TEST(AdminTest, StatusTellsWhyATierIsOut) {
  Rig rig;
  rig.stats.tiers[1].out.Set(1);
  EXPECT_THAT(StatusOf(rig).conditions(),
              Contains("tier pfs is out of service: its quarantine is full"));
  rig.stats.tiers[1].held_out.Set(1);
  const v1::Status status = StatusOf(rig);
  EXPECT_THAT(status.conditions(),
              Contains("tier pfs is out of service: taken out by an operator"));
  EXPECT_THAT(status.conditions(), Contains(HasSubstr("no tier is in service")));
  EXPECT_EQ(status.tiers(1).state(), v1::TIER_STATE_OUT);
}

TEST(AdminTest, StatusTellsWhatATierDoesWithout) {
  Rig rig;
  EXPECT_THAT(StatusOf(rig).conditions(), Not(Contains(HasSubstr("tier pfs"))));
  rig.pfs.facts().engine_reason = "io_uring is not permitted";
  EXPECT_THAT(StatusOf(rig).conditions(),
              Contains("tier pfs uses threads for its I/O: io_uring is not permitted"));
  rig.pfs.facts().direct = false;
  rig.pfs.facts().buffered_reason = "O_DIRECT is refused";
  EXPECT_THAT(StatusOf(rig).conditions(),
              Contains("tier pfs uses buffered I/O: O_DIRECT is refused"));
  const auto unregistered =
      Contains("tier pfs reads without registered buffers: the locked-memory limit is low");
  rig.pfs.facts().io_engine = "threads";
  EXPECT_THAT(StatusOf(rig).conditions(), Not(unregistered)) << "threads register nothing";
  rig.pfs.facts().io_engine = "io_uring";
  EXPECT_THAT(StatusOf(rig).conditions(), unregistered);
  rig.pfs.facts().registration_error = ENOMEM;
  EXPECT_THAT(StatusOf(rig).conditions(),
              Contains("tier pfs reads without registered buffers: Cannot allocate memory"));
  rig.pfs.facts().registered_buffers = true;
  EXPECT_THAT(StatusOf(rig).conditions(), Not(unregistered));
  const auto met =
      Contains("tier pfs has met the limit of open files since its start: raise LimitNOFILE");
  EXPECT_THAT(StatusOf(rig).conditions(), Not(met));
  rig.pfs.stats().descriptor_shortages.Add();
  const v1::Status status = StatusOf(rig);
  EXPECT_THAT(status.conditions(), met);
  EXPECT_EQ(status.tiers(1).engine_reason(), "io_uring is not permitted");
  EXPECT_EQ(status.tiers(1).buffered_reason(), "O_DIRECT is refused");
  EXPECT_EQ(status.tiers(1).descriptor_shortages(), 1u);
  EXPECT_EQ(status.tiers(1).state(), v1::TIER_STATE_OK) << "none of it takes it out";
}

TEST(AdminTest, StatusTellsOfATierWhoseReadsOrWritesFail) {
  Rig rig;
  engine::TierEngineStats& pfs = rig.stats.tiers[1];
  engine::TierCauses& causes = rig.stats.causes[1];
  pfs.degraded.Set(1);
  EXPECT_EQ(StatusOf(rig).tiers(1).state(), v1::TIER_STATE_DEGRADED);
  const std::string degraded = "some I/O of tier pfs failed in the last minute";
  EXPECT_THAT(StatusOf(rig).conditions(), Contains(degraded));
  causes.reads.Set("Input/output error");
  causes.writes.Set("No space left on device");
  EXPECT_THAT(StatusOf(rig).conditions(),
              Contains(degraded + "; the last read that failed: Input/output error; the last "
                                  "write that failed: No space left on device"));
  pfs.writes_out.Set(1);
  causes.probe.Set("make /pfs/v1/.probe: No space left on device");
  EXPECT_THAT(StatusOf(rig).conditions(),
              Contains("tier pfs takes no writes: they fail (No space left on device); tried again "
                       "in vain: make /pfs/v1/.probe: No space left on device"));
  EXPECT_THAT(StatusOf(rig).conditions(), Not(Contains(HasSubstr(degraded))));
  pfs.writes_hang.Set(1);
  EXPECT_THAT(StatusOf(rig).conditions(), Contains("tier pfs takes no writes: they do not end"));
  EXPECT_EQ(StatusOf(rig).tiers(1).state(), v1::TIER_STATE_DEGRADED);
  pfs.writes_out.Set(0);
  EXPECT_THAT(StatusOf(rig).conditions(), Not(Contains(HasSubstr("takes no writes"))));
  EXPECT_THAT(StatusOf(rig).conditions(), Not(Contains(HasSubstr("scrub"))));
  pfs.scrub_unrepaired.Set(2);
  pfs.scrub_hung.Set(1);
  EXPECT_THAT(
      StatusOf(rig).conditions(),
      testing::AllOf(Contains("tier pfs: damaged files that its last scrub found and could not "
                              "repair: 2"),
                     Contains("tier pfs: a scrub of it hangs and was left behind")));
  pfs.failing.Set(1);
  pfs.out.Set(1);
  causes.probe.Set("another file system is mounted there by now: restart");
  EXPECT_THAT(StatusOf(rig).conditions(),
              Contains("tier pfs is out of service: its reads fail (Input/output error); tried "
                       "again in vain: another file system is mounted there by now: restart"));
  EXPECT_EQ(StatusOf(rig).tiers(1).state(), v1::TIER_STATE_OUT);
  pfs.probing.Set(1);
  EXPECT_EQ(StatusOf(rig).tiers(1).state(), v1::TIER_STATE_PROBING);
  for (auto* number : {&pfs.out, &pfs.failing, &pfs.probing, &pfs.degraded}) number->Set(0);
  EXPECT_EQ(StatusOf(rig).tiers(1).state(), v1::TIER_STATE_OK);
}

TEST(AdminTest, StatusTellsOfATierWhoseReadsAreLate) {
  Rig rig;
  engine::TierEngineStats& pfs = rig.stats.tiers[1];
  const std::string late = "tier pfs may hang: its reads are late and nothing comes back";
  EXPECT_THAT(StatusOf(rig).conditions(), Not(Contains(late)));
  pfs.late.Set(1);
  EXPECT_EQ(StatusOf(rig).tiers(1).state(), v1::TIER_STATE_DEGRADED);
  EXPECT_THAT(StatusOf(rig).conditions(), Contains(late));
  pfs.out.Set(1);
  EXPECT_EQ(StatusOf(rig).tiers(1).state(), v1::TIER_STATE_OUT);
  EXPECT_THAT(StatusOf(rig).conditions(), Not(Contains(late))) << "that says it";
}

TEST(AdminTest, StatusTellsWhatWasDamagedLostAndLeftBehind) {
  Rig rig;
  EXPECT_THAT(StatusOf(rig).conditions(), Not(Contains(HasSubstr("since"))));
  rig.stats.staged_chunks_damaged.Add(1);
  rig.stats.chunks_lost.Add(2);
  rig.stats.tiers[1].corrupt_reads.Add(3);
  rig.stats.tiers[1].set_aside_failures.Add(4);
  rig.stats.tiers[1].writes_dropped.Add(5);
  rig.stats.tiers[1].eviction_failures.Add(8);
  rig.stats.tiers[1].evictions_stuck.Add(9);
  rig.pfs.stats().temporaries_left.Add(6);
  rig.pfs.stats().remounts.Add(2);
  rig.pfs.stats().unknown_completions.Add(7);
  const v1::Status status = StatusOf(rig);
  for (const std::string part :
       {"1 staged chunks have changed in the pool since the start and were withdrawn",
        "2 stored chunks were lost since the start: every write of them failed",
        "3 reads and stores have met damaged files of tier pfs since the start",
        "4 damaged files of tier pfs could not be set aside since the start",
        "8 chunk files that tier pfs gave up could not be deleted since the start",
        "6 temporary files of tier pfs could not be removed since its start",
        "tier pfs has got 7 completions that nobody waits for since its start: a bug"}) {
    EXPECT_THAT(status.conditions(), Contains(HasSubstr(part)));
  }
  EXPECT_EQ(status.operations().chunks_lost(), 2u);
  EXPECT_EQ(status.tiers(1).corrupt_reads(), 3u);
  EXPECT_EQ(status.tiers(1).set_aside_failures(), 4u);
  EXPECT_EQ(status.tiers(1).writes_dropped(), 5u);
  EXPECT_EQ(status.tiers(1).eviction_failures(), 8u);
  EXPECT_EQ(status.tiers(1).evictions_stuck(), 9u);
  EXPECT_EQ(status.tiers(1).temporaries_left(), 6u);
  EXPECT_EQ(status.tiers(1).remounts(), 2u);
}

TEST(AdminTest, StatusTellsWhatClientsWereRefused) {
  Rig rig;
  uint64_t n = 0;
  for (Counter* number : {&rig.rpc_stats.sessions_refused, &rig.rpc_stats.streams_refused,
                          &rig.rpc_stats.sessions_overrun, &rig.rpc_stats.hellos_missed,
                          &rig.rpc_stats.calls_refused, &rig.rpc_stats.namespaces_refused}) {
    number->Add(++n);
  }
  rig.stats.chunks_dropped.Add(++n);
  v1::Status status = StatusOf(rig);
  EXPECT_EQ(status.sessions().refused(), 1u);
  EXPECT_EQ(status.sessions().streams_refused(), 2u);
  EXPECT_EQ(status.sessions().overrun(), 3u);
  EXPECT_EQ(status.sessions().hellos_missed(), 4u);
  EXPECT_EQ(status.operations().calls_refused(), 5u);
  EXPECT_EQ(status.index().namespaces_refused(), 6u);
  EXPECT_EQ(status.operations().chunks_dropped(), 7u);
  EXPECT_FALSE(status.sessions().accept_paused());
  const auto condition = Contains(HasSubstr("no client can connect"));
  EXPECT_THAT(status.conditions(), Not(condition));
  rig.rpc_stats.accept_paused.Set(1);
  status = StatusOf(rig);
  EXPECT_TRUE(status.sessions().accept_paused());
  EXPECT_THAT(status.conditions(), condition);
}

TEST(AdminTest, DrainEndsReadinessForGoodAndCarriesTheEnginesAnswer) {
  Rig rig;
  rig.server->SetReady(true, {"a degraded mode"});
  rig.poster.Answer([](engine::Event& event) {
    auto* drain = std::get_if<engine::Drain>(&event);
    if (drain == nullptr) return false;
    EXPECT_EQ(drain->timeout, 1500 * kMillisecond);
    drain->reply(engine::DrainResult{4096, 2});
    return true;
  });
  grpc::ClientContext context;
  v1::DrainRequest request;
  request.set_timeout_ms(1500);
  v1::DrainReply reply;
  ASSERT_TRUE(rig.admin->Drain(&context, request, &reply).ok());
  EXPECT_EQ(reply.unwritten_bytes(), 4096u);
  EXPECT_EQ(reply.running_operations(), 2u);
  const v1::Status status = StatusOf(rig);
  EXPECT_FALSE(status.ready());
  EXPECT_THAT(status.conditions(), Contains("a degraded mode"));
  EXPECT_THAT(status.conditions(), Contains("draining: new operations are refused"));
  const std::string not_serving("\x08\x02", 2);
  EXPECT_EQ(CallRaw(rig.channel, "/grpc.health.v1.Health/Check", ""), not_serving);
  rig.server->SetReady(true, {});
  EXPECT_EQ(CallRaw(rig.channel, "/grpc.health.v1.Health/Check", ""), not_serving);
}

TEST(AdminTest, ADrainThatAsksForTooMuchTimeDrainsNothing) {
  Rig rig;
  rig.server->SetReady(true, {});
  grpc::ClientContext context;
  v1::DrainRequest request;
  request.set_timeout_ms(3600001);
  v1::DrainReply reply;
  const grpc::Status status = rig.admin->Drain(&context, request, &reply);
  EXPECT_EQ(status.error_message(), "timeout_ms: 3600001, must be 0 .. 3600000");
  EXPECT_TRUE(StatusOf(rig).ready());
}

TEST(AdminTest, SetLogLevelTellsBothLevelsAndListsThoseThereAre) {
  Rig rig;
  const std::string before(LogLevel());
  const auto set = [&](const std::string& level, v1::SetLogLevelReply* reply) {
    grpc::ClientContext context;
    v1::SetLogLevelRequest request;
    request.set_level(level);
    return rig.admin->SetLogLevel(&context, request, reply);
  };
  v1::SetLogLevelReply reply;
  for (const std::string level : {"error", "warn", "error"}) {
    ASSERT_TRUE(set(level, &reply).ok());
    EXPECT_EQ(reply.level(), level);
    EXPECT_EQ(LogLevel(), level);
  }
  EXPECT_EQ(reply.old_level(), "warn");
  const grpc::Status refused = set("loud", &reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.error_message(), "level: \"loud\", must be trace, debug, info, warn or error");
  ASSERT_TRUE(set(before, &reply).ok());
}

struct WatchCall {
  explicit WatchCall(Rig& rig, uint32_t interval_ms = 100) {
    v1::WatchRequest request;
    request.set_interval_ms(interval_ms);
    stream = rig.admin->Watch(&context, request);
  }
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::Status>> stream;
};

TEST(AdminTest, WatchShowsChangesUntilItIsCancelled) {
  Rig rig;
  WatchCall watch(rig);
  v1::Status status;
  ASSERT_TRUE(watch.stream->Read(&status));
  EXPECT_EQ(status.operations().stores(), 0u);
  rig.stats.stores.Add(3);
  while (status.operations().stores() == 0) ASSERT_TRUE(watch.stream->Read(&status));
  EXPECT_EQ(status.operations().stores(), 3u);
  EXPECT_EQ(status.version(), "test");
  watch.context.TryCancel();
  EXPECT_EQ(watch.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(AdminTest, WatchRefusesIntervalsOutOfRange) {
  Rig rig;
  for (const uint32_t interval : {1u, 99u, 3600001u}) {
    const grpc::Status status = WatchCall(rig, interval).stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("must be 100 .. 3600000"));
  }
}

TEST(AdminTest, WatchersAreBoundedAndThoseThatLeaveMakeRoom) {
  Rig rig;
  std::list<WatchCall> watches;
  v1::Status status;
  for (size_t i = 0; i < StatusWatches::kWatchesMax; ++i) {
    ASSERT_TRUE(watches.emplace_back(rig, 3600000).stream->Read(&status));
  }
  WatchCall refused(rig);
  EXPECT_FALSE(refused.stream->Read(&status));
  EXPECT_EQ(refused.stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  watches.front().context.TryCancel();
  watches.front().stream->Finish();
  // The server hears of the end a little later than the client.
  const absl::Time deadline = absl::Now() + kPatience;
  bool taken = false;
  while (!taken && absl::Now() < deadline) {
    WatchCall again(rig);
    taken = again.stream->Read(&status);
    again.context.TryCancel();
    again.stream->Finish();
  }
  EXPECT_TRUE(taken);
  for (WatchCall& watch : watches) watch.context.TryCancel();
}

TEST(AdminTest, AShutdownEndsWatchesAtOnceWhateverTheirInterval) {
  Rig rig;
  std::list<WatchCall> watches;
  v1::Status status;
  for (const uint32_t interval : {100u, 3600000u}) {
    ASSERT_TRUE(watches.emplace_back(rig, interval).stream->Read(&status));
  }
  rig.server->Shutdown(absl::ToInt64Nanoseconds(kPatience));  // Its grace is not used up.
  for (WatchCall& watch : watches) {
    while (watch.stream->Read(&status)) continue;
    EXPECT_EQ(watch.stream->Finish().error_message(), "watch: the daemon is stopping");
  }
}

TEST(AdminTest, AWatcherThatDoesNotReadHoldsNobodyUp) {
  Rig rig;
  WatchCall silent(rig);
  WatchCall reader(rig);
  v1::Status status;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(reader.stream->Read(&status));
  rig.server->Shutdown(0);
}

}  // namespace
}  // namespace kvstream::rpc
