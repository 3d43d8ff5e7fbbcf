// The real engine without its threads: the simulation is its loop, its clock and its copy pool.
// Only the unmapper keeps its thread, from which nothing comes back.
//
// Thread rule: one thread. Ownership: the pool outlives it, as do the tiers and the peer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "server/engine/copy_pool.h"
#include "server/engine/engine.h"
#include "server/gpu/gpu.h"
#include "server/memory/sealed_memory.h"
#include "server/store/chunk_index.h"

namespace kvstream::engine {

class EngineDriver {
 public:
  explicit EngineDriver(memory::SealedMemory* pool);
  // As a crash where something is running: nothing is waited for.
  ~EngineDriver();

  // The engine as a sink of completions and of events.
  Engine& engine() { return engine_; }
  const EngineStats& stats() const { return engine_.stats(); }
  void SetUp(EngineOptions options, std::vector<tier::Tier*> tiers, HandoffPeer* handoff);

  // One turn of the loop, over what has come.
  void Turn(TimeNs now);
  // When a turn is due though nothing comes.
  TimeNs NextDeadline() const { return engine_.NextDeadline(); }
  // Copies that the engine has asked for, one by one; each is done once.
  std::optional<CopyJob> TakeCopy();
  void DoCopy(const CopyJob& job);
  // Ends every session. REQUIRES: BeginDrain was called.
  void EndSessions() { engine_.ending_ = true; }
  bool sessions_ended();

  const store::ChunkIndex& index() const;
  const sched::Router& router() const;
  bool Staged(const KeyDigest& key) const;
  // The same, and it is not there for the cache alone, which lets it go when it needs room.
  bool StagedForGood(const KeyDigest& key) const;
  // Tiers in service for all of the turn that runs, or ran last, as far as it has come.
  TierSet UsableThroughout() const;
  bool nothing_staged() const;
  size_t tiers() const;

 private:
  bool Usable(uint32_t tier) const;

  const std::unique_ptr<gpu::Driver> no_gpu_;
  gpu::Gpus gpus_;
  Engine engine_;
  Letters letters_;
  // As the turn began.
  TierSet usable_;
  std::vector<uint64_t> times_out_;
};

}  // namespace kvstream::engine
