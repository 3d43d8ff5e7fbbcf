// kvstream.v1.Admin: what kvstreamctl calls. GetStatus reads counters that others keep, so it
// answers while the engine loop is stuck; ListNamespaces asks the engine. The calls that change
// something answer UNIMPLEMENTED in this version, each naming itself.
//
// Thread rule: gRPC's callback threads call it; nothing blocks. Ownership: owns nothing it is
// given.
#pragma once

#include <string>
#include <vector>

#include "kvstream/v1/admin.grpc.pb.h"
#include "server/base/types.h"
#include "server/engine/events.h"
#include "server/engine/stats.h"
#include "server/rpc/facts.h"
#include "server/rpc/readiness.h"
#include "server/store/namespace.h"
#include "server/tier/tier.h"

namespace kvstream::rpc {

// Where the numbers of GetStatus come from. Pointers are not owned and outlive the gRPC server.
struct StatusSource {
  struct TierRow {
    std::string name;
    std::string root;
    // Null when the tier did not open and the config does not require it.
    const tier::Tier* tier = nullptr;
  };
  const engine::EngineStats* stats = nullptr;
  // Indexed by TierId.
  std::vector<TierRow> tiers;
  // Names of the GPUs; empty means none.
  std::vector<std::string> gpus;
  // Where Prometheus finds the metrics; empty when off.
  std::string metrics_address;
  // When the daemon started.
  TimeNs started = 0;
};

class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(const Facts& facts, const StatusSource& source, const Readiness& readiness,
               const store::NamespaceRegistry& namespaces, engine::EventPoster& poster)
      : facts_(facts),
        source_(source),
        readiness_(readiness),
        namespaces_(namespaces),
        poster_(poster) {}

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

 private:
  void FillTier(uint32_t tier, v1::Status* status) const;

  const Facts& facts_;
  const StatusSource& source_;
  const Readiness& readiness_;
  const store::NamespaceRegistry& namespaces_;
  engine::EventPoster& poster_;
};

}  // namespace kvstream::rpc
