#include "server/rpc/status_report.h"

#include <algorithm>
#include <cstring>

#include "server/base/clock.h"
#include "server/rpc/encode.h"
#include "server/rpc/gpu_report.h"

namespace kvstream::rpc {
namespace {

void FillPool(const StatusSource& source, v1::PoolStatus* pool) {
  const engine::EngineStats& stats = *source.stats;
  pool->set_bytes(stats.pool_bytes.Get());
  pool->set_reserved_bytes(stats.pool_reserved_bytes.Get());
  pool->set_used_bytes(stats.pool_used_bytes.Get());
  pool->set_cache_bytes(stats.cache_bytes.Get());
  pool->set_cache_chunks(stats.cache_chunks.Get());
  pool->set_staged_bytes(stats.staged_bytes.Get());
  pool->set_huge_pages(stats.pool_huge_pages.Get() != 0);
  pool->set_pinned_bytes(source.pool_pinned_bytes);
  pool->set_configured_bytes(source.pool_configured_bytes);
}

void FillSessions(const engine::EngineStats& stats, v1::SessionsStatus* sessions) {
  sessions->set_open(stats.sessions_open.Get());
  sessions->set_opened(stats.sessions_opened.Get());
  sessions->set_host_buffers(stats.host_buffers.Get());
  sessions->set_host_buffer_bytes(stats.host_buffer_bytes.Get());
  sessions->set_leases(stats.leases.Get());
  sessions->set_leased_chunks(stats.leased_chunks.Get());
}

void FillRefusals(const RpcStats& stats, v1::Status* status) {
  v1::SessionsStatus* sessions = status->mutable_sessions();
  sessions->set_refused(stats.sessions_refused.Get());
  sessions->set_streams_refused(stats.streams_refused.Get());
  sessions->set_overrun(stats.sessions_overrun.Get());
  sessions->set_hellos_missed(stats.hellos_missed.Get());
  sessions->set_accept_paused(stats.accept_paused.Get() != 0);
  status->mutable_operations()->set_calls_refused(stats.calls_refused.Get());
  status->mutable_index()->set_namespaces_refused(stats.namespaces_refused.Get());
  if (stats.accept_paused.Get() != 0) {
    status->add_conditions(
        "no client can connect: the handoff socket has no descriptor or memory to accept with");
  }
}

void FillOperations(const engine::EngineStats& stats, v1::OperationsStatus* operations) {
  operations->set_running(stats.operations_running.Get());
  operations->set_read_steps(stats.read_steps.Get());
  operations->set_stores(stats.stores.Get());
  operations->set_lookups(stats.lookups.Get());
  operations->set_chunks_delivered(stats.chunks_delivered.Get());
  operations->set_chunks_failed(stats.chunks_failed.Get());
  operations->set_chunks_stored(stats.chunks_stored.Get());
  operations->set_chunks_existed(stats.chunks_existed.Get());
  operations->set_chunks_dropped(stats.chunks_dropped.Get());
  operations->set_chunks_lost(stats.chunks_lost.Get());
  operations->set_bytes_delivered(stats.bytes_delivered.Get());
  operations->set_bytes_stored(stats.bytes_stored.Get());
  operations->set_bytes_from_pool(stats.bytes_from_pool.Get());
}

void FillTierFromEngine(const engine::TierEngineStats& stats, v1::TierStatus* out) {
  out->set_chunks_written(stats.chunks_written.Get());
  out->set_corrupt_reads(stats.corrupt_reads.Get());
  out->set_set_aside_failures(stats.set_aside_failures.Get());
  out->set_in_flight_bytes(stats.in_flight_bytes.Get());
  out->set_window_bytes(stats.window_bytes.Get());
  out->set_quarantined_bytes(stats.quarantined_bytes.Get());
  out->set_quarantine_limit_bytes(stats.quarantine_limit_bytes.Get());
  out->set_write_backlog_bytes(stats.write_backlog_bytes.Get());
  out->set_writes_dropped(stats.writes_dropped.Get());
  out->set_read_rate(stats.read_rate.Get());
  out->set_write_rate(stats.write_rate.Get());
  out->set_chunk_files(stats.chunk_files.Get());
  out->set_chunk_bytes(stats.chunk_bytes.Get());
  out->set_space_bytes(stats.space_bytes.Get());
  out->set_space_free_bytes(stats.space_free_bytes.Get());
  out->set_files_evicted(stats.files_evicted.Get());
  out->set_bytes_evicted(stats.bytes_evicted.Get());
  out->set_eviction_failures(stats.eviction_failures.Get());
  out->set_evictions_stuck(stats.evictions_stuck.Get());
  out->set_restoring(stats.restoring.Get() != 0);
  out->set_hints(stats.hints.Get());
  out->set_hints_refused(stats.hints_refused.Get());
  out->set_catalog_leads(stats.catalog_leads.Get() != 0);
}

void AddTierConditions(const std::string& name, const tier::TierFacts& facts,
                       const tier::TierStats& stats, v1::Status* status) {
  const std::string tier = "tier " + name;
  if (!facts.engine_reason.empty()) {
    status->add_conditions(tier + " uses threads for its I/O: " + facts.engine_reason);
  }
  if (!facts.direct) {
    status->add_conditions(tier + " uses buffered I/O: " + facts.buffered_reason);
  }
  if (facts.io_engine == "io_uring" && !facts.registered_buffers) {
    status->add_conditions(tier + " reads without registered buffers: " +
                           (facts.registration_error == 0
                                ? "the locked-memory limit is low"
                                : std::strerror(facts.registration_error)));
  }
  if (stats.descriptor_shortages.Get() != 0) {
    status->add_conditions(tier +
                           " has met the limit of open files since its start: raise LimitNOFILE");
  }
  if (const uint64_t strays = stats.unknown_completions.Get(); strays > 0) {
    status->add_conditions(tier + " has got " + std::to_string(strays) +
                           " completions that nobody waits for since its start: a bug");
  }
  if (const uint64_t left = stats.temporaries_left.Get(); left > 0) {
    status->add_conditions(std::to_string(left) + " temporary files of tier " + name +
                           " could not be removed since its start, and take its room");
  }
}

v1::TierState StateOf(const engine::TierEngineStats& stats) {
  const bool probing = stats.probing.Get() != 0;
  if (stats.out.Get() != 0) {
    const bool by_health = stats.failing.Get() != 0 && stats.held_out.Get() == 0;
    return probing && by_health ? v1::TIER_STATE_PROBING : v1::TIER_STATE_OUT;
  }
  const bool degraded = stats.degraded.Get() != 0 || stats.late.Get() != 0;
  return probing || degraded ? v1::TIER_STATE_DEGRADED : v1::TIER_STATE_OK;
}

std::string InBrackets(const std::string& cause) { return cause.empty() ? "" : " (" + cause + ")"; }

std::string LastFailures(const engine::TierCauses& causes) {
  std::string text;
  if (const std::string read = causes.reads.Get(); !read.empty()) {
    text = "; the last read that failed: " + read;
  }
  if (const std::string write = causes.writes.Get(); !write.empty()) {
    text += "; the last write that failed: " + write;
  }
  return text;
}

// Of a tier that is out, or takes no writes, because they fail.
std::string TriedInVain(const engine::TierCauses& causes) {
  const std::string probe = causes.probe.Get();
  return probe.empty() ? "" : "; tried again in vain: " + probe;
}

std::string WhyOut(const engine::TierEngineStats& stats, const engine::TierCauses& causes) {
  if (stats.held_out.Get() != 0) return "taken out by an operator";
  if (stats.failing.Get() == 0) return "its quarantine is full";
  return "its reads fail" + InBrackets(causes.reads.Get()) + TriedInVain(causes);
}

std::string WhyNoWrites(const engine::TierEngineStats& stats, const engine::TierCauses& causes) {
  if (stats.writes_hang.Get() != 0) return "they do not end";
  return "they fail" + InBrackets(causes.writes.Get()) +
         (stats.failing.Get() != 0 ? "" : TriedInVain(causes));
}

// What its health says, its reads, and what became of its files.
void AddEngineConditions(const std::string& name, const engine::TierEngineStats& stats,
                         const engine::TierCauses& causes, v1::Status* status) {
  const std::string tier = "tier " + name;
  const bool out = stats.out.Get() != 0;
  if (out) {
    status->add_conditions(tier + " is out of service: " + WhyOut(stats, causes));
  } else if (stats.late.Get() != 0) {
    status->add_conditions(tier + " may hang: its reads are late and nothing comes back");
  }
  if (stats.writes_out.Get() != 0) {
    status->add_conditions(tier + " takes no writes: " + WhyNoWrites(stats, causes));
  } else if (!out && stats.degraded.Get() != 0) {
    status->add_conditions("some I/O of " + tier + " failed in the last minute" +
                           LastFailures(causes));
  }
  if (const uint64_t damaged = stats.corrupt_reads.Get(); damaged > 0) {
    status->add_conditions(std::to_string(damaged) +
                           " reads and stores have met damaged files of " + tier +
                           " since the start: its device may fail");
  }
  if (const uint64_t failures = stats.set_aside_failures.Get(); failures > 0) {
    status->add_conditions(std::to_string(failures) + " damaged files of " + tier +
                           " could not be set aside since the start");
  }
  if (stats.evictions_in_vain.Get() != 0) {
    status->add_conditions(tier + ": deleting chunks makes no room on its file system");
  }
  if (const uint64_t failures = stats.eviction_failures.Get(); failures > 0) {
    status->add_conditions(std::to_string(failures) + " chunk files that " + tier +
                           " gave up could not be deleted since the start, and take its room");
  }
  if (const uint64_t files = stats.scrub_unrepaired.Get(); files > 0) {
    status->add_conditions(
        tier +
        ": damaged files that its last scrub found and could not repair: " + std::to_string(files));
  }
  if (stats.snapshot_failing.Get() != 0) {
    status->add_conditions("the index snapshot of " + tier +
                           " could not be written: a restart looks for its files by a walk, or not "
                           "at all where it is shared");
  }
  if (stats.catalog_failing.Get() != 0) {
    status->add_conditions(tier +
                           ": its catalog cannot be read or written: this node and the others "
                           "do not hear of each other's chunks");
  }
  if (stats.hints_refused.Get() > 0) {
    status->add_conditions(tier + ": more files of other nodes than hints_max; since the start " +
                           std::to_string(stats.hints_refused.Get()) + " were not taken in");
  }
  if (stats.scrub_hung.Get() != 0) {
    status->add_conditions(tier + ": a scrub of it hangs and was left behind");
  }
}

}  // namespace

void StatusReport::FillTier(uint32_t tier, v1::Status* status) const {
  const StatusSource::TierRow& row = source_.tiers[tier];
  const engine::TierEngineStats& engine_stats = source_.stats->tiers[tier];
  v1::TierStatus* out = status->add_tiers();
  out->set_name(row.name);
  out->set_root(row.root);
  FillTierFromEngine(engine_stats, out);
  if (row.tier == nullptr) {
    out->set_state(v1::TIER_STATE_OUT);
    status->add_conditions("tier " + row.name +
                           " did not open and is not used: " + row.missing_cause);
    return;
  }
  out->set_state(StateOf(engine_stats));
  AddEngineConditions(row.name, engine_stats, source_.stats->causes[tier], status);
  const tier::TierFacts& facts = row.tier->facts();
  out->set_io_engine(facts.io_engine);
  out->set_direct(facts.direct);
  out->set_alignment(facts.alignment);
  out->set_registered_buffers(facts.registered_buffers);
  out->set_engine_reason(facts.engine_reason);
  out->set_buffered_reason(facts.buffered_reason);
  const tier::TierStats& stats = row.tier->stats();
  AddTierConditions(row.name, facts, stats, status);
  out->set_descriptor_shortages(stats.descriptor_shortages.Get());
  out->set_temporaries_left(stats.temporaries_left.Get());
  out->set_remounts(stats.remounts.Get());
  out->set_bytes_read(stats.bytes_read.Get());
  out->set_bytes_written(stats.bytes_written.Get());
  out->set_read_errors(stats.read_errors.Get());
  out->set_write_errors(stats.write_errors.Get());
}

void StatusReport::Fill(v1::Status* status) const {
  const engine::EngineStats& stats = *source_.stats;
  const Readiness::State state = readiness_.Get();
  status->set_boot_id(RawBytes(facts_.boot_id));
  status->set_version(facts_.version);
  status->set_uptime_ms(static_cast<uint64_t>((Now() - source_.started) / kMillisecond));
  status->set_ready(state.ready);
  status->set_draining(stats.draining.Get() != 0);
  for (const std::string& condition : state.conditions) status->add_conditions(condition);
  for (uint32_t tier = 0; tier < source_.tiers.size(); ++tier) FillTier(tier, status);
  if (std::all_of(status->tiers().begin(), status->tiers().end(), [](const v1::TierStatus& t) {
        return t.state() == v1::TIER_STATE_OUT || t.state() == v1::TIER_STATE_PROBING;
      })) {
    status->add_conditions("no tier is in service: chunks are read from the staging pool alone");
  }
  if (const uint64_t damaged = stats.staged_chunks_damaged.Get(); damaged > 0) {
    status->add_conditions(std::to_string(damaged) +
                           " staged chunks have changed in the pool since "
                           "the start and were withdrawn: its memory may fail");
  }
  if (const uint64_t lost = stats.chunks_lost.Get(); lost > 0) {
    status->add_conditions(std::to_string(lost) +
                           " stored chunks were lost since the start: every write of them failed");
  }
  FillPool(source_, status->mutable_pool());
  FillSessions(stats, status->mutable_sessions());
  FillOperations(stats, status->mutable_operations());
  status->mutable_index()->set_chunks(stats.index_chunks.Get());
  status->mutable_index()->set_bytes(stats.index_bytes.Get());
  status->mutable_index()->set_namespaces(namespaces_.List().size());
  FillRefusals(*source_.rpc, status);
  FillGpus(source_.gpus, status);
  FillRegions(stats, status->mutable_regions());
  status->set_metrics_address(source_.metrics_address);
  EncodeLimits(facts_.limits, status->mutable_limits());
}

}  // namespace kvstream::rpc
