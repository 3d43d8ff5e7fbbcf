#include "server/daemon.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "server/base/clock.h"
#include "server/base/errno_status.h"
#include "server/base/logging.h"
#include "server/base/random.h"
#include "server/daemon_options.h"

namespace kvstream {
namespace {

constexpr TimeNs kEndSessions = 2 * kSecond;
constexpr TimeNs kStreamGrace = kSecond;
constexpr TimeNs kTierStop = 5 * kSecond;

// Two tiers on one directory would be one replica that counts as two.
absl::Status CheckRootsDiffer(const std::vector<config::TierOptions>& tiers) {
  std::vector<struct stat> roots;
  for (size_t i = 0; i < tiers.size(); ++i) {
    struct stat root;
    if (stat(tiers[i].root.c_str(), &root) != 0) {
      if (!tiers[i].required) {
        roots.push_back({});
        continue;
      }
      return ErrnoStatus(errno, "tiers[" + std::to_string(i) + "].root: stat", tiers[i].root);
    }
    for (size_t j = 0; j < i; ++j) {
      if (roots[j].st_ino == root.st_ino && roots[j].st_dev == root.st_dev) {
        return absl::InvalidArgumentError(
            "tiers[" + std::to_string(i) + "].root: " + tiers[i].root +
            " is the same directory as " + tiers[j].root + " of tiers[" + std::to_string(j) + "]");
      }
    }
    roots.push_back(root);
  }
  return absl::OkStatus();
}

// A node's own directory has one daemon. A shared one is meant to have several.
absl::StatusOr<UniqueFd> LockRoot(const std::string& root) {
  const std::string path = root + "/.kvstreamd.lock";
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, "open", path);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return absl::FailedPreconditionError("another kvstreamd uses " + root + " (it holds " + path +
                                           ")");
    }
    return ErrnoStatus(errno, "flock", path);
  }
  return fd;
}

}  // namespace

const char kVersion[] = KVSTREAM_VERSION;

Daemon::Daemon(const config::Options& options) : options_(options), started_(Now()) {
  boot_id_.bytes = RandomBytes16();
  facts_.version = kVersion;
  facts_.boot = boot_id_;
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const config::Options& options) {
  std::unique_ptr<Daemon> daemon(new Daemon(options));
  if (auto status = daemon->StartParts(); !status.ok()) return status;
  return daemon;
}

absl::Status Daemon::StartParts() {
  if (auto status = CheckRootsDiffer(options_.tiers); !status.ok()) return status;
  auto pool = memory::SealedMemory::Create("kvstreamd-pool", options_.pool_bytes, true);
  if (!pool.ok()) {
    return absl::Status(pool.status().code(),
                        "staging pool: " + std::string(pool.status().message()));
  }
  pool_ = std::move(*pool);
  gpu_ = gpu::OpenGpu();
  namespaces_ = std::make_unique<store::NamespaceRegistry>(NamespaceLimitsOf(options_));
  engine_ = std::make_unique<engine::Engine>(pool_.get(), gpu_.get());
  if (auto status = OpenTiers(); !status.ok()) return status;
  return StartServers();
}

absl::Status Daemon::OpenTiers() {
  std::vector<OpenTier> missing;
  for (const config::TierOptions& options : options_.tiers) {
    absl::Status status;
    if (!options.shared) {
      auto lock = LockRoot(options.root);
      if (lock.ok()) {
        root_locks_.push_back(std::move(*lock));
      } else {
        status = lock.status();
      }
    }
    if (status.ok()) {
      const TierId id{static_cast<uint32_t>(tiers_.size())};
      auto tier =
          tier::OpenUringTier(TierOptionsOf(options_, options, id), pool_->bytes(), engine_.get());
      if (tier.ok()) {
        const tier::TierFacts& facts = (*tier)->facts();
        spdlog::info("tier open: tier={} root={} engine={} direct={} alignment={} registered={}",
                     options.name, options.root, facts.io_engine, facts.direct, facts.alignment,
                     facts.registered_buffers);
        tiers_.push_back({options, std::move(*tier)});
        continue;
      }
      status = tier.status();
    }
    if (options.required) {
      return absl::Status(status.code(),
                          "tier " + options.name + ": " + std::string(status.message()));
    }
    spdlog::warn("tier missing: tier={} cause={}", options.name, std::string(status.message()));
    missing.push_back({options, nullptr, std::string(status.message())});
  }
  if (tiers_.empty()) return absl::UnavailableError("no tier could be opened");
  for (OpenTier& tier : missing) tiers_.push_back(std::move(tier));
  return absl::OkStatus();
}

