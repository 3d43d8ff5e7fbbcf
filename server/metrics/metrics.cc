#include "server/metrics/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/check.h"
#include "server/metrics/series.h"

namespace kvstream::metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

using Labels = std::vector<ClientMetric::Label>;

ClientMetric Sample(const Gauge& number) {
  ClientMetric metric;
  metric.gauge.value = static_cast<double>(number.Get());
  return metric;
}

ClientMetric Sample(const Counter& number) {
  ClientMetric metric;
  metric.counter.value = static_cast<double>(number.Get());
  return metric;
}

ClientMetric Sample(const Histogram& number) {
  ClientMetric metric;
  uint64_t count = 0;
  for (size_t i = 0; i < Histogram::kBuckets; ++i) {
    count += number.Count(i);
    const bool last = i + 1 == Histogram::kBuckets;
    metric.histogram.bucket.push_back(
        {count, last ? std::numeric_limits<double>::infinity()
                     : static_cast<double>(Histogram::UpperBoundUs(i)) / 1e6});
  }
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = static_cast<double>(number.SumUs()) / 1e6;
  return metric;
}

constexpr MetricType TypeOf(const Gauge*) { return MetricType::Gauge; }
constexpr MetricType TypeOf(const Counter*) { return MetricType::Counter; }
constexpr MetricType TypeOf(const Histogram*) { return MetricType::Histogram; }

// The stats of one tier, or of the daemon: then without labels.
template <typename Stats>
struct Labelled {
  const Stats* stats;
  Labels labels;
};

// One family for each series of the table, with one sample for each of `sources`.
template <typename Stats, typename Number, size_t n>
void Collect(const Series<Stats, Number> (&table)[n], const std::vector<Labelled<Stats>>& sources,
             std::vector<MetricFamily>* out) {
  for (const Series<Stats, Number>& series : table) {
    MetricFamily family{series.name, series.help, TypeOf(static_cast<const Number*>(nullptr)), {}};
    for (const Labelled<Stats>& source : sources) {
      family.metric.push_back(Sample(source.stats->*series.number));
      family.metric.back().label = source.labels;
    }
    out->push_back(std::move(family));
  }
}

MetricFamily GaugeFamily(std::string name, std::string help) {
  return {std::move(name), std::move(help), MetricType::Gauge, {}};
}

void AddGauge(double value, Labels labels, MetricFamily* family) {
  family->metric.emplace_back();
  family->metric.back().gauge.value = value;
  family->metric.back().label = std::move(labels);
}

class Numbers final : public prometheus::Collectable {
 public:
  explicit Numbers(MetricsSource source) : source_(std::move(source)) {}

  std::vector<MetricFamily> Collect() const override {
    std::vector<Labelled<TierEngineStats>> tier_engine;
    std::vector<Labelled<TierStats>> tiers;
    for (const TierSource& t : source_.tiers) {
      const Labels labels = {{"tier", t.name}};
      tier_engine.push_back({&source_.engine->tiers[t.id.value], labels});
      if (t.stats != nullptr) tiers.push_back({t.stats, labels});
    }
    std::vector<MetricFamily> out;
    CollectFacts(&out);
    const std::vector<Labelled<EngineStats>> engine = {{source_.engine, {}}};
    metrics::Collect(kEngineGauges, engine, &out);
    metrics::Collect(kEngineCounters, engine, &out);
    metrics::Collect(kEngineHistograms, engine, &out);
    const std::vector<Labelled<RpcStats>> rpc = {{source_.rpc, {}}};
    metrics::Collect(kRpcGauges, rpc, &out);
    metrics::Collect(kRpcCounters, rpc, &out);
    metrics::Collect(kTierEngineGauges, tier_engine, &out);
    metrics::Collect(kTierEngineCounters, tier_engine, &out);
    metrics::Collect(kTierGauges, tiers, &out);
    metrics::Collect(kTierCounters, tiers, &out);
    CollectGpus(&out);
    return out;
  }

