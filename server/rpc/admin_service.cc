#include "server/rpc/admin_service.h"

#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "server/base/logging.h"
#include "server/rpc/encode.h"
#include "server/rpc/field_error.h"
#include "server/rpc/pending_call.h"
#include "server/rpc/translate_admin.h"

namespace kvstream::rpc {
namespace {

using UsageMap = absl::flat_hash_map<NamespaceId, store::ChunkIndex::Usage>;

absl::Status NotImplemented(const char* call) {
  return absl::UnimplementedError(std::string(call) + ": this version does not implement it");
}

grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context, const char* call) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(NotImplemented(call)));
  return reactor;
}

// Every namespace that is registered or has chunks, in the order of the ids.
void FillNamespaces(const UsageMap& usage, const store::NamespaceRegistry& registry,
                    v1::ListNamespacesReply* reply) {
  struct Row {
    store::NamespaceRef info;
    store::ChunkIndex::Usage usage;
  };
  std::map<NamespaceId, Row> rows;
  for (const auto& [id, used] : usage) rows[id].usage = used;
  for (store::NamespaceRef& info : registry.List()) {
    const NamespaceId id = info->id;
    rows[id].info = std::move(info);
  }
  for (const auto& [id, row] : rows) {
    v1::ListNamespacesReply::Entry* entry = reply->add_namespaces();
    entry->set_namespace_id(RawBytes(id));
    if (row.info != nullptr) EncodeNamespace(row.info->spec, entry->mutable_namespace_());
    entry->set_chunks(row.usage.chunks);
    entry->set_bytes(row.usage.bytes);
  }
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::GetStatus(grpc::CallbackServerContext* context,
                                                  const v1::GetStatusRequest*, v1::Status* reply) {
  report_.Fill(reply);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::ListNamespaces(grpc::CallbackServerContext* context,
                                                       const v1::ListNamespacesRequest*,
                                                       v1::ListNamespacesReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  PendingCall call(reactor);
  if (auto s = call.Enter(gate_, 0); !s.ok()) {
    call.Finish(s);
    return reactor;
  }
  poster_.Post(
      engine::ListUsage{[this, reply, call = std::move(call)](const UsageMap& usage) mutable {
        reply->set_boot_id(RawBytes(facts_.boot_id));
        FillNamespaces(usage, namespaces_, reply);
        call.Finish(absl::OkStatus());
      }});
  return reactor;
}

grpc::ServerWriteReactor<v1::Status>* AdminService::Watch(grpc::CallbackServerContext*,
                                                          const v1::WatchRequest* request) {
  return watches_.Begin(TranslateWatch(*request));
}

grpc::ServerWriteReactor<v1::ScrubProgress>* AdminService::Scrub(grpc::CallbackServerContext*,
                                                                 const v1::ScrubRequest* request) {
  return scrubs_.Begin(TranslateScrub(*request));
}

absl::StatusOr<ScrubStreams::Request> AdminService::TranslateScrub(
    const v1::ScrubRequest& request) const {
  const auto rate = TranslateScrubRate(request);
  if (!rate.ok()) return rate.status();
  ScrubStreams::Request out{.tiers = {}, .bytes_per_second = *rate};
  if (!request.tier().empty()) {
    const auto tier = FindTier(request.tier());
    if (!tier.ok()) return tier.status();
    out.tiers.Add(*tier);
    return out;
  }
  for (uint32_t i = 0; i < source_.tiers.size(); ++i) {
    const StatusSource::TierRow& row = source_.tiers[i];
    if (row.tier != nullptr) {
      out.tiers.Add(TierId{i});
    } else {
      out.at_best = absl::UnavailableError("tier " + row.name +
                                           " was not scrubbed: it did not open when the daemon "
                                           "started: " +
                                           row.missing_cause);
    }
  }
  return out;
}

absl::StatusOr<TierId> AdminService::FindTier(const std::string& name) const {
  std::string names;
  for (uint32_t i = 0; i < source_.tiers.size(); ++i) {
    const StatusSource::TierRow& row = source_.tiers[i];
    if (row.name != name) {
      names += (names.empty() ? "" : ", ") + row.name;
    } else if (row.tier == nullptr) {
      return absl::FailedPreconditionError(
          "tier: " + name + " did not open when the daemon started: " + row.missing_cause);
    } else {
      return TierId{i};
    }
  }
  return absl::NotFoundError("tier: no tier \"" + name + "\", there are " + names);
}

grpc::ServerUnaryReactor* AdminService::SetTierState(grpc::CallbackServerContext* context,
                                                     const v1::SetTierStateRequest* request,
                                                     v1::SetTierStateReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  PendingCall call(reactor);
  const auto tier = FindTier(request->tier());
  const auto in_service = TranslateTierState(*request);
  if (!in_service.ok()) {
    call.Finish(in_service.status());
  } else if (!tier.ok()) {
    call.Finish(tier.status());
  } else if (auto s = call.Enter(gate_, 0); !s.ok()) {
    call.Finish(s);
  } else {
    poster_.Post(engine::SetTierInService{
        *tier, *in_service, [this, reply, call = std::move(call)](bool is_in_service) mutable {
          reply->set_boot_id(RawBytes(facts_.boot_id));
          reply->set_state(is_in_service ? v1::TIER_STATE_OK : v1::TIER_STATE_OUT);
          call.Finish(absl::OkStatus());
        }});
  }
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest* request,
                                              v1::DrainReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  PendingCall call(reactor);
  const auto timeout = TranslateDrain(*request);
  if (!timeout.ok()) {
    call.Finish(timeout.status());
    return reactor;
  }
  readiness_.BeginDrain();
  poster_.Post(engine::Drain{*timeout, [this, reply, call = std::move(call)](
                                           absl::StatusOr<engine::DrainResult> result) mutable {
                               if (result.ok()) {
                                 reply->set_boot_id(RawBytes(facts_.boot_id));
                                 reply->set_unwritten_bytes(result->unwritten_bytes);
                                 reply->set_running_operations(result->running_operations);
                               }
                               call.Finish(result.status());
                             }});
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::SetLogLevel(grpc::CallbackServerContext* context,
                                                    const v1::SetLogLevelRequest* request,
                                                    v1::SetLogLevelReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const std::string old_level(LogLevel());
  if (!kvstream::SetLogLevel(request->level())) {
    reactor->Finish(
        ToGrpcStatus(InvalidField("level", "\"" + request->level() + "\", must be " + kLogLevels)));
    return reactor;
  }
  // What is not logged from here on should be explained.
  spdlog::warn("log level changed: old={} new={}", old_level, request->level());
  reply->set_boot_id(RawBytes(facts_.boot_id));
  reply->set_old_level(old_level);
  reply->set_level(request->level());
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Evict(grpc::CallbackServerContext* context,
                                              const v1::EvictRequest*, v1::EvictReply*) {
  return Refuse(context, "Evict");
}

}  // namespace kvstream::rpc