std::vector<tier::Tier*> Daemon::tiers() const {
  std::vector<tier::Tier*> open;
  for (const OpenTier& tier : tiers_) {
    if (tier.tier != nullptr) open.push_back(tier.tier.get());
  }
  return open;
}

absl::Status Daemon::StartServers() {
  auto handoff = rpc::HandoffServer::Start(
      {{options_.handoff_socket, options_.socket_mode, options_.socket_group},
       boot_id_,
       LimitsOf(options_)},
      engine_.get());
  if (!handoff.ok()) return handoff.status();
  handoff_ = std::move(*handoff);
  std::vector<config::TierOptions> open;
  for (const OpenTier& tier : tiers_) {
    if (tier.tier != nullptr) open.push_back(tier.options);
  }
  engine_->Start(EngineOptionsOf(options_, open), tiers(), handoff_.get());

  rpc::RpcOptions rpc{{options_.grpc_socket, options_.socket_mode, options_.socket_group},
                      options_.reflection,
                      {boot_id_, kVersion, LimitsOf(options_), {}},
                      {&engine_->stats(), {}, gpu_->DeviceNames(), "", started_}};
  metrics::MetricsSource source{&facts_, &engine_->stats(), {}};
  for (uint32_t i = 0; i < tiers_.size(); ++i) {
    const tier::Tier* tier = tiers_[i].tier.get();
    const std::string& name = tiers_[i].options.name;
    rpc.facts.tier_names.push_back(name);
    rpc.status.tiers.push_back({name, tiers_[i].options.root, tier, tiers_[i].missing_cause});
    source.tiers.push_back({TierId{i}, name, tier != nullptr ? &tier->stats() : nullptr,
                            tier != nullptr ? &tier->facts() : nullptr});
  }
  if (!options_.metrics_listen.empty()) {
    auto metrics = metrics::MetricsServer::Start(options_.metrics_listen, std::move(source));
    if (!metrics.ok()) return metrics.status();
    metrics_ = std::move(*metrics);
    rpc.status.metrics_address = metrics_->address();
  }
  auto server = rpc::RpcServer::Start(std::move(rpc), {*engine_, *namespaces_, handoff_->tokens()});
  if (!server.ok()) return server.status();
  rpc_ = std::move(*server);
  facts_.ready.Set(1);
  rpc_->SetReady(true, {});
  spdlog::info("serving: version={} boot={} socket={} metrics={}", kVersion, ToHex(boot_id_),
               options_.grpc_socket, metrics_address());
  return absl::OkStatus();
}

std::string Daemon::metrics_address() const {
  return metrics_ != nullptr ? metrics_->address() : "";
}

bool Daemon::Stop() {
  stopped_ = true;
  facts_.ready.Set(0);
  if (rpc_ != nullptr) rpc_->SetReady(false, {"stopping"});
  if (handoff_ == nullptr) return true;  // The engine never started.
  engine_->BeginDrain();
  if (!engine_->WaitDrained(Now() + options_.drain)) {
    spdlog::warn("not drained in time: staged_bytes={} operations={}",
                 engine_->stats().staged_bytes.Get(), engine_->stats().operations_running.Get());
  }
  engine_->EndSessions(Now() + kEndSessions);
  if (rpc_ != nullptr) rpc_->Shutdown(kStreamGrace);
  engine_->Stop();
  bool clean = true;
  for (tier::Tier* tier : tiers()) {
    if (tier->Stop(Now() + kTierStop)) continue;
    spdlog::warn("requests never came back: tier={}", tier->options().name);
    clean = false;
  }
  return clean;
}

Daemon::~Daemon() {
  if (stopped_) return;
  if (handoff_ == nullptr) {
    for (tier::Tier* tier : tiers()) (void)tier->Stop(Now() + kTierStop);
  } else if (!Stop()) {
    std::abort();  // Destroying the pool under a running read would be worse.
  }
}

}  // namespace kvstream
