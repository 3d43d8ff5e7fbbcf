// A cluster in virtual time: nodes that share one file system, and what a workload meets there.
//
// Thread rule: one thread. A run is a function of its options alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/sim/device.h"
#include "bench/sim/node.h"
#include "bench/sim/storage.h"
#include "bench/sim/workload.h"

namespace kvstream::sim {

struct ClusterOptions {
  uint32_t nodes = 1;
  std::string model = "14b";
  std::string gpu = "a100-40";
  uint32_t gpus_per_node = 4;
  uint32_t gpus_per_instance = 1;
  NodeOptions node;
  StorageOptions storage;  // What follows from the tiers and the model is filled in.
  DeviceOptions nvme;      // Of each node, with seeds of its own.
  bool use_nvme = true;
  DeviceOptions pfs;  // As one node sees it.
  bool use_pfs = true;
  // Of all nodes together, if that is less than what they can take; 0: it is not.
  double pfs_bytes_per_second = 0;
  bool share = false;
  uint64_t segment_bytes = 16 * kMiB;
  uint64_t window_bytes = 128 * kMiB;
  // All chunks of the workload lie on the tiers before it begins.
  bool placed = false;
  uint64_t seed = 1;
};

struct Report {
  uint64_t requests = 0;
  double seconds = 0;  // Until the last answer.
  NodeStats nodes;     // Of all nodes together.
  uint64_t chunk_bytes = 0;
  std::vector<uint64_t> read_bytes;     // By tier.
  std::vector<uint64_t> written_bytes;  // By tier.
  uint64_t stored_bytes = 0;            // What the nodes' engines gave, unique to each node.
  uint64_t dropped_chunks = 0;
  uint64_t dropped_copies = 0;
  uint64_t writes_saved = 0;
  uint64_t pfs_chunks = 0;  // Files on the shared tier in the end.
  uint64_t hedges = 0;
  uint64_t events = 0;
};

// INVALID_ARGUMENT for names that are not known and sizes that do not fit each other. `progress`
// is told now and then how many requests have been answered.
absl::StatusOr<Report> Simulate(const ClusterOptions& options, const Workload& workload,
                                const std::function<void(uint64_t)>& progress);

}  // namespace kvstream::sim
