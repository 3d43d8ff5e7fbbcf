// The unary calls, health, reflection and the socket of the gRPC server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "server/rpc/rpc_server.h"
#include "tests/rpc/rig.h"
#include "tests/support/log_recorder.h"

namespace kvstream::rpc {
namespace {

using ::testing::HasSubstr;

v1::LookupRequest LookupFor(const std::string& namespace_id) {
  v1::LookupRequest request;
  request.set_namespace_id(namespace_id);
  request.set_prefix_hashes(std::string(16, 'a') + std::string(16, 'b'));
  request.set_prefix_hash_bytes(16);
  return request;
}

TEST(ServiceTest, RegisterNamespaceAnswersTheSameIdTwice) {
  Rig rig;
  const std::string id = rig.Register();
  EXPECT_EQ(id.size(), 16u);
  EXPECT_EQ(rig.Register(), id);
}

TEST(ServiceTest, RegisterNamespaceNamesTheRefusedField) {
  Rig rig;
  v1::RegisterNamespaceRequest request;
  v1::RegisterNamespaceReply reply;
  {
    grpc::ClientContext context;
    const grpc::Status status = rig.kvcache->RegisterNamespace(&context, request, &reply);
    EXPECT_EQ(status.error_message(), "namespace: missing");
  }
  *request.mutable_namespace_() = TestNamespace();
  request.mutable_namespace_()->clear_weights_fingerprint();
  grpc::ClientContext context;
  const grpc::Status status = rig.kvcache->RegisterNamespace(&context, request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("weights_fingerprint"));
}

// Whoever may connect could fill the log otherwise.
TEST(ServiceTest, MessagesThatDoNotParseLeaveNothingOnStderr) {
  Rig rig;
  testing::internal::CaptureStderr();
  EXPECT_EQ(CallRaw(rig.channel, "/kvstream.v1.Admin/SetTierState", "\x0a\x01\xff"), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(ServiceTest, LookupAsksForAllMembersAndTellsWhereTheyAre) {
  Rig rig;
  rig.poster.Answer([](engine::Event& event) {
    auto* lookup = std::get_if<engine::Lookup>(&event);
    if (lookup == nullptr) return false;
    EXPECT_EQ(lookup->members, 3u);
    EXPECT_EQ(lookup->digests.size(), 6u);
    engine::LookupResult result;
    result.leading_run = 2;
    result.lease_id = 4;
    result.tier_chunks = {6, 3};
    result.staged = 1;
    lookup->reply(result);
    return true;
  });
  grpc::ClientContext context;
  v1::LookupReply reply;
  ASSERT_TRUE(rig.kvcache->Lookup(&context, LookupFor(rig.Register()), &reply).ok());
  EXPECT_EQ(reply.boot_id(), std::string(16, 7));
  EXPECT_EQ(reply.leading_run(), 2u);
  EXPECT_EQ(reply.lease_id(), 4u);
  ASSERT_EQ(reply.tiers_size(), 2);
  EXPECT_EQ(reply.tiers(1).tier(), "pfs");
  EXPECT_EQ(reply.tiers(1).chunks(), 3u);
  EXPECT_EQ(reply.staged(), 1u);
}

TEST(ServiceTest, LookupOfAnUnregisteredNamespaceIsNotFound) {
  Rig rig;
  grpc::ClientContext context;
  v1::LookupReply reply;
  const grpc::Status status =
      rig.kvcache->Lookup(&context, LookupFor(std::string(16, '\x2a')), &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a"));
}

TEST(ServiceTest, ACallThatTheEngineDropsIsUnavailable) {
  Rig rig;
  rig.poster.Answer([](engine::Event& event) { return event.index() > 0; });
  grpc::ClientContext context;
  v1::LookupReply reply;
  EXPECT_EQ(rig.kvcache->Lookup(&context, LookupFor(rig.Register()), &reply).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST(ServiceTest, MemoryCallsCarryTheEnginesAnswer) {
  Rig rig;
  rig.poster.Answer([](engine::Event& event) {
    if (auto* opened = std::get_if<engine::RegisterMemory>(&event)) {
      opened->reply(absl::FailedPreconditionError("no GPU"));
    } else if (auto* closed = std::get_if<engine::UnregisterMemory>(&event)) {
      closed->reply(absl::NotFoundError("no region " + std::to_string(closed->region_id)));
    }
    return true;
  });
  v1::RegisterMemoryRequest request;
  request.set_session_id(1);
  request.set_gpu_uuid("GPU-1");
  request.set_cuda_ipc_handle(std::string(64, 'h'));
  request.set_allocation_bytes(kMiB);
  request.set_landing_parts(4);
  v1::RegisterMemoryReply reply;
  grpc::ClientContext context;
  const grpc::Status refused = rig.kvcache->RegisterMemory(&context, request, &reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  v1::UnregisterMemoryRequest close;
  close.set_region_id(8);
  v1::UnregisterMemoryReply closed;
  grpc::ClientContext other;
  const grpc::Status missing = rig.kvcache->UnregisterMemory(&other, close, &closed);
  EXPECT_EQ(missing.error_message(), "no region 8");
}

TEST(ServiceTest, StatusShowsCountersReadinessAndMissingTiers) {
  Rig rig;
  rig.stats.pool_bytes.Set(123);
  rig.stats.read_steps.Add(5);
  rig.server->SetReady(true, {"a degraded mode"});
  grpc::ClientContext context;
  v1::Status status;
  ASSERT_TRUE(rig.admin->GetStatus(&context, v1::GetStatusRequest(), &status).ok());
  EXPECT_TRUE(status.ready());
  EXPECT_EQ(status.version(), "test");
  EXPECT_EQ(status.pool().bytes(), 123u);
  EXPECT_EQ(status.operations().read_steps(), 5u);
  EXPECT_THAT(
      status.conditions(),
      ::testing::IsSupersetOf(
          {"a degraded mode", "tier nvme did not open and is not used: no such directory"}));
  ASSERT_EQ(status.tiers_size(), 2);
  EXPECT_EQ(status.tiers(0).state(), v1::TIER_STATE_OUT);
  EXPECT_EQ(status.gpus_size(), 0);
  EXPECT_EQ(status.gpu_reason(), "no GPU");
}

TEST(ServiceTest, ListNamespacesShowsRegisteredOnesWithTheirUsage) {
  Rig rig;
  const std::string id = rig.Register();
  rig.poster.Answer([&](engine::Event& event) {
    auto* list = std::get_if<engine::ListUsage>(&event);
    if (list == nullptr) return false;
    engine::NamespaceUsages usages;
    usages[rig.namespaces.List()[0]->id] = {
        .all = {3, 300}, .tiers = {{2, 250, 1}}, .unused_seconds_min = 4, .unused_seconds_max = 5};
    usages[NamespaceId()] = {.all = {1, 100}};
    list->reply(usages);
    return true;
  });
  grpc::ClientContext context;
  v1::ListNamespacesReply reply;
  ASSERT_TRUE(rig.admin->ListNamespaces(&context, v1::ListNamespacesRequest(), &reply).ok());
  ASSERT_EQ(reply.namespaces_size(), 2);
  EXPECT_FALSE(reply.namespaces(0).has_namespace_());
  EXPECT_EQ(reply.namespaces(0).bytes(), 100u);
  EXPECT_EQ(reply.namespaces(1).namespace_id(), id);
  EXPECT_EQ(reply.namespaces(1).chunks(), 3u);
  ASSERT_EQ(reply.namespaces(1).tiers_size(), 1);
  EXPECT_EQ(reply.namespaces(1).tiers(0).tier(), "nvme");
  EXPECT_EQ(reply.namespaces(1).tiers(0).files(), 2u);
  EXPECT_EQ(reply.namespaces(1).tiers(0).hints(), 1u);
  EXPECT_EQ(reply.namespaces(1).unused_ms_min(), 4000u);
  EXPECT_EQ(reply.namespaces(1).unused_ms_max(), 5000u);
  EXPECT_EQ(reply.namespaces(1).namespace_().model(), "model");
  EXPECT_EQ(reply.namespaces(1).namespace_().groups(0).shards(), 2u);
}

TEST(ServiceTest, HealthFollowsReadiness) {
  Rig rig;
  const std::string method = "/grpc.health.v1.Health/Check";
  // HealthCheckRequest{service}, and HealthCheckResponse{status}.
  const std::string whole_daemon;
  const std::string kvcache = std::string("\x0a\x13", 2) + "kvstream.v1.KvCache";
  const std::string serving("\x08\x01", 2);
  const std::string not_serving("\x08\x02", 2);
  EXPECT_EQ(CallRaw(rig.channel, method, whole_daemon), not_serving);
  EXPECT_EQ(CallRaw(rig.channel, method, kvcache), not_serving);
  rig.server->SetReady(true, {});
  EXPECT_EQ(CallRaw(rig.channel, method, whole_daemon), serving);
  EXPECT_EQ(CallRaw(rig.channel, method, kvcache), serving);
  rig.server->SetReady(false, {"draining"});
  EXPECT_EQ(CallRaw(rig.channel, method, kvcache), not_serving);
}

TEST(ServiceTest, ReflectionListsTheServicesOnlyWhenAskedFor) {
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  // ServerReflectionRequest{list_services: ""}.
  const std::string list("\x3a\x00", 2);
  {
    Rig rig;
    const std::string answer = CallRaw(rig.channel, method, list);
    EXPECT_THAT(answer, HasSubstr("kvstream.v1.KvCache"));
    EXPECT_THAT(answer, HasSubstr("kvstream.v1.Admin"));
  }
  Rig without(TestLimits(), false);
  EXPECT_EQ(CallRaw(without.channel, method, list), "");
}

TEST(ServiceTest, AnOversizedMessageIsRefused) {
  Rig rig;
  v1::LookupRequest request;
  request.set_salt(std::string(5 * kMiB, 's'));
  grpc::ClientContext context;
  v1::LookupReply reply;
  EXPECT_EQ(rig.kvcache->Lookup(&context, request, &reply).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(ServiceTest, MoreNamespacesThanThereMayBeAreRefused) {
  const test::LogRecorder log;
  Rig rig;
  v1::RegisterNamespaceRequest request;
  *request.mutable_namespace_() = TestNamespace();
  grpc::Status status;
  for (size_t i = 0; i < store::NamespaceRegistry::kNamespacesMax + 2; ++i) {
    request.mutable_namespace_()->set_weights_fingerprint(std::to_string(i));
    grpc::ClientContext context;
    v1::RegisterNamespaceReply reply;
    status = rig.kvcache->RegisterNamespace(&context, request, &reply);
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(rig.rpc_stats.namespaces_refused.Get(), 2u);
  EXPECT_EQ(log.Count("a namespace was refused, too many are registered"), 1u);
}

TEST(ServiceTest, TheSocketHasItsMode) {
  Rig rig;
  struct stat info;
  ASSERT_EQ(stat(rig.dir.Path("grpc").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660u);
}

TEST(ServiceTest, ASecondServerOnThePathIsRefusedAndTheFirstServesOn) {
  Rig rig;
  auto second = RpcServer::Start(
      rig.Options(), {rig.poster, rig.namespaces, rig.handoff->tokens(), rig.rpc_stats});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another process listens on"));
  rig.Register();
}

TEST(ServiceTest, APathServesAgainAfterItsServerIsGone) {
  Rig rig;
  rig.server->Shutdown(0);
  rig.server.reset();
  auto again = RpcServer::Start(rig.Options(),
                                {rig.poster, rig.namespaces, rig.handoff->tokens(), rig.rpc_stats});
  EXPECT_TRUE(again.ok()) << again.status();
}

}  // namespace
}  // namespace kvstream::rpc
