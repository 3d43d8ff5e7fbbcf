#include "server/rpc/kvcache_service.h"

#include <utility>

#include "server/rpc/encode.h"
#include "server/rpc/pending_call.h"
#include "server/rpc/translate_unary.h"

namespace kvstream::rpc {
namespace {

void EncodeLookup(const engine::LookupResult& result, const Facts& facts, v1::LookupReply* reply) {
  reply->set_boot_id(RawBytes(facts.boot_id));
  reply->set_leading_run(result.leading_run);
  reply->set_present(result.present);
  reply->set_lease_id(result.lease_id);
  reply->set_staged(result.staged);
  for (size_t i = 0; i < result.tier_chunks.size() && i < facts.tier_names.size(); ++i) {
    v1::TierCount* tier = reply->add_tiers();
    tier->set_tier(facts.tier_names[i]);
    tier->set_chunks(result.tier_chunks[i]);
  }
}

v1::RegisterMemoryReply::Way WayOf(bool landing) {
  return landing ? v1::RegisterMemoryReply::WAY_LANDING : v1::RegisterMemoryReply::WAY_DIRECT;
}

}  // namespace

grpc::ServerBidiReactor<v1::ClientMessage, v1::ServerMessage>* KvCacheService::Session(
    grpc::CallbackServerContext*) {
  return SessionStream::Start(&streams_);
}

grpc::ServerUnaryReactor* KvCacheService::RegisterNamespace(
    grpc::CallbackServerContext* context, const v1::RegisterNamespaceRequest* request,
    v1::RegisterNamespaceReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (auto s = CheckRegistration(*request); !s.ok()) {
    reactor->Finish(ToGrpcStatus(s));
    return reactor;
  }
  const auto registered = namespaces_.Register(TranslateNamespace(request->namespace_()),
                                               TranslateLocalShards(*request));
  if (absl::IsResourceExhausted(registered.status())) {
    CountAndWarnOnce(streams_.stats.namespaces_refused,
                     "a namespace was refused, too many are registered");
  }
  if (registered.ok()) {
    reply->set_boot_id(RawBytes(facts_.boot_id));
    reply->set_namespace_id(RawBytes((*registered)->id));
    reply->set_segment_bytes((*registered)->spec.segment_bytes);
  }
  reactor->Finish(ToGrpcStatus(registered.status()));
  return reactor;
}

grpc::ServerUnaryReactor* KvCacheService::RegisterMemory(grpc::CallbackServerContext* context,
                                                         const v1::RegisterMemoryRequest* request,
                                                         v1::RegisterMemoryReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  PendingCall call(reactor);
  auto spec = TranslateRegion(*request);
  if (!spec.ok()) {
    call.Finish(spec.status());
    return reactor;
  }
  if (auto s = call.Enter(gate_, 0); !s.ok()) {
    call.Finish(s);
    return reactor;
  }
  poster_.Post(engine::RegisterMemory{
      SessionId{request->session_id()}, request->handoff_memory_id(), *std::move(spec),
      [this, reply,
       call = std::move(call)](absl::StatusOr<engine::RegisteredRegion> region) mutable {
        if (region.ok()) {
          reply->set_boot_id(RawBytes(facts_.boot_id));
          reply->set_region_id(region->region_id);
          reply->set_way(WayOf(region->load_landing));
          reply->set_store_way(WayOf(region->store_landing));
        }
        call.Finish(region.status());
      }});
  return reactor;
}

grpc::ServerUnaryReactor* KvCacheService::UnregisterMemory(
    grpc::CallbackServerContext* context, const v1::UnregisterMemoryRequest* request,
    v1::UnregisterMemoryReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  PendingCall call(reactor);
  if (auto s = call.Enter(gate_, 0); !s.ok()) {
    call.Finish(s);
    return reactor;
  }
  reply->set_boot_id(RawBytes(facts_.boot_id));
  poster_.Post(engine::UnregisterMemory{
      SessionId{request->session_id()}, request->region_id(),
      [call = std::move(call)](const absl::Status& status) mutable { call.Finish(status); }});
  return reactor;
}

grpc::ServerUnaryReactor* KvCacheService::Lookup(grpc::CallbackServerContext* context,
                                                 const v1::LookupRequest* request,
                                                 v1::LookupReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  PendingCall call(reactor);
  auto lookup = TranslateLookup(*request, facts_.limits, namespaces_);
  if (!lookup.ok()) {
    call.Finish(lookup.status());
    return reactor;
  }
  if (auto s = call.Enter(gate_, lookup->digests.size()); !s.ok()) {
    call.Finish(s);
    return reactor;
  }
  lookup->reply = [this, reply,
                   call = std::move(call)](absl::StatusOr<engine::LookupResult> result) mutable {
    if (result.ok()) EncodeLookup(*result, facts_, reply);
    call.Finish(result.status());
  };
  poster_.Post(*std::move(lookup));
  return reactor;
}

}  // namespace kvstream::rpc
