// The daemon: owns every part, and is the only place that knows the order of start and stop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/unique_fd.h"
#include "server/config/options.h"
#include "server/engine/engine.h"
#include "server/gpu/gpu.h"
#include "server/limits.h"
#include "server/memory/sealed_memory.h"
#include "server/metrics/metrics.h"
#include "server/pinning.h"
#include "server/rpc/handoff_server.h"
#include "server/rpc/rpc_server.h"
#include "server/store/namespace.h"
#include "server/tier/tier.h"

namespace kvstream {

extern const char kVersion[];

class Daemon {
 public:
  // Opens the GPUs' driver; gpu::OpenDriver, but for tests.
  using OpenGpus = absl::FunctionRef<std::unique_ptr<gpu::Driver>()>;

  // Starts everything; when it returns, the daemon is ready and serves. Errors name the path or the
  // setting; nothing is left behind then.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const config::Options& options,
                                                       OpenGpus open_gpus);

  // Stops without draining if Stop was not called.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Refuses new work, finishes what runs, writes what is staged, for at most options.drain; then
  // ends sessions and threads. False when a tier still holds requests that never came back: the
  // process must then exit without destroying anything, since the kernel may yet write into the
  // staging pool. It may not be able to exit before that storage answers, so sockets and the
  // directories of the other tiers are left to the next one. Call once.
  [[nodiscard]] bool Stop();

  // host:port of the metrics; empty when off.
  std::string metrics_address() const;
  const engine::EngineStats& stats() const { return engine_->stats(); }
  const rpc::RpcStats& rpc_stats() const { return rpc_stats_; }
  const gpu::Gpus& gpus() const { return *gpus_; }

 private:
  struct OpenTier {
    config::TierOptions options;
    std::unique_ptr<tier::Tier> tier;  // Null: it did not open and is not required.
    std::string missing_cause = {};
    UniqueFd lock = {};  // Of the directory.
  };

  explicit Daemon(const config::Options& options);
  absl::Status StartParts(OpenGpus open_gpus);
  // Pins the pool for the GPUs, and lives with what is pinned, or not, by pool.pin.
  absl::Status PinPool();
  // `roots`: what is known of each tier's directory.
  absl::Status OpenTiers(const std::vector<absl::Status>& roots);
  absl::Status StartServers();
  std::vector<tier::Tier*> tiers() const;

  // As it was when the daemon started.
  const Limit files_;
  // The pool is as large as could be pinned.
  config::Options options_;
  const uint64_t configured_pool_bytes_;
  BootId boot_id_;
  TimeNs started_;
  std::unique_ptr<memory::SealedMemory> pool_;
  std::unique_ptr<gpu::Driver> driver_;
  std::unique_ptr<Pinning> pinning_;
  std::string pool_is_smaller_;  // Why, if it is.
  std::unique_ptr<gpu::Gpus> gpus_;
  std::unique_ptr<store::NamespaceRegistry> namespaces_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<OpenTier> tiers_;  // Those that opened first: their index is their TierId.
  metrics::DaemonFacts facts_;
  rpc::RpcStats rpc_stats_;
  std::unique_ptr<rpc::HandoffServer> handoff_;
  std::unique_ptr<metrics::MetricsServer> metrics_;
  std::unique_ptr<rpc::RpcServer> rpc_;
  bool stopped_ = false;
};

}  // namespace kvstream
