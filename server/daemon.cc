#include "server/daemon.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "server/base/clock.h"
#include "server/base/errno_status.h"
#include "server/base/logging.h"
#include "server/base/random.h"
#include "server/base/run_within.h"
#include "server/daemon_options.h"
#include "server/gpu_mode.h"
#include "server/limits.h"
#include "server/tier/mount.h"

namespace kvstream {
namespace {

constexpr TimeNs kEndSessions = 2 * kSecond;
constexpr TimeNs kStreamGrace = kSecond;
constexpr TimeNs kGpuStop = 2 * kSecond;
constexpr TimeNs kTierStop = 5 * kSecond;

absl::Status DoesNotAnswer(const std::string& root) {
  return absl::DeadlineExceededError("open " + root + ": the file system does not answer");
}

// A file system that is not mounted is refused here, before a lock is made in the wrong place.
absl::StatusOr<struct stat> StatRoot(const config::TierOptions& tier) {
  const auto answer = RunWithin(
      kFirstTouchPatience,
      [ root = tier.root, mount_point = tier.mount_point ]() -> absl::StatusOr<struct stat> {
        struct stat result;
        if (stat(root.c_str(), &result) != 0) return ErrnoStatus(errno, "stat", root);
        if (mount_point.empty()) return result;
        const absl::Status mounted = tier::CheckMounted(mount_point, result.st_dev, root);
        if (mounted.ok()) return result;
        return absl::Status(mounted.code(), std::string(mounted.message()) +
                                                "; mount it, then start the daemon again");
      });
  return answer.has_value() ? *answer : DoesNotAnswer(tier.root);
}

// Two tiers on one directory would be one replica that counts as two. What stat said of each root:
// an error is one of a tier that is not required.
absl::StatusOr<std::vector<absl::Status>> CheckRoots(
    const std::vector<config::TierOptions>& tiers) {
  std::vector<absl::Status> answers;
  std::vector<struct stat> roots;
  for (size_t i = 0; i < tiers.size(); ++i) {
    const std::string field = "tiers[" + std::to_string(i) + "].root: ";
    const auto root = StatRoot(tiers[i]);
    if (!root.ok() && tiers[i].required) {
      return absl::Status(root.status().code(), field + std::string(root.status().message()));
    }
    for (size_t j = 0; j < i && root.ok(); ++j) {
      if (answers[j].ok() && roots[j].st_ino == root->st_ino && roots[j].st_dev == root->st_dev) {
        return absl::InvalidArgumentError(field + tiers[i].root + " is the same directory as " +
                                          tiers[j].root + " of tiers[" + std::to_string(j) + "]");
      }
    }
    answers.push_back(root.status());
    roots.push_back(root.ok() ? *root : (struct stat){});
  }
  return answers;
}

// A process that has been told to end stays for as long as the kernel waits for its I/O.
constexpr char kWhatToDo[] =
    "Stop it. If it has been stopped and does not end, it waits for storage that does not answer: "
    "bring that back or detach it (a FUSE mount: umount -f), else only a reboot ends it. With "
    "`required: false` the daemon starts without this tier.";

// Whoever wrote its id into a lock file, as well as one can tell.
std::string HolderOf(int lock) {
  char text[16] = {};
  const int pid = pread(lock, text, sizeof text - 1, 0) > 0 ? std::atoi(text) : 0;
  if (pid <= 0) return "a process";
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  const std::string line{std::istreambuf_iterator<char>(stat), {}};
  const size_t name_ends = line.rfind(')');
  const bool known = name_ends != std::string::npos && name_ends + 2 < line.size();
  return "process " + std::to_string(pid) +
         (known ? " (state " + line.substr(name_ends + 2, 1) + ")" : " (not seen from here)");
}

absl::StatusOr<UniqueFd> LockRootNow(const std::string& root) {
  const std::string path = root + "/.kvstreamd.lock";
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, "open", path);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return absl::FailedPreconditionError("another kvstreamd uses " + root + ": " +
                                           HolderOf(fd.get()) + " holds " + path + ". " +
                                           kWhatToDo);
    }
    return ErrnoStatus(errno, "flock", path);
  }
  const std::string pid = std::to_string(getpid()) + "\n";
  if (ftruncate(fd.get(), 0) != 0 ||
      pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    spdlog::warn("the lock cannot say who holds it: path={}", path);  // A full disk: it is held.
  }
  return fd;
}

