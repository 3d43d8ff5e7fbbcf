// kvstream.v1.KvCache: validates, translates and posts. Answers come from the engine loop, but for
// RegisterNamespace, which needs only the registry.
//
// Thread rule: gRPC's callback threads call it; nothing blocks. Ownership: owns nothing it is
// given. Errors: the closed vocabulary; a call that the engine drops ends with UNAVAILABLE.
#pragma once

#include "kvstream/v1/kvstream.grpc.pb.h"
#include "server/engine/events.h"
#include "server/rpc/call_gate.h"
#include "server/rpc/facts.h"
#include "server/rpc/session_stream.h"
#include "server/rpc/session_tokens.h"
#include "server/rpc/stats.h"
#include "server/store/namespace.h"

namespace kvstream::rpc {

class KvCacheService final : public v1::KvCache::CallbackService {
 public:
  KvCacheService(const Facts& facts, SessionTokens& tokens, store::NamespaceRegistry& namespaces,
                 engine::EventPoster& poster, CallGate& gate, RpcStats& stats)
      : facts_(facts),
        namespaces_(namespaces),
        poster_(poster),
        gate_(gate),
        streams_{facts, tokens, namespaces, poster, stats} {}

  grpc::ServerBidiReactor<v1::ClientMessage, v1::ServerMessage>* Session(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* RegisterNamespace(grpc::CallbackServerContext* context,
                                              const v1::RegisterNamespaceRequest* request,
                                              v1::RegisterNamespaceReply* reply) override;
  grpc::ServerUnaryReactor* RegisterMemory(grpc::CallbackServerContext* context,
                                           const v1::RegisterMemoryRequest* request,
                                           v1::RegisterMemoryReply* reply) override;
  grpc::ServerUnaryReactor* UnregisterMemory(grpc::CallbackServerContext* context,
                                             const v1::UnregisterMemoryRequest* request,
                                             v1::UnregisterMemoryReply* reply) override;
  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* context,
                                   const v1::LookupRequest* request,
                                   v1::LookupReply* reply) override;

 private:
  const Facts& facts_;
  store::NamespaceRegistry& namespaces_;
  engine::EventPoster& poster_;
  CallGate& gate_;
  StreamContext streams_;
};

}  // namespace kvstream::rpc
