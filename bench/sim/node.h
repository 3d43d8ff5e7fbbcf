// A node in virtual time: instances of an engine, each on its GPUs, over one storage.
//
// An instance works in steps: it takes queued requests, loads the KV that is cached for them (the
// GPUs wait, as in the published system), computes the rest, and between steps decodes what runs.
// Prefill goes before decode. What it computed goes to the caches and to the storage.
//
// Thread rule: one thread, the event queue's.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "bench/sim/chunk_cache.h"
#include "bench/sim/event_queue.h"
#include "bench/sim/gpu_model.h"
#include "bench/sim/storage.h"
#include "bench/sim/workload.h"

namespace kvstream::sim {

struct NodeOptions {
  uint32_t instances = 1;
  uint32_t chunk_tokens = 256;
  // Requests of an instance that run at once, and tokens that a step computes, or one request.
  uint32_t running_max = 32;
  uint64_t step_tokens = 16384;
  // Of host memory, for all instances.
  uint64_t host_cache_bytes = 0;
  // Off: nothing is kept beyond host memory.
  bool use_storage = true;
  // Reads for queued requests while no step reads, until so many bytes wait for their use.
  bool preload = false;
  uint64_t preload_bytes = 16 * kGiB;
  // Loads only what is sooner loaded than computed.
  bool break_even = false;
};

struct NodeStats {
  std::vector<double> first_token_seconds;  // From arrival, or from the answer before it.
  uint64_t input_tokens = 0;
  uint64_t output_tokens = 0;
  uint64_t computed_tokens = 0;  // Of the input.
  uint64_t gpu_hit_chunks = 0;
  uint64_t host_hit_chunks = 0;
  uint64_t storage_hit_chunks = 0;
  uint64_t preloaded_chunks = 0;
  uint64_t declined_chunks = 0;  // Computing them was sooner.
  double load_seconds = 0;       // That steps waited.
  double bound_seconds = 0;      // That the tiers needed at least; 0 where it is not known.
  double prefill_seconds = 0;
  TimeNs last_end = 0;
};

class Node {
 public:
  // `model` and `storage` outlive it. `tiers` are those of the bound; none: it
  // is not known.
  Node(const NodeOptions& options, const GpuModel* model, EventQueue* events, Storage* storage,
       uint64_t chunk_bytes, std::vector<Bandwidth*> tiers);
  ~Node();

  // Now. A session's request waits for the answer to the one before it.
  void Arrive(const SimRequest* request);
  size_t unfinished() const { return unfinished_; }
  const NodeStats& stats() const { return stats_; }

 private:
  class Instance;
  friend class Instance;
  struct Session {
    bool busy = false;
    std::deque<const SimRequest*> waiting;
  };

  // Where a session's requests run: sessions go round.
  Instance& InstanceOf(uint64_t session);
  void Finish(const SimRequest& request);
  void MaybePreload();
  // The next chunks that a queue will want and no memory has; a few of them.
  Storage::Request NextToPreload(const Instance& instance) const;
  void StopPreload();

  const NodeOptions options_;
  const GpuModel* const model_;
  EventQueue* const events_;
  Storage* const storage_;
  const uint64_t chunk_bytes_;
  const std::vector<Bandwidth*> tiers_;
  ChunkCache host_;
  absl::flat_hash_set<uint64_t> preloaded_;  // Not used yet.
  std::vector<std::unique_ptr<Instance>> instances_;
  size_t preload_next_ = 0;                          // Which instance's queue has its turn.
  absl::flat_hash_map<uint64_t, Session> sessions_;  // Those that wait for an answer.
  absl::flat_hash_map<uint64_t, uint32_t> instance_of_;
  OperationId preload_;  // 0: none runs.
  uint64_t preload_number_ = 0;
  size_t unfinished_ = 0;
  NodeStats stats_;
};

}  // namespace kvstream::sim
