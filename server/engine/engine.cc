#include "server/engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "server/base/check.h"
#include "server/base/clock.h"
#include "server/base/logging.h"
#include "server/engine/engine_state.h"

namespace kvstream::engine {
namespace {

// A scrub that reads ends within a device request; one that hangs is left behind.
constexpr TimeNs kScrubStop = kSecond;

}  // namespace

Engine::Engine(memory::SealedMemory* pool, gpu::Gpus* gpus) : pool_(pool), gpus_(gpus) {}

Engine::~Engine() { (void)Stop(kNever); }

void Engine::Start(const EngineOptions& options, std::vector<tier::Tier*> tiers,
                   HandoffPeer* handoff) {
  SetUp(options, std::move(tiers), handoff);
  gpus_->Start([this](std::span<const gpu::CopyDone> copies) { mailbox_.Post(copies); });
  thread_ = std::thread([this] { Run(); });
}

void Engine::SetUp(const EngineOptions& options, std::vector<tier::Tier*> tiers,
                   HandoffPeer* handoff) {
  KV_CHECK(options.router.lanes.size() == tiers.size() &&
           options.writes.lanes.size() == tiers.size());
  options_ = options;
  for (size_t i = 0; i < options.missing_tiers; ++i) stats_.tiers[tiers.size() + i].out.Set(1);
  state_ = std::make_unique<State>(this, std::move(tiers), handoff);
  stats_.pool_bytes.Set(pool_->size());
  stats_.pool_reserved_bytes.Set(state_->slots.reserved_bytes());
  stats_.pool_huge_pages.Set(pool_->huge_pages() ? 1 : 0);
  PublishStats(0);  // Nothing has happened yet.
}

void Engine::Post(Event event) {
  stats_.unhandled_events.Add();
  mailbox_.Post(std::move(event));
}

void Engine::OnCompletions(std::span<tier::Completion> completions) { mailbox_.Post(completions); }

void Engine::BeginDrain() {
  draining_ = true;
  mailbox_.Wake();
}

bool Engine::WaitDrained(TimeNs deadline) {
  MutexLock lock(&progress_mu_);
  while (!drained_ && progressed_.WaitUntil(&progress_mu_, deadline)) {
  }
  return drained_;
}

bool Engine::EndSessions(TimeNs deadline) {
  ending_ = true;
  mailbox_.Wake();
  MutexLock lock(&progress_mu_);
  while (!ended_ && progressed_.WaitUntil(&progress_mu_, deadline)) {
  }
  return ended_;
}

void Engine::ReportProgress(TimeNs now) {
  State& s = *state_;
  const uint64_t running = s.reads.running() + s.stores.running();
  const bool drained = running == 0 && s.staging.empty() && s.asides.empty() && s.lookups.empty();
  s.controls.SendReplies(drained || ending_, {s.staging.queue().staged_bytes(), running}, now);
  if (!draining_) return;
  // Reads that nobody waits for any more (a hedge's loser) end a little later than their steps.
  uint64_t in_flight = 0;
  for (uint32_t t = 0; t < s.tiers.size(); ++t) {
    in_flight += s.reads.router().lane(TierId{t}).in_flight();
  }
  MutexLock lock(&progress_mu_);
  drained_ = drained;
  ended_ = s.sessions_ended && stats_.sessions_open.Get() == 0 && in_flight == 0;
  progressed_.NotifyAll();
}

bool Engine::Stop(TimeNs deadline) {
  if (!thread_.joinable()) return true;
  stopping_ = true;
  mailbox_.Wake();
  thread_.join();
  // They speak to the loop, which hears no more.
  state_->scrubber.Stop(Now() + kScrubStop);
  state_->restorer.Stop(Now() + kScrubStop);
  state_->cataloguer.Stop(Now() + kScrubStop);
  state_->snapshotter.WriteAll(Now());
  // What is still copied to clients ends here, before their handoff connections can close.
  state_->copies.Stop();
  const bool clean = gpus_->Stop(deadline);
  state_->unmapper.Stop();  // It still answers drops.
  return clean;
}

void Engine::Run() {
  pthread_setname_np(pthread_self(), "engine");
  Letters letters;
  while (!stopping_) {
    mailbox_.Take(NextDeadline(), &letters);
    Turn(&letters, Now());
  }
}

TimeNs Engine::NextDeadline() const {
  const State& s = *state_;
  if (!s.lookups.empty()) return 0;
  return std::min({s.reads.router().NextDeadline(), s.staging.NextDeadline(),
                   s.stores.NextDeadline(), s.leases.NextDeadline(), s.controls.NextDeadline(),
                   s.device.NextDeadline(), s.keeper.NextDeadline(), s.scrubber.NextDeadline(),
                   s.evictor.NextDeadline(), s.restorer.NextDeadline(), s.cataloguer.NextDeadline(),
                   s.index_walks.NextDeadline(),
                   draining_ ? kNever : s.snapshotter.NextDeadline()});
}

void Engine::Turn(Letters* letters, TimeNs now) {
  State& s = *state_;
  s.staging.NewTurn();
  for (Event& event : letters->events) Handle(event, now);
  for (tier::Completion& completion : letters->completions) {
    switch (completion.kind) {
      case tier::Completion::Kind::kRead:
        s.keeper.NoteRead(completion, s.reads.ContentOf(completion.ticket), now);
        s.reads.OnRead(completion, now);
        break;
      case tier::Completion::Kind::kWrite:
        if (s.staging.OnWritten(completion, now)) s.keeper.NoteWrite(completion, now);
        break;
      case tier::Completion::Kind::kSetAside:
        s.asides.OnCompletion(completion, now);
        break;
      case tier::Completion::Kind::kMeasure:
        s.evictor.OnMeasured(completion, now);
        break;
    }
  }
  for (const CopyResult& result : letters->copies) {
    switch (result.kind) {
      case CopyKind::kSegment:
        s.reads.OnSegmentCopied(result, now);
        break;
      case CopyKind::kStaged:
        s.reads.OnStagedCopied(result, now);
        break;
      case CopyKind::kStore:
        s.stores.OnCopied(result, now);
        break;
    }
  }
  for (const gpu::CopyDone& done : letters->device_copies) s.device.OnCopied(done, now);
  FinishTurn(now);
  stats_.unhandled_events.Sub(letters->events.size());
  letters->events.clear();
  letters->completions.clear();
  letters->copies.clear();
  letters->device_copies.clear();
}

void Engine::DeliverDeviceCopies(TimeNs now) {
  State& s = *state_;
  while (true) {
    s.device.TakeResults(&s.device_results);
    if (s.device_results.empty()) return;
    for (const DeviceResult& result : s.device_results) {
      if (result.kind == CopyKind::kStore) {
        s.stores.OnDeviceCopied(result, now);
      } else {
        s.reads.OnDeviceCopied(result, now);
      }
    }
  }
}

void Engine::FinishTurn(TimeNs now) {
  State& s = *state_;
  if (ending_ && !s.sessions_ended) {
    s.sessions_ended = true;
    std::vector<SessionId> ids = s.sessions.Ids();
    std::sort(ids.begin(), ids.end());
    for (const SessionId id : ids) {
      Session* session = s.sessions.Find(id);
      if (session != nullptr) EndSession(*session, absl::UnavailableError("the daemon stops"), now);
    }
  }
  if (draining_) {
    s.staging.OpenGateForGood();
    s.index_walks.EndEvictions(absl::UnavailableError("the daemon is draining"));
  }
  if (ending_) s.index_walks.EndLists(absl::UnavailableError("the daemon stops"));
  s.device.Tick(now);
  s.keeper.Tick(now);
  s.scrubber.Tick(draining_, now);
  s.evictor.Tick(now);
  s.restorer.Tick(now);  // After what forgets a file system that is gone.
  s.cataloguer.Tick(now);
  if (!draining_) s.snapshotter.Tick(now);
  s.reads.router().Tick(now);
  s.reads.Pump(now);
  DeliverDeviceCopies(now);
  TierSet demand;
  for (uint32_t t = 0; t < s.tiers.size(); ++t) {
    if (s.reads.router().HasDemand(TierId{t})) demand.Add(TierId{t});
  }
  const bool waited = s.stores.waiting();
  PumpWrites(demand, now);
  s.stores.Admit(now);  // After everything that may have freed slots.
  if (s.stores.waiting() && !waited) {
    // Second copies may go for it, now or at a time that only this tells: with a tier out of
    // service, no completion may ever come that would.
    PumpWrites(demand, now);
    s.stores.Admit(now);
  }
  s.stores.Tick(now);
  do {
    DeliverDeviceCopies(now);  // Of what the tick has ended, or a stalled worker does not take.
    if (s.stores.waiting()) s.stores.Admit(now);  // What was given up may have stood in the way.
  } while (s.device.has_results());
  s.reads.router().OnSlotsFreed(now);
  s.reads.Pump(now);
  s.reads.SubmitReads();
  s.stores.SendResults();
  s.lookups.Pump(now);
  s.index_walks.Pump(now);
  stats_.leases_expired.Add(s.leases.Expire(now));
  PublishStats(now);
  // Only now: whoever hears of an end finds it in the numbers too.
  s.lookups.SendReplies();
  s.index_walks.SendReplies();
  s.sessions.Flush();
  ReportProgress(now);
}

void Engine::PumpWrites(TierSet demand, TimeNs now) {
  State& s = *state_;
  s.staging.Pump(demand, s.stores.waiting() || s.reads.router().starved(), now);
  for (const DurableNotice& notice : s.staging.TakeNotices()) s.stores.OnDurable(notice, now);
}

void Engine::PublishStats(TimeNs now) {
  State& s = *state_;
  stats_.pool_used_bytes.Set(s.slots.used() - s.staging.retained_bytes());
  stats_.cache_bytes.Set(s.staging.retained_bytes());
  stats_.cache_chunks.Set(s.staging.retained_chunks());
  stats_.staged_bytes.Set(s.staging.queue().staged_bytes());
  stats_.leases.Set(s.leases.count());
  stats_.leased_chunks.Set(s.leases.chunks());
  stats_.index_chunks.Set(s.index.chunks());
  stats_.index_bytes.Set(s.index.memory_bytes());
  stats_.operations_running.Set(s.reads.running() + s.stores.running());
  stats_.draining.Set(draining_ ? 1 : 0);
  s.keeper.PublishStats(now);
  s.evictor.PublishStats();
  s.restorer.PublishStats();
  s.cataloguer.PublishStats(now);
  for (uint32_t t = 0; t < s.tiers.size(); ++t) {
    const TierId id{t};
    const sched::TierLane& lane = s.reads.router().lane(id);
    TierEngineStats& tier = stats_.tiers[t];
    tier.out.Set(lane.usable() ? 0 : 1);
    tier.in_flight_bytes.Set(lane.in_flight());
    tier.window_bytes.Set(lane.window_bytes());
    tier.quarantined_bytes.Set(lane.quarantined());
    tier.quarantine_limit_bytes.Set(lane.quarantine_limit());
    tier.read_rate.Set(static_cast<uint64_t>(lane.rate()));
    tier.write_rate.Set(static_cast<uint64_t>(s.staging.queue().rate(id)));
    tier.write_backlog_bytes.Set(s.staging.queue().backlog(id));
    tier.segments_hedged.Add(s.reads.router().hedges(id) - tier.segments_hedged.Get());
  }
}

}  // namespace kvstream::engine
