// kvstream-sim: a cluster in virtual time on the daemon's own router. One JSON object comes out.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/sim/cluster.h"
#include "bench/sim/command_line.h"
#include "bench/sim/workload.h"

namespace kvstream::sim {
namespace {

constexpr int kUsageError = 2;

double PercentileOf(const std::vector<double>& sorted, double part) {
  if (sorted.empty()) return 0;
  return sorted[static_cast<size_t>(part * static_cast<double>(sorted.size() - 1))];
}

double GbOf(const std::vector<uint64_t>& bytes) {
  return static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), uint64_t{0})) / 1e9;
}

std::string ListOf(const std::vector<uint64_t>& bytes) {
  return absl::StrCat("[",
                      absl::StrJoin(bytes, ", ",
                                    [](std::string* out, uint64_t b) {
                                      absl::StrAppend(out, static_cast<double>(b) / 1e9);
                                    }),
                      "]");
}

void Print(const Report& report, double reusable) {
  std::vector<double> first = report.nodes.first_token_seconds;
  std::sort(first.begin(), first.end());
  const auto within = std::upper_bound(first.begin(), first.end(), 1.0) - first.begin();
  const double count = std::max<double>(1, static_cast<double>(first.size()));
  const NodeStats& n = report.nodes;
  const double bound = n.bound_seconds;
  const double stored = static_cast<double>(report.stored_bytes) / 1e9;
  const std::vector<std::pair<std::string, std::string>> fields = {
      {"requests", absl::StrCat(report.requests)},
      {"seconds", absl::StrCat(report.seconds)},
      {"requests_per_s", absl::StrCat(report.seconds > 0 ? count / report.seconds : 0)},
      {"ttft_mean_s", absl::StrCat(std::accumulate(first.begin(), first.end(), 0.0) / count)},
      {"ttft_p50_s", absl::StrCat(PercentileOf(first, 0.5))},
      {"ttft_p99_s", absl::StrCat(PercentileOf(first, 0.99))},
      {"ttft_within_1s", absl::StrCat(static_cast<double>(within) / count)},
      {"reusable", absl::StrCat(reusable)},
      {"input_tokens", absl::StrCat(n.input_tokens)},
      {"output_tokens", absl::StrCat(n.output_tokens)},
      {"computed_tokens", absl::StrCat(n.computed_tokens)},
      {"gpu_hit_chunks", absl::StrCat(n.gpu_hit_chunks)},
      {"host_hit_chunks", absl::StrCat(n.host_hit_chunks)},
      {"storage_hit_chunks", absl::StrCat(n.storage_hit_chunks)},
      {"preloaded_chunks", absl::StrCat(n.preloaded_chunks)},
      {"declined_chunks", absl::StrCat(n.declined_chunks)},
      {"load_s", absl::StrCat(n.load_seconds)},
      {"prefill_s", absl::StrCat(n.prefill_seconds)},
      {"above_bound_pct", bound > 0 ? absl::StrCat((n.load_seconds / bound - 1) * 100) : "null"},
      {"chunk_mb", absl::StrCat(static_cast<double>(report.chunk_bytes) / 1e6)},
      {"read_gb", ListOf(report.read_bytes)},
      {"written_gb", ListOf(report.written_bytes)},
      {"stored_gb", absl::StrCat(stored)},
      {"amplification", absl::StrCat(stored > 0 ? GbOf(report.written_bytes) / stored : 0)},
      {"dropped_chunks", absl::StrCat(report.dropped_chunks)},
      {"dropped_copies", absl::StrCat(report.dropped_copies)},
      {"writes_saved", absl::StrCat(report.writes_saved)},
      {"pfs_chunks", absl::StrCat(report.pfs_chunks)},
      {"hedges", absl::StrCat(report.hedges)},
      {"events", absl::StrCat(report.events)},
  };
  std::printf("{%s}\n", absl::StrJoin(fields, ", ", [](std::string* out, const auto& field) {
                          absl::StrAppend(out, "\"", field.first, "\": ", field.second);
                        }).c_str());
}

int Main(const std::vector<std::string>& arguments) {
  if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
    std::printf(
        "usage: kvstream-sim [options]\n\nA cluster in virtual time on the daemon's own "
        "router. One JSON object comes out.\n\n%s",
        CommandLineHelp().c_str());
    return 0;
  }
  const auto line = ParseCommandLine(arguments);
  if (!line.ok()) {
    std::fprintf(stderr, "kvstream-sim: %s\n", std::string(line.status().message()).c_str());
    return kUsageError;
  }
  const auto workload = MakeWorkload(line->workload);
  if (!workload.ok()) {
    std::fprintf(stderr, "kvstream-sim: %s\n", std::string(workload.status().message()).c_str());
    return kUsageError;
  }
  const auto report = Simulate(line->cluster, *workload, [&](uint64_t answered) {
    if (!line->progress) return;
    std::fprintf(stderr, "\r%llu of %llu requests", static_cast<unsigned long long>(answered),
                 static_cast<unsigned long long>(workload->requests.size()));
  });
  if (line->progress) std::fputc('\n', stderr);
  if (!report.ok()) {
    std::fprintf(stderr, "kvstream-sim: %s\n", std::string(report.status().message()).c_str());
    return kUsageError;
  }
  Print(*report, ReusableShare(*workload));
  return 0;
}

}  // namespace
}  // namespace kvstream::sim

int main(int argc, char** argv) {
  return kvstream::sim::Main(std::vector<std::string>(argv + 1, argv + argc));
}
