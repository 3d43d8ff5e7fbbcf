// kvstream-sim's command line. All errors name the option.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/sim/cluster.h"
#include "bench/sim/workload.h"

namespace kvstream::sim {

struct CommandLine {
  ClusterOptions cluster;
  WorkloadOptions workload;
  bool progress = false;
};

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments);
std::string CommandLineHelp();

}  // namespace kvstream::sim
