// The engine loop: one thread that owns all mutable state. Letters come in through the mailbox
// (events of the rpc room, completions of tiers, results of copies), the parts decide, and what
// they decided goes out at the end of the turn. It never touches payload and never waits for
// anything but its mailbox.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"
#include "server/base/types.h"
#include "server/engine/api.h"
#include "server/engine/capacity.h"
#include "server/engine/catalog_api.h"
#include "server/engine/events.h"
#include "server/engine/mailbox.h"
#include "server/engine/scrub_api.h"
#include "server/engine/stats.h"
#include "server/gpu/gpu.h"
#include "server/memory/sealed_memory.h"
#include "server/sched/cache_policy.h"
#include "server/sched/router.h"
#include "server/sched/tier_health.h"
#include "server/sched/write_queue.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

struct EngineOptions {
  uint64_t pool_reserved_bytes = 0;
  // Nothing: no DRAM cache.
  std::optional<sched::CachePolicyKind> cache;
  uint32_t copy_threads = 2;
  uint64_t operations_per_session_max = 1024;
  DirectBytesMin direct_bytes_min;
  // How long a worker may have a part of its landing buffer.
  TimeNs landing_ack = 5 * kSecond;
  // Of a drain that does not say how long it may take.
  TimeNs drain = 30 * kSecond;
  // Configured tiers that did not open: their numbers, behind those of the others, say so.
  uint32_t missing_tiers = 0;
  sched::TierHealthOptions tier_health;
  ScrubOptions scrub;
  // Nothing: tiers are taken for empty at a start, and no index snapshots are written.
  std::optional<RestartOptions> restart;
  // Nothing: no catalogs of shared tiers.
  std::optional<CatalogOptions> catalog;
  std::vector<CapacityOptions> capacities;  // By TierId.
  sched::RouterOptions router;
  sched::WriteQueueOptions writes;
};

class Engine final : public EventPoster, public tier::CompletionSink {
 public:
  // `pool` is the staging pool, pinned for the GPUs. The tiers are opened later with this engine as
  // their sink, and the GPUs are started by it. All outlive it.
  Engine(memory::SealedMemory* pool, gpu::Gpus* gpus);
  ~Engine() override;

  // Starts the loop. `tiers`, by TierId, and `handoff` outlive it; the options have a lane for
  // each.
  void Start(const EngineOptions& options, std::vector<tier::Tier*> tiers, HandoffPeer* handoff);

  void Post(Event event) override;
  void OnCompletions(std::span<tier::Completion> completions) override;

  // Refuses new operations with UNAVAILABLE from now on, and writes what is staged. Any thread.
  void BeginDrain();
  // Waits until no operation runs and nothing is staged. False when `deadline` came first.
  bool WaitDrained(TimeNs deadline);
  // Ends every session, and waits until they are forgotten. False when `deadline` came first: a
  // read that never ends may outlive us. REQUIRES: BeginDrain was called.
  bool EndSessions(TimeNs deadline);
  // Ends the loop. Call before the tiers are stopped. False when `deadline` came first: a GPU may
  // still copy to or from the pool.
  bool Stop(TimeNs deadline);

  const EngineStats& stats() const { return stats_; }

 private:
  friend class EngineDriver;  // In tests it is the loop, in virtual time and without threads.
  struct State;

  // What Start does but for the threads.
  void SetUp(const EngineOptions& options, std::vector<tier::Tier*> tiers, HandoffPeer* handoff);
  void Run();
  // Handles what came, and empties `letters`.
  void Turn(Letters* letters, TimeNs now);
  TimeNs NextDeadline() const;
  void Handle(Event& event, TimeNs now);
  void On(SessionConnected& event, TimeNs now);
  void On(BufferAttached& event, TimeNs now);
  void On(DropBuffer& event, TimeNs now);
  void On(HandoffClosed& event, TimeNs now);
  void On(StreamOpened& event, TimeNs now);
  void On(StreamClosed& event, TimeNs now);
  void On(MessageArrived& event, TimeNs now);
  void On(Lookup& event, TimeNs now);
  void On(RegisterMemory& event, TimeNs now);
  void On(RegionOpened& event, TimeNs now);
  void On(RegionClosed& event, TimeNs now);
  void On(UnregisterMemory& event, TimeNs now);
  void On(DeviceMemoryAttached& event, TimeNs now);
  void On(ListUsage& event, TimeNs now);
  void On(EvictChunks& event, TimeNs now);
  void On(SetTierInService& event, TimeNs now);
  void On(Drain& event, TimeNs now);
  void On(BeginScrub& event, TimeNs now);
  void On(FileDamaged& event, TimeNs now);
  void On(FileRepaired& event, TimeNs now);
  void On(TierScrubbed& event, TimeNs now);
  void On(SnapshotOpened& event, TimeNs now);
  void On(FilesFound& event, TimeNs now);
  void On(TierRestored& event, TimeNs now);
  void On(HintsHeard& event, TimeNs now);
  void OnMessage(struct Session& session, ReadStep& step, TimeNs now);
  void OnMessage(struct Session& session, Store& store, TimeNs now);
  void OnMessage(struct Session& session, Refused& refused, TimeNs now);
  void OnMessage(struct Session& session, Cancel& cancel, TimeNs now);
  void OnMessage(struct Session& session, ForwardBegan& began, TimeNs now);
  void OnMessage(struct Session& session, Release& release, TimeNs now);
  void OnMessage(struct Session& session, PartAcknowledged& acknowledged, TimeNs now);
  void OnMessage(struct Session& session, Heartbeat& heartbeat, TimeNs now);
  // OK when the session may begin another operation.
  absl::Status MayBegin(const struct Session& session) const;
  // True when the id is free. A client that uses one twice ends its session: a Quiesced for the
  // second would pass for the first one's, whose memory is still in use.
  bool TakesFreshId(struct Session& session, uint64_t client_op, TimeNs now);
  void Reject(const struct Session& session, uint64_t client_op, const absl::Status& status);
  void EndSession(struct Session& session, const absl::Status& why, TimeNs now);
  void CancelOperation(OperationId id, TimeNs now);
  // Hands on the results of copies to and from GPU memory, until there are no more.
  void DeliverDeviceCopies(TimeNs now);
  void FinishTurn(TimeNs now);
  void PumpWrites(TierSet demand, TimeNs now);
  void PublishStats(TimeNs now);
  // Answers drains, and wakes WaitDrained and EndSessions when what they wait for has come.
  void ReportProgress(TimeNs now);

  EngineOptions options_;  // Constant once started.
  memory::SealedMemory* const pool_;
  gpu::Gpus* const gpus_;
  EngineStats stats_;
  Mailbox mailbox_;
  std::unique_ptr<State> state_;  // The loop's alone.
  std::atomic<bool> draining_{false};
  std::atomic<bool> ending_{false};
  std::atomic<bool> stopping_{false};
  Mutex progress_mu_;  // Taken by the loop once draining, and by the thread that stops it.
  CondVar progressed_;
  bool drained_ ABSL_GUARDED_BY(progress_mu_) = false;
  bool ended_ ABSL_GUARDED_BY(progress_mu_) = false;
  std::thread thread_;
};

}  // namespace kvstream::engine
