// The daemon's status as a message. It reads counters that others keep, so it answers while the
// engine loop is stuck.
//
// Thread rule: any thread; nothing blocks. Ownership: owns nothing it is given.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvstream/v1/admin.pb.h"
#include "server/base/types.h"
#include "server/engine/stats.h"
#include "server/gpu/gpu.h"
#include "server/rpc/facts.h"
#include "server/rpc/readiness.h"
#include "server/rpc/stats.h"
#include "server/store/namespace.h"
#include "server/tier/tier.h"

namespace kvstream::rpc {

// Where the numbers come from. Pointers are not owned and outlive the gRPC server.
struct StatusSource {
  struct TierRow {
    std::string name;
    std::string root;
    // Null when the tier did not open and the config does not require it.
    const tier::Tier* tier = nullptr;
    // Why, then.
    std::string missing_cause = {};
  };
  const engine::EngineStats* stats = nullptr;
  // Indexed by TierId.
  std::vector<TierRow> tiers;
  // Null: there are none.
  const gpu::Gpus* gpus = nullptr;
  // What the config asks for; the pool is smaller when the rest could not be pinned.
  uint64_t pool_configured_bytes = 0;
  uint64_t pool_pinned_bytes = 0;
  // Where Prometheus finds the metrics; empty when off.
  std::string metrics_address;
  // When the daemon started.
  TimeNs started = 0;
  const RpcStats* rpc = nullptr;
};

class StatusReport {
 public:
  StatusReport(const Facts& facts, const StatusSource& source, const Readiness& readiness,
               const store::NamespaceRegistry& namespaces)
      : facts_(facts), source_(source), readiness_(readiness), namespaces_(namespaces) {}

  // REQUIRES: an empty message.
  void Fill(v1::Status* status) const;

 private:
  void FillTier(uint32_t tier, v1::Status* status) const;

  const Facts& facts_;
  const StatusSource& source_;
  const Readiness& readiness_;
  const store::NamespaceRegistry& namespaces_;
};

}  // namespace kvstream::rpc
