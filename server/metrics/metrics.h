// Every number of the daemon under its Prometheus name, and the HTTP server that shows them. The
// rooms keep plain atomics (base/stats.h); a scrape reads them and costs the rooms nothing, and it
// works while the engine loop is stuck.
//
// Names: prefix kvstreamd_, units in the name (_bytes, _seconds), counters end in _total, label
// `tier` for what a tier has, `gpu` for what a GPU has, its UUID. A number is named once, in the
// tables of series.h.
//
// Thread rule: Start and the destructor on one thread; scrapes run on the server's own threads.
// Ownership: MetricsSource points to what others own; all of it outlives the server.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/stats.h"
#include "server/base/types.h"
#include "server/engine/stats.h"
#include "server/gpu/gpu.h"
#include "server/rpc/stats.h"
#include "server/tier/tier.h"

namespace prometheus {
class Collectable;
class Exposer;
}  // namespace prometheus

namespace kvstream::metrics {

// What the daemon knows of itself. All but `ready` is constant once the server has started.
struct DaemonFacts {
  std::string version;
  BootId boot;
  uint64_t pool_configured_bytes = 0;
  uint64_t pool_pinned_bytes = 0;
  // 1 once every tier that the config requires has passed its probe. A lost GPU is seen besides.
  Gauge ready;
};

struct TierSource {
  TierId id;
  std::string name;
  // Null when the tier did not open: the engine's numbers for it are shown all the same.
  const tier::TierStats* stats = nullptr;
  const tier::TierFacts* facts = nullptr;
};

struct MetricsSource {
  const DaemonFacts* daemon = nullptr;
  const engine::EngineStats* engine = nullptr;
  const rpc::RpcStats* rpc = nullptr;
  std::vector<TierSource> tiers;
  // Null: there are none.
  const gpu::Gpus* gpus = nullptr;
};

class MetricsServer {
 public:
  // Serves /metrics on `listen`, host:port; port 0 picks a free one. UNAVAILABLE names an address
  // that is busy, malformed or not this host's; nothing is left behind.
  // REQUIRES: daemon, engine and rpc are set.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& listen,
                                                              MetricsSource source);
  // Waits for running scrapes and closes the port. Takes up to 2 s: that is how often the HTTP
  // library looks whether it should stop.
  ~MetricsServer();

  // The port in use.
  int port() const { return port_; }
  // host:port with the port in use.
  std::string address() const;

 private:
  MetricsServer(std::string host, std::shared_ptr<prometheus::Collectable> numbers,
                std::unique_ptr<prometheus::Exposer> exposer, int port);

  const std::string host_;
  const std::shared_ptr<prometheus::Collectable> numbers_;
  const std::unique_ptr<prometheus::Exposer> exposer_;
  const int port_;
};

}  // namespace kvstream::metrics
