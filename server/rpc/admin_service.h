// kvstream.v1.Admin: what kvstreamctl calls. GetStatus and Watch read counters that others keep;
// ListNamespaces, SetTierState, Drain, Evict and Scrub ask the engine.
//
// Thread rule: gRPC's callback threads call it; nothing blocks. Ownership: owns nothing it is
// given.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kvstream/v1/admin.grpc.pb.h"
#include "server/base/types.h"
#include "server/engine/events.h"
#include "server/rpc/call_gate.h"
#include "server/rpc/facts.h"
#include "server/rpc/readiness.h"
#include "server/rpc/scrub_streams.h"
#include "server/rpc/status_report.h"
#include "server/rpc/status_watches.h"
#include "server/store/namespace.h"

namespace kvstream::rpc {

class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(const Facts& facts, const StatusSource& source, Readiness& readiness,
               const store::NamespaceRegistry& namespaces, engine::EventPoster& poster,
               CallGate& gate)
      : facts_(facts),
        source_(source),
        readiness_(readiness),
        namespaces_(namespaces),
        poster_(poster),
        gate_(gate),
        report_(facts, source, readiness, namespaces),
        watches_(report_),
        scrubs_(facts, poster) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::Status* reply) override;
  grpc::ServerUnaryReactor* ListNamespaces(grpc::CallbackServerContext* context,
                                           const v1::ListNamespacesRequest* request,
                                           v1::ListNamespacesReply* reply) override;

  grpc::ServerWriteReactor<v1::Status>* Watch(grpc::CallbackServerContext* context,
                                              const v1::WatchRequest* request) override;
  grpc::ServerWriteReactor<v1::ScrubProgress>* Scrub(grpc::CallbackServerContext* context,
                                                     const v1::ScrubRequest* request) override;
  grpc::ServerUnaryReactor* SetTierState(grpc::CallbackServerContext* context,
                                         const v1::SetTierStateRequest* request,
                                         v1::SetTierStateReply* reply) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request, v1::DrainReply* reply) override;
  grpc::ServerUnaryReactor* Evict(grpc::CallbackServerContext* context,
                                  const v1::EvictRequest* request, v1::EvictReply* reply) override;

  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context,
                                        const v1::SetLogLevelRequest* request,
                                        v1::SetLogLevelReply* reply) override;

  // For a shutdown, which waits for every call.
  void EndStreams() {
    watches_.EndAll();
    scrubs_.EndAll();
  }

 private:
  absl::StatusOr<TierId> FindTier(const std::string& name) const;
  absl::StatusOr<ScrubStreams::Request> TranslateScrub(const v1::ScrubRequest& request) const;

  const Facts& facts_;
  const StatusSource& source_;
  Readiness& readiness_;
  const store::NamespaceRegistry& namespaces_;
  engine::EventPoster& poster_;
  CallGate& gate_;
  const StatusReport report_;
  StatusWatches watches_;
  ScrubStreams scrubs_;
};

}  // namespace kvstream::rpc
