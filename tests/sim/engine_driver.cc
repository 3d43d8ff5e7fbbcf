#include "tests/sim/engine_driver.h"

#include <utility>

#include "server/engine/engine_state.h"
#include "tests/support/fake_gpu.h"

namespace kvstream::engine {

EngineDriver::EngineDriver(memory::SealedMemory* pool)
    : no_gpu_(gpu::OpenFakeDriver(0)), gpus_(no_gpu_.get()), engine_(pool, &gpus_) {}

EngineDriver::~EngineDriver() = default;

void EngineDriver::SetUp(EngineOptions options, std::vector<tier::Tier*> tiers,
                         HandoffPeer* handoff) {
  options.copy_threads = 0;
  engine_.SetUp(options, std::move(tiers), handoff);
}

void EngineDriver::Turn(TimeNs now) {
  usable_ = {};
  times_out_.clear();
  for (uint32_t t = 0; t < engine_.state_->tiers.size(); ++t) {
    if (Usable(t)) usable_.Add(TierId{t});
    times_out_.push_back(stats().tiers[t].times_out.Get());
  }
  engine_.mailbox_.Wake();  // So that nobody waits by the machine's clock.
  engine_.mailbox_.Take(kNever, &letters_);
  engine_.Turn(&letters_, now);
}

std::optional<CopyJob> EngineDriver::TakeCopy() { return engine_.state_->copies.Take(); }

void EngineDriver::DoCopy(const CopyJob& job) { engine_.state_->copies.Do(job); }

bool EngineDriver::sessions_ended() {
  MutexLock lock(&engine_.progress_mu_);
  return engine_.ended_;
}

const store::ChunkIndex& EngineDriver::index() const { return engine_.state_->index; }

bool EngineDriver::StagedForGood(const KeyDigest& key) const {
  const StagedChunk* const chunk = engine_.state_->staging.Find(key);
  return chunk != nullptr && !chunk->retained;
}

bool EngineDriver::Staged(const KeyDigest& key) const {
  return engine_.state_->staging.Find(key) != nullptr;
}

const sched::Router& EngineDriver::router() const { return engine_.state_->reads.router(); }

bool EngineDriver::Usable(uint32_t tier) const {
  return engine_.state_->reads.router().lane(TierId{tier}).usable();
}

TierSet EngineDriver::UsableThroughout() const {
  TierSet usable;
  for (uint32_t t = 0; t < times_out_.size(); ++t) {
    const bool stayed = stats().tiers[t].times_out.Get() == times_out_[t];
    if (usable_.Has(TierId{t}) && stayed && Usable(t)) usable.Add(TierId{t});
  }
  return usable;
}

size_t EngineDriver::tiers() const { return engine_.state_->tiers.size(); }

bool EngineDriver::nothing_staged() const { return engine_.state_->staging.empty(); }

}  // namespace kvstream::engine
