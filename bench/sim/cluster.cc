#include "bench/sim/cluster.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "bench/sim/gpu_model.h"

namespace kvstream::sim {
namespace {

constexpr uint64_t kEventsBetweenProgress = 1 << 20;

absl::StatusOr<GpuModel> ModelOf(const ClusterOptions& options) {
  const auto model = FindModel(options.model);
  if (!model) return absl::InvalidArgumentError("model: no figures for " + options.model);
  const auto gpu = FindGpu(options.gpu);
  if (!gpu) return absl::InvalidArgumentError("gpu: no figures for " + options.gpu);
  if (options.gpus_per_instance == 0 || options.gpus_per_node < options.gpus_per_instance) {
    return absl::InvalidArgumentError("gpus_per_instance: a node has not so many GPUs");
  }
  GpuModel result(*model, *gpu, options.gpus_per_instance);
  if (result.kv_memory_bytes() == 0) {
    return absl::InvalidArgumentError("gpus_per_instance: the model's weights do not fit");
  }
  return result;
}

// A generator's sequence from the options' own and a number.
uint64_t SeedOf(uint64_t seed, uint64_t number) {
  return SimRandom(seed * 0x9e3779b97f4a7c15 + number).Next();
}

class Cluster {
 public:
  Cluster(const ClusterOptions& options, const GpuModel& model, const Workload& workload);

  Report Run(const std::function<void(uint64_t)>& progress);

 private:
  struct Machine {
    std::unique_ptr<Device> nvme;
    std::unique_ptr<Device> link;
    std::unique_ptr<Storage> storage;
    std::unique_ptr<Node> node;
  };

  void Add(uint32_t number);
  StorageOptions StorageOptionsOf() const;
  void PlaceAll();
  TierSet NextPlace();
  void ArriveNext();
  Machine& MachineOf(const SimRequest& request) {
    return machines_[request.session % machines_.size()];
  }
  Report Collect() const;

