#include "server/rpc/rpc_server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/time/time.h"
#include "server/base/logging.h"
#include "server/rpc/gpu_report.h"

namespace kvstream::rpc {
namespace {

constexpr char kKvCacheName[] = "kvstream.v1.KvCache";
// Streams and calls of one connection at once; more wait at the client.
constexpr int kStreamsPerConnectionMax = 1024;
// A connection without a call for this long is closed; a client's next call opens another.
constexpr int kIdleConnectionMs = 60'000;
// A client may ask so often whether the daemon lives.
constexpr int kPingsApartMs = 10'000;
// What gRPC itself may hold of messages on their way: this, or as many of the largest.
constexpr uint64_t kTransportBytesMin = 256 * kMiB;
constexpr uint64_t kTransportMessagesMax = 8;
// How long health may be other than it is.
constexpr absl::Duration kHealthInterval = absl::Milliseconds(200);

// Linking the reflection library registers its plugin with every builder of the process, wanted or
// not; this takes it out again.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    const std::string name = grpc::reflection::ProtoServerReflectionPlugin().name();
    std::erase_if(*plugins, [&](const auto& plugin) { return plugin->name() == name; });
  }
};

void BoundConnections(const Limits& limits, grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleConnectionMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingsApartMs);
  // A connection that does not begin to speak HTTP/2.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                              static_cast<int>(limits.hello_max / kMillisecond));
  grpc::ResourceQuota quota("kvstreamd");
  quota.Resize(std::max(kTransportBytesMin, kTransportMessagesMax * limits.message_bytes_max));
  builder->SetResourceQuota(quota);
}

// protobuf would write a line to stderr for each message with a string that is not UTF-8: any
// client could fill the log. The client is told in its answer.
void LogProtobuf(google::protobuf::LogLevel level, const char*, int, const std::string& message) {
  const bool fatal = level == google::protobuf::LOGLEVEL_FATAL;
  spdlog::log(fatal ? spdlog::level::critical : spdlog::level::debug, "protobuf: {}", message);
}

// What keeps the daemon from being ready though all has started.
std::vector<std::string> NotReady(const StatusSource& source) {
  std::vector<std::string> faults = GpusOut(source.gpus);
  for (size_t t = 0; t < source.tiers.size(); ++t) {
    if (source.stats->tiers[t].settling.Get() == 0) continue;
    faults.push_back("tier " + source.tiers[t].name +
                     " has, or may have, more than its capacity, which was lowered");
  }
  return faults;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(RpcOptions options,
                                                            const RpcParts& parts) {
  auto socket = UnixSocketPath::Take(options.socket);
  if (!socket.ok()) return socket.status();
  std::unique_ptr<RpcServer> server(new RpcServer(std::move(options), parts, *std::move(socket)));
  if (auto s = server->Listen(); !s.ok()) return s;
  return server;
}

RpcServer::RpcServer(RpcOptions options, const RpcParts& parts, UnixSocketPath socket)
    : options_(std::move(options)),
      socket_(std::move(socket)),
      readiness_([this] { return NotReady(options_.status); }),
      gate_(options_.facts.limits, parts.stats),
      kvcache_(options_.facts, parts.tokens, parts.namespaces, parts.poster, gate_, parts.stats),
      admin_(options_.facts, options_.status, readiness_, parts.namespaces, parts.poster, gate_) {}

RpcServer::~RpcServer() { Shutdown(0); }

absl::Status RpcServer::Listen() {
  // gRPC's library stops when its last user is gone, and then may wait 10 s for a thread of its own
  // that polls. A user for the life of the process spares a stop that.
  [[maybe_unused]] static const bool kept = (grpc_init(), true);
  google::protobuf::SetLogHandler(&LogProtobuf);
  // Both switches are the process's, and take effect on builders made after them.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  if (!options_.reflection) builder.SetOption(std::make_unique<WithoutReflection>());
  builder.SetMaxReceiveMessageSize(static_cast<int>(options_.facts.limits.message_bytes_max));
  BoundConnections(options_.facts.limits, &builder);
  int bound = 0;
  builder.AddListeningPort("unix:" + socket_.path(), grpc::InsecureServerCredentials(), &bound);
  builder.RegisterService(&kvcache_);
  builder.RegisterService(&admin_);
  {
    PrivateUmask umask;
    server_ = builder.BuildAndStart();
  }
  if (server_ == nullptr || bound == 0) {
    return absl::UnavailableError("listen on " + socket_.path() + ": gRPC could not bind it");
  }
  server_->GetHealthCheckService()->SetServingStatus(kKvCacheName, false);
  readiness_.ShowOn(server_->GetHealthCheckService());
  SetReady(false, {"the daemon is starting"});
  health_ = std::thread([this] { KeepHealth(); });
  return socket_.Publish();
}

void RpcServer::KeepHealth() {
  pthread_setname_np(pthread_self(), "health");
  absl::MutexLock lock(&health_mu_);
  while (!health_mu_.AwaitWithTimeout(absl::Condition(&health_ends_), kHealthInterval)) {
    readiness_.Refresh();
  }
}

void RpcServer::SetReady(bool ready, std::vector<std::string> conditions) {
  readiness_.Set({ready, std::move(conditions)});
}

void RpcServer::Shutdown(TimeNs grace) {
  if (server_ == nullptr) return;
  {
    absl::MutexLock lock(&health_mu_);
    health_ends_ = true;
  }
  if (health_.joinable()) health_.join();
  server_->GetHealthCheckService()->Shutdown();
  admin_.EndStreams();
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::nanoseconds(grace));
  readiness_.ShowOn(nullptr);
  server_.reset();
}

}  // namespace kvstream::rpc