// A node's own directory has one daemon. A shared one is meant to have several.
absl::StatusOr<UniqueFd> LockRoot(const std::string& root) {
  auto lock = RunWithin(kFirstTouchPatience, [root] { return LockRootNow(root); });
  return lock.has_value() ? *std::move(lock) : DoesNotAnswer(root);
}

bool MayRegisterPool(const config::Options& options) {
  const Limit locked = LockedMemory(options);
  if (locked.enough()) return true;
  // All or nothing: what one tier registers must not keep the next one's rings from starting.
  spdlog::warn("staging pool not registered, reads cost more CPU: locked_need={} limit={} raise={}",
               locked.need, locked.have, locked.raise);
  return false;
}

// Taking the last memory of a machine on which a model runs would be worse than not to start.
absl::Status CheckMemory(const config::Options& options) {
  const Limit memory = Memory(options);
  if (memory.enough()) return absl::OkStatus();
  return absl::ResourceExhaustedError("pool.mib: the pool and what the daemon needs besides are " +
                                      std::to_string(memory.need / kMiB) + " MiB, and " +
                                      std::to_string(memory.have / kMiB) +
                                      " MiB are available; it takes " + memory.raise);
}

// Tiers that keep no more files open than the limit has descriptors for.
config::Options WithinLimits(config::Options options, const Limit& files) {
  const uint32_t most = OpenFilesPerTier(files, options.tiers.size());
  for (config::TierOptions& tier : options.tiers) tier.open_files = std::min(tier.open_files, most);
  return options;
}

std::vector<std::string> StandingConditions(const config::Options& options, const Limit& files,
                                            bool huge_pages) {
  std::vector<std::string> conditions;
  if (options.routing.policy != config::Policy::kCompletion || !options.routing.narrowing ||
      !options.routing.hedging) {
    spdlog::warn("routing is set for comparison, steps end later than they could");
    conditions.emplace_back("routing is set for comparison: steps end later than they could");
  }
  if (!files.enough()) {
    spdlog::warn("limit of open files is low: need={} limit={} raise={}", files.need, files.have,
                 files.raise);
    conditions.push_back("the limit of open files, " + std::to_string(files.have) +
                         ", is less than the " + std::to_string(files.need) +
                         " that tiers and sessions may need, so tiers keep fewer files open: raise "
                         "it with " +
                         files.raise);
  }
  if (!huge_pages) {
    const std::string raise = HugePages(options).raise;
    spdlog::warn("the staging pool has no huge pages: raise={}", raise);
    conditions.push_back("the staging pool has no huge pages: raise them with " + raise);
  }
  return conditions;
}

}  // namespace

const char kVersion[] = KVSTREAM_VERSION;

Daemon::Daemon(const config::Options& options)
    : files_(OpenFiles(options)),
      options_(WithinLimits(options, files_)),
      configured_pool_bytes_(options.pool_bytes),
      started_(Now()) {
  boot_id_.bytes = RandomBytes16();
  facts_.version = kVersion;
  facts_.boot = boot_id_;
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const config::Options& options,
                                                      OpenGpus open_gpus) {
  RaiseOpenFiles();
  std::unique_ptr<Daemon> daemon(new Daemon(options));
  try {
    if (auto status = daemon->StartParts(open_gpus); !status.ok()) return status;
  } catch (const std::system_error& e) {  // What the library throws without a thread.
    return absl::ResourceExhaustedError(std::string("no thread is to be had: ") + e.what() +
                                        "; raise the limit of processes (ulimit -u, TasksMax)");
  }
  return daemon;
}

absl::Status Daemon::StartParts(OpenGpus open_gpus) {
  const auto roots = CheckRoots(options_.tiers);
  if (!roots.ok()) return roots.status();
  if (auto status = CheckMemory(options_); !status.ok()) return status;
  auto pool = memory::SealedMemory::Create("kvstreamd-pool", options_.pool_bytes, true);
  if (!pool.ok()) {
    return absl::Status(pool.status().code(),
                        "staging pool: " + std::string(pool.status().message()));
  }
  pool_ = std::move(*pool);
  auto driver = OpenDriver(options_.gpu.mode, open_gpus);
  if (!driver.ok()) return driver.status();
  driver_ = *std::move(driver);
  if (auto status = PinPool(); !status.ok()) return status;
  gpus_ = std::make_unique<gpu::Gpus>(driver_.get());
  namespaces_ = std::make_unique<store::NamespaceRegistry>(NamespaceLimitsOf(options_));
  engine_ = std::make_unique<engine::Engine>(pool_.get(), gpus_.get());
  if (auto status = OpenTiers(*roots); !status.ok()) return status;
  return StartServers();
}

