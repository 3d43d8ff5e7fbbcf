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

void EncodeUsage(const engine::NamespaceUsage& usage, const Facts& facts,
                 v1::ListNamespacesReply::Entry* entry) {
  entry->set_chunks(usage.all.chunks);
  entry->set_bytes(usage.all.bytes);
  for (size_t t = 0; t < usage.tiers.size(); ++t) {
    v1::ListNamespacesReply::NamespaceOnTier* on_tier = entry->add_tiers();
    on_tier->set_tier(facts.tier_names[t]);
    on_tier->set_files(usage.tiers[t].files);
    on_tier->set_bytes(usage.tiers[t].bytes);
    on_tier->set_hints(usage.tiers[t].hints);
  }
  entry->set_staged_chunks(usage.staged_chunks);
  entry->set_staged_bytes(usage.staged_bytes);
  if (usage.unused_seconds_min > usage.unused_seconds_max) return;
  entry->set_used_here(true);
  entry->set_unused_ms_min(uint64_t{usage.unused_seconds_min} * 1000);
  entry->set_unused_ms_max(uint64_t{usage.unused_seconds_max} * 1000);
}

// Every namespace that is registered or has chunks, in the order of the ids.
void FillNamespaces(const engine::NamespaceUsages& usages, const store::NamespaceRegistry& registry,
                    const Facts& facts, v1::ListNamespacesReply* reply) {
  struct Row {
    store::NamespaceRef info;
    const engine::NamespaceUsage* usage = nullptr;
  };
  std::map<NamespaceId, Row> rows;
  for (const auto& [id, usage] : usages) rows[id].usage = &usage;
  for (store::NamespaceRef& info : registry.List()) {
    const NamespaceId id = info->id;
    rows[id].info = std::move(info);
  }
  for (const auto& [id, row] : rows) {
    v1::ListNamespacesReply::Entry* entry = reply->add_namespaces();
    entry->set_namespace_id(RawBytes(id));
    if (row.info != nullptr) EncodeNamespace(row.info->spec, entry->mutable_namespace_());
    if (row.usage != nullptr) EncodeUsage(*row.usage, facts, entry);
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
  poster_.Post(engine::ListUsage{[this, reply, call = std::move(call)](const auto& usages) mutable {
    if (usages.ok()) {
      reply->set_boot_id(RawBytes(facts_.boot_id));
      FillNamespaces(*usages, namespaces_, facts_, reply);
    }
    call.Finish(usages.status());
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
                                              const v1::EvictRequest* request,
                                              v1::EvictReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  PendingCall call(reactor);
  auto evict = TranslateEvict(*request, facts_.limits);
  if (!evict.ok()) {
    call.Finish(evict.status());
    return reactor;
  }
  // Not among the calls that wait for a turn of the loop: the engine bounds those by itself.
  evict->reply = [this, reply,
                  call = std::move(call)](absl::StatusOr<engine::EvictResult> result) mutable {
    if (result.ok()) {
      reply->set_boot_id(RawBytes(facts_.boot_id));
      reply->set_chunks(result->chunks);
      reply->set_bytes(result->bytes);
      reply->set_kept(result->kept);
    }
    call.Finish(result.status());
  };
  poster_.Post(*std::move(evict));
  return reactor;
}

}  // namespace kvstream::rpc