  const ClusterOptions& options_;
  const GpuModel model_;
  const Workload& workload_;
  const uint64_t chunk_bytes_;
  EventQueue events_;
  std::unique_ptr<Device> pfs_;
  SharedTier shared_;
  std::vector<Machine> machines_;
  SimRandom placing_;
  size_t next_request_ = 0;
};

Cluster::Cluster(const ClusterOptions& options, const GpuModel& model, const Workload& workload)
    : options_(options),
      model_(model),
      workload_(workload),
      chunk_bytes_(model.kv_bytes_per_token() * workload.chunk_tokens),
      placing_(SeedOf(options.seed, 1)) {
  shared_.shared = options.share;
  if (options.use_pfs) {
    DeviceOptions pfs = options.pfs;
    pfs.read.bytes_per_second *= options.nodes;
    if (options.pfs_bytes_per_second > 0) {
      pfs.read.bytes_per_second = std::min(pfs.read.bytes_per_second, options.pfs_bytes_per_second);
    }
    pfs.read.seed = SeedOf(options.seed, 2);
    pfs.seed = SeedOf(options.seed, 3);
    pfs_ = std::make_unique<Device>(pfs);
    shared_.device = pfs_.get();
  }
  machines_.resize(options.nodes);
  for (uint32_t n = 0; n < options.nodes; ++n) Add(n);
  if (options.placed) PlaceAll();
}

StorageOptions Cluster::StorageOptionsOf() const {
  StorageOptions storage = options_.storage;
  storage.shape = ChunkShape{chunk_bytes_, std::min(options_.segment_bytes, chunk_bytes_)};
  // A router has a lane at least; where there is no tier, nobody asks it.
  const size_t tiers = std::max(1, (options_.use_nvme ? 1 : 0) + (options_.use_pfs ? 1 : 0));
  for (size_t t = 0; t < tiers; ++t) {
    storage.router.lanes.push_back({.window_bytes = options_.window_bytes,
                                    .quarantine_bytes = 2 * options_.window_bytes,
                                    .ahead = 100 * kMillisecond});
    storage.writes.lanes.push_back({.window_bytes = options_.window_bytes});
  }
  storage.writes.watermark_bytes = (storage.pool_bytes - storage.reserved_bytes) / 2;
  storage.writes.home_first = storage.replication.copies == Copies::kAdaptive;
  storage.copy_bytes_per_second = model_.link_bytes_per_second();
  return storage;
}

void Cluster::Add(uint32_t number) {
  Machine& machine = machines_[number];
  std::vector<Device*> own;
  std::vector<Bandwidth*> bound;
  if (options_.use_nvme) {
    DeviceOptions nvme = options_.nvme;
    nvme.read.seed = SeedOf(options_.seed, 16 + 4 * number);
    nvme.seed = SeedOf(options_.seed, 17 + 4 * number);
    machine.nvme = std::make_unique<Device>(nvme);
    own.push_back(machine.nvme.get());
    bound.push_back(&machine.nvme->bandwidth());
  }
  if (options_.use_pfs) {
    // One node alone has no use for a link: the device is what it sees.
    if (options_.nodes > 1) {
      DeviceOptions link = options_.pfs;
      link.read.kind = BandwidthOptions::Kind::kConstant;
      link.latency = 0;
      machine.link = std::make_unique<Device>(link);
    } else {
      bound.push_back(&pfs_->bandwidth());
    }
  }
  machine.storage = std::make_unique<Storage>(StorageOptionsOf(), &events_, std::move(own),
                                              machine.link.get(), &shared_);
  NodeOptions node = options_.node;
  node.instances = options_.gpus_per_node / options_.gpus_per_instance;
  node.chunk_tokens = workload_.chunk_tokens;
  node.use_storage = options_.use_nvme || options_.use_pfs;
  // What others take of the shared tier is no part of it.
  if (options_.nodes > 1) bound.clear();
  machine.node = std::make_unique<Node>(node, &model_, &events_, machine.storage.get(),
                                        chunk_bytes_, std::move(bound));
}

TierSet Cluster::NextPlace() {
  const auto tiers =
      static_cast<uint32_t>((options_.use_nvme ? 1 : 0) + (options_.use_pfs ? 1 : 0));
  TierSet all;
  for (uint32_t t = 0; t < tiers; ++t) all.Add(TierId{t});
  if (tiers < 2) return all;
  const double nvme = options_.nvme.read.bytes_per_second;
  const double others = 1 - nvme / (nvme + options_.pfs.read.bytes_per_second);
  Replication replication(options_.storage.replication);
  if (placing_.Real() < replication.Share(others)) return all;
  const sched::PolicyOptions& policy = options_.storage.router.policy;
  double first = 1 - others;
  if (policy.policy == sched::Policy::kFixed) first = policy.fixed_percent / 100.0;
  if (options_.storage.replication.copies == Copies::kAdaptive) first = 1;
  return TierSet::Of(TierId{placing_.Real() < first ? 0u : 1u});
}

void Cluster::PlaceAll() {
  for (const SimRequest& request : workload_.requests) {
    Storage& storage = *MachineOf(request).storage;
    for (const uint64_t chunk : request.chunks) {
      if (!storage.Has(chunk)) storage.Place(chunk, NextPlace());
    }
  }
}

void Cluster::ArriveNext() {
  if (next_request_ == workload_.requests.size()) return;
  const TimeNs now = workload_.requests[next_request_].arrival;
  events_.At(now, [this, now] {
    // What comes at one time is queued before anything is done about it.
    for (; next_request_ < workload_.requests.size(); ++next_request_) {
      const SimRequest& request = workload_.requests[next_request_];
      if (request.arrival != now) break;
      MachineOf(request).node->Arrive(&request);
    }
    ArriveNext();
  });
}

Report Cluster::Run(const std::function<void(uint64_t)>& progress) {
  ArriveNext();
  const auto answered = [this] {
    size_t waiting = 0;
    for (const Machine& machine : machines_) waiting += machine.node->unfinished();
    return next_request_ - waiting;
  };
  // Timers of the router go on for ever; what counts are the requests.
  while (!events_.empty()) {
    events_.RunNext();
    if (events_.happened() % kEventsBetweenProgress != 0) continue;
    progress(answered());
  }
  return Collect();
}

Report Cluster::Collect() const {
  Report report;
  report.requests = workload_.requests.size();
  report.chunk_bytes = chunk_bytes_;
  report.events = events_.happened();
  for (const Machine& machine : machines_) {
    const NodeStats& node = machine.node->stats();
    NodeStats& all = report.nodes;
    all.first_token_seconds.insert(all.first_token_seconds.end(), node.first_token_seconds.begin(),
                                   node.first_token_seconds.end());
    for (const auto field :
         {&NodeStats::input_tokens, &NodeStats::output_tokens, &NodeStats::computed_tokens,
          &NodeStats::gpu_hit_chunks, &NodeStats::host_hit_chunks, &NodeStats::storage_hit_chunks,
          &NodeStats::preloaded_chunks, &NodeStats::declined_chunks}) {
      all.*field += node.*field;
    }
    for (const auto field :
         {&NodeStats::load_seconds, &NodeStats::bound_seconds, &NodeStats::prefill_seconds}) {
      all.*field += node.*field;
    }
    report.seconds = std::max(report.seconds, static_cast<double>(node.last_end) / 1e9);
    const StorageStats& storage = machine.storage->stats();
    report.read_bytes.resize(storage.read_bytes.size());
    report.written_bytes.resize(storage.written_bytes.size());
    for (size_t t = 0; t < storage.read_bytes.size(); ++t) {
      report.read_bytes[t] += storage.read_bytes[t];
      report.written_bytes[t] += storage.written_bytes[t];
      report.hedges += machine.storage->router().hedges(TierId{static_cast<uint32_t>(t)});
    }
    report.stored_bytes += storage.stored_chunks * chunk_bytes_;
    report.dropped_chunks += storage.dropped_chunks;
    report.dropped_copies += storage.dropped_copies;
    if (options_.use_pfs) report.pfs_chunks += machine.storage->chunks_on_shared();
    report.writes_saved += storage.writes_saved;
  }
  if (options_.share) report.pfs_chunks = shared_.chunks.size();
  return report;
}

}  // namespace

absl::StatusOr<Report> Simulate(const ClusterOptions& options, const Workload& workload,
                                const std::function<void(uint64_t)>& progress) {
  const auto model = ModelOf(options);
  if (!model.ok()) return model.status();
  if (options.nodes == 0) return absl::InvalidArgumentError("nodes: at least 1");
  if (options.segment_bytes == 0 || options.segment_bytes % kPayloadAlignment != 0 ||
      options.segment_bytes > options.window_bytes) {
    return absl::InvalidArgumentError("segment_bytes: a multiple of 4096, not above the window");
  }
  return Cluster(options, *model, workload).Run(progress);
}

}  // namespace kvstream::sim
