#include "client/admin.h"

#include "client/channel.h"
#include "client/status_convert.h"

namespace kvstream {
namespace {

// The longest that a daemon lets a drain take.
constexpr absl::Duration kDrainMax = absl::Hours(1);
// Calls without a deadline end with the daemon all the same.
constexpr absl::Duration kKeepalive = absl::Seconds(20);

}  // namespace

Admin::Admin(const std::string& grpc_socket, absl::Duration call_timeout)
    : call_timeout_(call_timeout),
      stub_(v1::Admin::NewStub(OpenChannel(grpc_socket, kKeepalive))) {}

void Admin::SetDeadline(absl::Duration timeout, grpc::ClientContext* context) const {
  context->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

absl::StatusOr<v1::TierState> Admin::SetTierInService(const std::string& tier, bool in_service) {
  grpc::ClientContext context;
  SetDeadline(call_timeout_, &context);
  v1::SetTierStateRequest request;
  request.set_tier(tier);
  request.set_state(in_service ? v1::TIER_STATE_OK : v1::TIER_STATE_OUT);
  v1::SetTierStateReply reply;
  const grpc::Status result = stub_->SetTierState(&context, request, &reply);
  if (!result.ok()) return FromGrpc(result, "set tier state");
  return reply.state();
}

absl::StatusOr<v1::DrainReply> Admin::Drain(absl::Duration timeout) {
  grpc::ClientContext context;
  SetDeadline((timeout == absl::ZeroDuration() ? kDrainMax : timeout) + call_timeout_, &context);
  v1::DrainRequest request;
  request.set_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(timeout)));
  v1::DrainReply reply;
  const grpc::Status result = stub_->Drain(&context, request, &reply);
  if (!result.ok()) return FromGrpc(result, "drain");
  return reply;
}

absl::StatusOr<v1::SetLogLevelReply> Admin::SetLogLevel(const std::string& level) {
  grpc::ClientContext context;
  SetDeadline(call_timeout_, &context);
  v1::SetLogLevelRequest request;
  request.set_level(level);
  v1::SetLogLevelReply reply;
  const grpc::Status result = stub_->SetLogLevel(&context, request, &reply);
  if (!result.ok()) return FromGrpc(result, "set log level");
  return reply;
}

absl::StatusOr<v1::ListNamespacesReply> Admin::ListNamespaces() {
  grpc::ClientContext context;
  SetDeadline(call_timeout_, &context);
  v1::ListNamespacesReply reply;
  const grpc::Status result = stub_->ListNamespaces(&context, {}, &reply);
  if (!result.ok()) return FromGrpc(result, "list namespaces");
  return reply;
}

absl::StatusOr<v1::EvictReply> Admin::Evict(const v1::EvictRequest& request) {
  grpc::ClientContext context;
  v1::EvictReply reply;
  const grpc::Status result = stub_->Evict(&context, request, &reply);
  if (!result.ok()) return FromGrpc(result, "evict");
  return reply;
}

absl::Status Admin::Scrub(const std::string& tier, uint64_t bytes_per_second,
                          const std::function<bool(const v1::ScrubProgress&)>& on_progress) {
  grpc::ClientContext context;
  v1::ScrubRequest request;
  request.set_tier(tier);
  request.set_bytes_per_second(bytes_per_second);
  const auto stream = stub_->Scrub(&context, request);
  v1::ScrubProgress progress;
  while (stream->Read(&progress)) {
    if (on_progress(progress)) continue;
    context.TryCancel();
    stream->Finish();
    return absl::OkStatus();
  }
  const grpc::Status result = stream->Finish();
  return result.ok() ? absl::OkStatus() : FromGrpc(result, "scrub");
}

absl::Status Admin::Watch(absl::Duration interval,
                          const std::function<bool(const v1::Status&)>& on_status) {
  grpc::ClientContext context;
  v1::WatchRequest request;
  request.set_interval_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(interval)));
  const auto stream = stub_->Watch(&context, request);
  v1::Status status;
  while (stream->Read(&status)) {
    if (on_status(status)) continue;
    context.TryCancel();
    stream->Finish();
    return absl::OkStatus();
  }
  const grpc::Status result = stream->Finish();
  if (!result.ok()) return FromGrpc(result, "watch");
  return absl::UnavailableError("watch: the daemon ended it");
}

}  // namespace kvstream