absl::Status Daemon::PinPool() {
  pinning_ = std::make_unique<Pinning>(driver_.get());
  const absl::Status pinned = pinning_->Pin(pool_->bytes());
  if (pinned.ok()) return absl::OkStatus();
  auto smaller = WithPoolPinned(options_, pinning_->bytes(), pinned);
  if (!smaller.ok()) return smaller.status();
  options_ = *std::move(smaller);
  pool_is_smaller_ = PoolIsSmaller(configured_pool_bytes_, options_.pool_bytes, pinned);
  spdlog::warn("{}", pool_is_smaller_);
  return pool_->Shrink(options_.pool_bytes);
}

absl::Status Daemon::OpenTiers(const std::vector<absl::Status>& roots) {
  std::vector<OpenTier> missing;
  const bool register_memory = MayRegisterPool(options_);
  for (size_t i = 0; i < roots.size(); ++i) {
    const config::TierOptions& options = options_.tiers[i];
    absl::Status status = roots[i];
    UniqueFd root_lock;
    if (status.ok() && !options.shared) {
      auto lock = LockRoot(options.root);
      if (lock.ok()) {
        root_lock = std::move(*lock);
      } else {
        status = lock.status();
      }
    }
    if (status.ok()) {
      const TierId id{static_cast<uint32_t>(tiers_.size())};
      auto tier = tier::OpenFileTier(TierOptionsOf(options_, options, id, register_memory),
                                     pool_->bytes(), engine_.get());
      if (tier.ok()) {
        const tier::TierFacts& facts = (*tier)->facts();
        const std::string reason = facts.engine_reason + facts.buffered_reason;
        spdlog::info(
            "tier open: tier={} root={} engine={} direct={} alignment={} registered={}{}",
            options.name, options.root, facts.io_engine, facts.direct, facts.alignment,
            facts.registered_buffers,
            reason.empty() ? reason : " reason=" + reason);
        tiers_.push_back({options, std::move(*tier), {}, std::move(root_lock)});
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
      engine_.get(), &rpc_stats_);
  if (!handoff.ok()) return handoff.status();
  std::vector<config::TierOptions> open;
  for (const OpenTier& tier : tiers_) {
    if (tier.tier != nullptr) open.push_back(tier.options);
  }
  engine_->Start(EngineOptionsOf(options_, open), tiers(), handoff->get());
  handoff_ = std::move(*handoff);  // Only now: a stop without it asks nothing of the engine.

  rpc::RpcOptions rpc{{options_.grpc_socket, options_.socket_mode, options_.socket_group},
                      options_.reflection,
                      {boot_id_, kVersion, LimitsOf(options_), {}},
                      {&engine_->stats(),
                       {},
                       gpus_.get(),
                       configured_pool_bytes_,
                       pinning_->bytes(),
                       "",
                       started_,
                       &rpc_stats_}};
  facts_.pool_configured_bytes = configured_pool_bytes_;
  facts_.pool_pinned_bytes = pinning_->bytes();
  metrics::MetricsSource source{&facts_, &engine_->stats(), &rpc_stats_, {}, gpus_.get()};
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
  auto server = rpc::RpcServer::Start(std::move(rpc),
                                      {*engine_, *namespaces_, handoff_->tokens(), rpc_stats_});
  if (!server.ok()) return server.status();
  rpc_ = std::move(*server);
  facts_.ready.Set(1);
  std::vector<std::string> conditions = StandingConditions(options_, files_, pool_->huge_pages());
  if (!pool_is_smaller_.empty()) conditions.push_back(pool_is_smaller_);
  rpc_->SetReady(true, std::move(conditions));
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
  if (!engine_->EndSessions(Now() + kEndSessions)) {
    spdlog::warn("sessions or reads have not ended in time: sessions={}",
                 engine_->stats().sessions_open.Get());
  }
  if (rpc_ != nullptr) rpc_->Shutdown(kStreamGrace);
  bool clean = engine_->Stop(Now() + kGpuStop);
  if (!clean) spdlog::warn("a GPU's copies never ended");
  for (OpenTier& open : tiers_) {
    if (open.tier == nullptr) continue;
    if (open.tier->Stop(Now() + kTierStop)) {
      open.lock.Reset();
      continue;
    }
    spdlog::warn("requests never came back: tier={}", open.options.name);
    clean = false;
  }
  if (clean) return true;
  metrics_.reset();
  if (rpc_ != nullptr) rpc_->ReleasePath();
  handoff_->ReleasePath();
  return false;
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