 private:
  void CollectFacts(std::vector<MetricFamily>* out) const {
    MetricFamily info = GaugeFamily("kvstreamd_info", "Always 1: version and boot of the daemon.");
    AddGauge(1, {{"version", source_.daemon->version}, {"boot", ToHex(source_.daemon->boot)}},
             &info);
    out->push_back(std::move(info));

    MetricFamily ready = GaugeFamily("kvstreamd_ready",
                                     "1 once every required tier has passed its probe, until a "
                                     "drain, or while a GPU does not work or a tier is being "
                                     "brought within a limit that was lowered.");
    const bool serves = source_.daemon->ready.Get() != 0 && source_.engine->draining.Get() == 0 &&
                        AllGpusWork() && NoTierSettles();
    AddGauge(serves ? 1 : 0, {}, &ready);
    out->push_back(std::move(ready));

    MetricFamily configured =
        GaugeFamily("kvstreamd_pool_configured_bytes",
                    "Size of the pool in the config; less is there when the rest was not pinned.");
    AddGauge(static_cast<double>(source_.daemon->pool_configured_bytes), {}, &configured);
    out->push_back(std::move(configured));
    MetricFamily pinned =
        GaugeFamily("kvstreamd_pool_pinned_bytes", "Bytes of the pool that are pinned for GPUs.");
    AddGauge(static_cast<double>(source_.daemon->pool_pinned_bytes), {}, &pinned);
    out->push_back(std::move(pinned));

    MetricFamily tier_info =
        GaugeFamily("kvstreamd_tier_info", "Always 1: what the probe of the tier found out.");
    for (const TierSource& t : source_.tiers) {
      if (t.facts == nullptr) continue;
      AddGauge(1,
               {{"tier", t.name},
                {"io_engine", t.facts->io_engine},
                {"direct", t.facts->direct ? "true" : "false"},
                {"alignment_bytes", std::to_string(t.facts->alignment)},
                {"registered_buffers", t.facts->registered_buffers ? "true" : "false"}},
               &tier_info);
    }
    out->push_back(std::move(tier_info));
  }

  size_t gpus() const { return source_.gpus != nullptr ? source_.gpus->size() : 0; }

  bool NoTierSettles() const {
    return std::ranges::none_of(source_.tiers, [this](const auto& tier) {
      return source_.engine->tiers[tier.id.value].settling.Get() != 0;
    });
  }
  bool AllGpusWork() const {
    for (size_t i = 0; i < gpus(); ++i) {
      const gpu::DeviceStats& stats = source_.gpus->stats(i);
      if (stats.usable.Get() == 0 || stats.hung.Get() != 0) return false;
    }
    return true;
  }

  void CollectGpus(std::vector<MetricFamily>* out) const {
    std::vector<Labelled<DeviceStats>> devices;
    MetricFamily info = GaugeFamily("kvstreamd_gpu_info", "Always 1: the name of the GPU.");
    for (size_t i = 0; i < gpus(); ++i) {
      devices.push_back({&source_.gpus->stats(i), {{"gpu", source_.gpus->uuid(i)}}});
      AddGauge(1, {{"gpu", source_.gpus->uuid(i)}, {"name", source_.gpus->name(i)}}, &info);
    }
    out->push_back(std::move(info));
    MetricFamily unused = GaugeFamily("kvstreamd_gpus_unused", "GPUs that failed their start.");
    const size_t failed = source_.gpus != nullptr ? source_.gpus->unused().size() : 0;
    AddGauge(static_cast<double>(failed), {}, &unused);
    out->push_back(std::move(unused));
    metrics::Collect(kGpuGauges, devices, out);
    metrics::Collect(kGpuCounters, devices, out);
  }

  const MetricsSource source_;
};

}  // namespace

MetricsServer::MetricsServer(std::string host, std::shared_ptr<prometheus::Collectable> numbers,
                             std::unique_ptr<prometheus::Exposer> exposer, int port)
    : host_(std::move(host)),
      numbers_(std::move(numbers)),
      exposer_(std::move(exposer)),
      port_(port) {}

MetricsServer::~MetricsServer() = default;

std::string MetricsServer::address() const { return absl::StrCat(host_, ":", port_); }

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen,
                                                                    MetricsSource source) {
  KV_CHECK(source.daemon != nullptr && source.engine != nullptr && source.rpc != nullptr);
  for (const TierSource& t : source.tiers) KV_CHECK(t.id.value < kTiersMax);
  auto numbers = std::make_shared<Numbers>(std::move(source));
  // The library throws for an address it cannot listen on; exceptions end here.
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(listen);
    exposer->RegisterCollectable(numbers);
    const std::vector<int> ports = exposer->GetListeningPorts();
    if (ports.empty()) {
      return absl::UnavailableError(absl::StrCat("listen for metrics on ", listen, ": no port"));
    }
    return std::unique_ptr<MetricsServer>(new MetricsServer(
        listen.substr(0, listen.rfind(':')), std::move(numbers), std::move(exposer), ports[0]));
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("listen for metrics on '", listen,
                                               "': busy or not an address of this host (", e.what(),
                                               ")"));
  }
}

}  // namespace kvstream::metrics
