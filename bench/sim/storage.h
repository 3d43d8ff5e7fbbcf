// A node's storage in virtual time: the daemon's own router, write queue and slot allocator over
// simulated devices. What the daemon adds around them (verification, descriptors, sockets) is
// taken as free but for the copy out of the pool.
//
// Chunks are named by number and all of one shape. Each node has its own first tier; the last tier
// is one device for all nodes, behind a link of the node's own. With `shared` what one node wrote
// there can be read by all, and is written once.
//
// Thread rule: one thread, the event queue's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "bench/sim/device.h"
#include "bench/sim/event_queue.h"
#include "bench/sim/replication.h"
#include "server/base/chunk_shape.h"
#include "server/sched/router.h"
#include "server/sched/slot_allocator.h"
#include "server/sched/write_queue.h"

namespace kvstream::sim {

// What all nodes have in common.
struct SharedTier {
  Device* device = nullptr;
  // Whether nodes find each other's chunks.
  bool shared = false;
  absl::flat_hash_set<uint64_t> chunks;
};

struct StorageOptions {
  sched::RouterOptions router;
  sched::WriteQueueOptions writes;
  ReplicationOptions replication;
  uint64_t pool_bytes = 4 * kGiB;
  uint64_t reserved_bytes = 2 * kGiB;
  ChunkShape shape;
  // Out of the pool.
  double copy_bytes_per_second = 20e9;
};

struct StorageStats {
  std::vector<uint64_t> read_bytes;     // By tier.
  std::vector<uint64_t> written_bytes;  // By tier.
  uint64_t stored_chunks = 0;           // Unique to the node: what the engine gave.
  uint64_t dropped_chunks = 0;          // No room in the pool.
  uint64_t dropped_copies = 0;          // Second ones, that lagged behind.
  uint64_t writes_saved = 0;            // Another node had written the chunk.
};

class Storage {
 public:
  using Request = std::vector<uint64_t>;  // Chunks, in the order in which they matter.

  // `tiers` are the devices of this node's own, first to last; the shared tier follows them unless
  // it has no device. `link` is the node's way to it. All outlive this.
  Storage(const StorageOptions& options, EventQueue* events, std::vector<Device*> tiers,
          Device* link, SharedTier* shared);
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  bool Has(uint64_t chunk) const;
  // How many leading chunks it has.
  size_t LeadingRun(const Request& chunks) const;

  // Reads a step; `done` is called once all of it is there. A chunk that is in no tier counts as
  // there: ask LeadingRun before.
  OperationId Read(const std::vector<Request>& requests, std::function<void()> done);
  // Its `done` is called all the same.
  void Cancel(OperationId batch);
  bool reading() const { return router_.batches() > 0; }

  // Takes chunks that the engine made. Those that are known, or find no room, are left out.
  void Store(const Request& chunks);
  // Puts a chunk on tiers at once, as if it had been there from the begin.
  void Place(uint64_t chunk, TierSet tiers);

  // Of these chunks those that a tier has to read, each once.
  Request OnTiers(const std::vector<Request>& requests) const;
  // How long a step of them should take, after those that wait, as far as the rates are known; 0
  // where they are not. What only one tier holds takes that tier's time.
  double ExpectedSeconds(const Request& chunks) const;
  // That lie on the shared tier and this node knows of by itself.
  uint64_t chunks_on_shared() const;
  const sched::Router& router() const { return router_; }
  const StorageStats& stats() const { return stats_; }

 private:
  struct Known {
    TierSet tiers;
    bool staged = false;
  };
  struct Staged {
    uint64_t chunk = 0;
    std::vector<sched::Slot> slots;
  };

  TierSet TiersOf(uint64_t chunk) const;
  // Whether another node's chunk there can be read.
  bool InShared(uint64_t chunk) const;
  bool IsShared(TierId tier) const;
  TierId last_tier() const { return TierId{static_cast<uint32_t>(tiers_.size() - 1)}; }
  // Carries out what the router and the write queue want, until they want no more.
  void Pump();
  void Execute(const sched::Command& command);
  void Execute(const sched::WriteCommand& command);
  void StartWrite(const sched::StartWrite& write);
  void Written(sched::StagedId id, TierId tier, uint64_t bytes);
  // Bytes per second that a tier gives, or 0 until it is known.
  double RateOf(TierId tier) const;
  // The part of the bandwidth that is not the first tier's; half until it is known.
  double OthersPart() const;
  // Whether a chunk that was read should have a copy on every tier.
  bool WantsCopies(uint64_t chunk) const;
  void NoteForReactiveCopy(const sched::CopySegment& copy);
  // Second copies of what was read (its bytes are at hand), while nothing wants their tier.
  void CopyReactively();
  TimeNs ReadFrom(TierId tier, uint64_t bytes);
  TimeNs WriteTo(TierId tier, uint64_t bytes);
  void ScheduleWake();

  const StorageOptions options_;
  EventQueue* const events_;
  const std::vector<Device*> tiers_;
  Device* const link_;
  SharedTier* const shared_;
  sched::SlotAllocator slots_;
  sched::Router router_;
  sched::WriteQueue writes_;
  Replication replication_;
  StorageStats stats_;
  absl::flat_hash_map<uint64_t, Known> known_;
  absl::flat_hash_map<sched::StagedId, Staged> staged_;
  struct Waiting {
    std::function<void()> done;
    uint64_t bytes = 0;
  };
  absl::flat_hash_map<OperationId, Waiting> batches_;
  uint64_t waiting_bytes_ = 0;
  std::deque<uint64_t> to_copy_;  // Reactively.
  bool copying_ = false;
  uint64_t next_batch_ = 1;
  uint64_t next_staged_ = 1;
  std::vector<sched::Command> commands_;
  bool pumping_ = false;
  TimeNs wake_at_ = kNever;
};

}  // namespace kvstream::sim
