#include "bench/sim/command_line.h"

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/options.h"

namespace kvstream::sim {
namespace {

using Kind = BandwidthOptions::Kind;
using sched::Policy;

constexpr TimeNs kHedgeAfter = 100 * kMillisecond;  // As the daemon's default.

// A decimal fraction within the range.
Option RealOption(std::string name, std::string value, std::string help, double min, double max,
                  std::function<void(double)> set) {
  return {
      std::move(name), std::move(value), std::move(help),
      [min, max, set = std::move(set)](std::string_view text) {
        double number = 0;
        if (!absl::SimpleAtod(std::string(text), &number) || !(number >= min && number <= max)) {
          return absl::InvalidArgumentError(
              absl::StrCat("takes a number within ", min, " .. ", max));
        }
        set(number);
        return absl::OkStatus();
      }};
}

// The value that the target has now is said as the default.
template <typename T>
Option Real(std::string name, std::string value, std::string help, double min, double max,
            T* target, double unit = 1) {
  absl::StrAppend(&help, " (", static_cast<double>(*target) / unit, ")");
  return RealOption(std::move(name), std::move(value), std::move(help), min, max,
                    [target, unit](double number) { *target = static_cast<T>(number * unit); });
}

Option Count(std::string name, std::string help, uint32_t* target) {
  return Real(std::move(name), "N", std::move(help), 1, 4e9, target);
}

// One of several words.
template <typename T>
Option Choice(std::string name, std::string help, std::vector<std::pair<std::string, T>> choices,
              T* target) {
  std::string words;
  for (const auto& [word, value] : choices) {
    absl::StrAppend(&words, words.empty() ? "" : "|", word);
    if (value == *target) absl::StrAppend(&help, help.empty() ? "(" : " (", word, ")");
  }
  return {std::move(name), words, std::move(help),
          [choices = std::move(choices), words, target](std::string_view text) {
            for (const auto& [word, value] : choices) {
              if (word != text) continue;
              *target = value;
              return absl::OkStatus();
            }
            return absl::InvalidArgumentError(absl::StrCat("takes ", words));
          }};
}

// A policy's name, for some with a number behind a colon.
absl::Status SetPolicy(std::string_view text, CommandLine* to) {
  sched::PolicyOptions& policy = to->cluster.storage.router.policy;
  to->cluster.use_nvme = to->cluster.use_pfs = true;
  to->cluster.storage.router.hedge_after = kHedgeAfter;
  uint32_t number = 0;
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const bool numbered = colon != text.npos &&
                        absl::SimpleAtoi(std::string(text.substr(colon + 1)), &number) &&
                        number > 0;
  if (name == "fixed" && numbered && number < 100) {
    policy = {.policy = Policy::kFixed, .fixed_percent = number};
  } else if (name == "published" && numbered) {
    policy = {.policy = Policy::kPublished, .chunks_at_a_time = number};
  } else if (text == "completion") {
    policy = {.policy = Policy::kCompletion};
  } else if (text == "request-at-a-time") {
    policy = {.policy = Policy::kRequestAtATime};
  } else if (text == "single") {
    to->cluster.use_pfs = false;
  } else if (text == "memory") {
    to->cluster.use_nvme = false;
    to->cluster.use_pfs = false;
  } else {
    return absl::InvalidArgumentError("names no policy");
  }
  // Those to compare with never read a segment again.
  if (policy.policy == Policy::kFixed || policy.policy == Policy::kPublished) {
    to->cluster.storage.router.hedge_after = kNever / 4;
  }
  return absl::OkStatus();
}

absl::Status SetCopies(std::string_view text, CommandLine* to) {
  ReplicationOptions& replication = to->cluster.storage.replication;
  if (constexpr std::string_view kFraction = "fraction:"; text.starts_with(kFraction)) {
    const std::string part(text.substr(kFraction.size()));
    replication.copies = Copies::kFraction;
    if (!absl::SimpleAtod(part, &replication.fraction) ||
        !(replication.fraction >= 0 && replication.fraction <= 1)) {
      return absl::InvalidArgumentError("the fraction is not within 0 .. 1");
    }
    return absl::OkStatus();
  }
  return Choice<Copies>("", "",
                        {{"all", Copies::kAll},
                         {"one", Copies::kOne},
                         {"adaptive", Copies::kAdaptive},
                         {"reactive", Copies::kReactive}},
                        &replication.copies)
      .set(text);
}

std::vector<Option> MachineOptions(CommandLine* to) {
  ClusterOptions& c = to->cluster;
  return {
      Count("--nodes", "that share one file system", &c.nodes),
      TextOption("--model", "NAME", "8b, 14b, 32b, 70b or 110b", &c.model),
      TextOption("--gpu", "NAME", "a100-40, h100 or h200", &c.gpu),
      Count("--gpus-per-node", "of each node", &c.gpus_per_node),
      Count("--gpus-per-instance", "that serve the model together", &c.gpus_per_instance),
      Real("--host-gb-per-gpu", "GB", "host memory that keeps KV", 0, 1e6, &c.node.host_cache_bytes,
           1e9),
      Real("--nvme-gb-s", "GB/S", "what reads get from a node's own tier", 1e-3, 1e4,
           &c.nvme.read.bytes_per_second, 1e9),
      Real("--pfs-gb-s", "GB/S", "what a node's reads get from the shared tier", 1e-3, 1e4,
           &c.pfs.read.bytes_per_second, 1e9),
      Real("--pfs-total-gb-s", "GB/S", "what all nodes together get; 0: as much as they can take",
           0, 1e6, &c.pfs_bytes_per_second, 1e9),
      Real("--nvme-write-ratio", "R", "what writes get, as a part of reads", 0.01, 100,
           &c.nvme.write_ratio),
      Real("--pfs-write-ratio", "R", "the same of the shared tier", 0.01, 100, &c.pfs.write_ratio),
      Real("--nvme-latency-ms", "MS", "median", 0, 1e4, &c.nvme.latency, 1e6),
      Real("--nvme-latency-p99-ms", "MS", "99th percentile", 0, 1e5, &c.nvme.latency_p99, 1e6),
      Real("--pfs-latency-ms", "MS", "median", 0, 1e4, &c.pfs.latency, 1e6),
      Real("--pfs-latency-p99-ms", "MS", "99th percentile", 0, 1e5, &c.pfs.latency_p99, 1e6),
      Choice<Kind>("--pfs-load", "what other jobs leave of the shared tier",
                   {{"quiet", Kind::kConstant},
                    {"periodic", Kind::kPeriodic},
                    {"bursty", Kind::kBursty},
                    {"drifting", Kind::kDrifting}},
                   &c.pfs.read.kind),
      Real("--pfs-low", "PART", "of itself under load", 0.01, 1, &c.pfs.read.low),
      Real("--pfs-high", "PART", "the same, at most (bursty)", 0.01, 1, &c.pfs.read.high),
      Real("--pfs-period-s", "S", "of the load", 1e-3, 1e6, &c.pfs.read.period, 1e9),
  };
}

std::vector<Option> DaemonOptions(CommandLine* to) {
  ClusterOptions& c = to->cluster;
  return {
      {"--policy", "POLICY",
       "memory, single, request-at-a-time, fixed:PERCENT, published:CHUNKS or completion "
       "(completion)",
       [to](std::string_view text) { return SetPolicy(text, to); }},
      {"--copies", "COPIES", "all, one, fraction:PART, adaptive or reactive (all)",
       [to](std::string_view text) { return SetCopies(text, to); }},
      Real("--segment-mib", "MIB", "segments", 0.25, 64, &c.segment_bytes, kMiB),
      Real("--window-mib", "MIB", "bytes in flight of a tier", 1, 65536, &c.window_bytes, kMiB),
      Real("--pool-gib", "GIB", "of each node; half of it for reads alone", 0.25, 4096,
           &c.storage.pool_bytes, kGiB),
      Real("--max-defer-ms", "MS", "that writes wait for reads", 0, 1e6,
           &c.storage.writes.max_defer, 1e6),
      FlagOption("--preload", "read for queued requests while no step reads", &c.node.preload),
      FlagOption("--break-even", "load only what is not sooner computed", &c.node.break_even),
      FlagOption("--share", "nodes find each other's chunks", &c.share),
      FlagOption("--placed", "all chunks lie on the tiers before it begins", &c.placed),
      Count("--running-max", "requests of an instance at once", &c.node.running_max),
      Real("--step-tokens", "N", "that a step computes, or one request", 1, 1e7,
           &c.node.step_tokens),
  };
}

std::vector<Option> UserOptions(CommandLine* to) {
  WorkloadOptions& w = to->workload;
  return {
      Choice<WorkloadKind>("--workload", "",
                           {{"agents", WorkloadKind::kAgents},
                            {"documents", WorkloadKind::kDocuments},
                            {"trace", WorkloadKind::kTrace}},
                           &w.kind),
      TextOption("--trace", "FILE", "JSON lines; their times with --arrival trace", &w.trace.path),
      Count("--requests-max", "of the trace", &w.trace.requests_max),
      Choice<WorkloadOrder>(
          "--order", "of turns and questions",
          {{"shuffled", WorkloadOrder::kShuffled}, {"clustered", WorkloadOrder::kClustered}},
          &w.order),
      Count("--chunk-tokens", "of agents and documents", &w.chunk_tokens),
      Count("--sessions", "of agents", &w.agents.sessions),
      Count("--turns", "of each session", &w.agents.turns),
      Count("--system-tokens", "of a system prompt", &w.agents.system_prompt_tokens),
      Count("--system-prompts", "different ones", &w.agents.system_prompts),
      Real("--shared", "PART", "sessions that share one", 0, 1, &w.agents.shared),
      Count("--user-tokens", "that a turn adds, mean", &w.agents.user_tokens),
      Real("--user-spread", "S", "of their logarithm", 0, 3, &w.agents.user_spread),
      Count("--documents", "", &w.documents.documents),
      Count("--document-tokens", "of each document", &w.documents.document_tokens),
      Count("--questions", "about each document", &w.documents.questions),
      Count("--question-tokens", "of each question", &w.documents.question_tokens),
      {"--spread", "", "each question is a session of its own",
       [&w](std::string_view) {
         w.documents.sticky = false;
         return absl::OkStatus();
       }},
      RealOption("--output-tokens", "N", "of each answer", 1, 1e6,
                 [&w](double n) {
                   w.agents.output_tokens = static_cast<uint32_t>(n);
                   w.documents.output_tokens = static_cast<uint32_t>(n);
                 }),
      Choice<ArrivalKind>("--arrival", "",
                          {{"offline", ArrivalKind::kOffline},
                           {"poisson", ArrivalKind::kPoisson},
                           {"gamma", ArrivalKind::kGamma},
                           {"trace", ArrivalKind::kTrace}},
                          &w.arrival.kind),
      Real("--rate", "R", "requests a second", 1e-6, 1e9, &w.arrival.rate_per_s),
      Real("--cv", "C", "coefficient of variation of gamma gaps", 0.01, 100, &w.arrival.cv),
      Real("--trace-speed", "F", "how much faster than the trace", 1e-6, 1e6,
           &w.arrival.trace_speed),
      RealOption("--seed", "N", "of all that is random", 0, 9e15,
                 [to](double n) {
                   to->cluster.seed = static_cast<uint64_t>(n);
                   to->workload.seed = static_cast<uint64_t>(n);
                 }),
      FlagOption("--progress", "tell on standard error how far it is", &to->progress),
  };
}

std::vector<Option> AllOptions(CommandLine* to) {
  std::vector<Option> all = MachineOptions(to);
  for (auto part : {DaemonOptions(to), UserOptions(to)}) {
    for (Option& option : part) all.push_back(std::move(option));
  }
  return all;
}

CommandLine Defaults() {
  CommandLine defaults;
  // One even tier, one with a heavy tail.
  defaults.cluster.nvme.read.bytes_per_second = 3e9;
  defaults.cluster.pfs.read.bytes_per_second = 1e9;
  defaults.cluster.nvme.write_ratio = 0.6;
  defaults.cluster.pfs.latency = 20 * kMillisecond;
  defaults.cluster.pfs.latency_p99 = 600 * kMillisecond;
  defaults.cluster.pfs.read.low = 0.4;
  defaults.cluster.pfs.read.high = 0.6;
  defaults.cluster.storage.router.hedge_after = kHedgeAfter;
  return defaults;
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments) {
  CommandLine result = Defaults();
  const auto rest = ParseOptions(arguments, AllOptions(&result), Positionals::kMixed);
  if (!rest.ok()) return rest.status();
  if (!rest->empty()) return absl::InvalidArgumentError("what is " + rest->front() + "?");
  ClusterOptions& cluster = result.cluster;
  for (const DeviceOptions* device : {&cluster.nvme, &cluster.pfs}) {
    if (device->latency_p99 < device->latency) {
      return absl::InvalidArgumentError("a latency's 99th percentile is below its median");
    }
  }
  cluster.node.host_cache_bytes *= cluster.gpus_per_node;
  cluster.storage.reserved_bytes = cluster.storage.pool_bytes / 2;
  return result;
}

std::string CommandLineHelp() {
  CommandLine ignored = Defaults();
  return OptionsHelp(AllOptions(&ignored));
}

}  // namespace kvstream::sim
