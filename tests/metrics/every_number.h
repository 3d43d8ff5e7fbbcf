// Every number of every stats struct and the name of its series, said a second time: a number that
// is shown under another's name would else pass.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "server/engine/stats.h"
#include "server/gpu/gpu.h"
#include "server/rpc/stats.h"
#include "server/tier/tier.h"

namespace kvstream::metrics {

using engine::EngineStats;
using engine::TierEngineStats;
using gpu::DeviceStats;
using rpc::RpcStats;
using tier::TierStats;

template <typename Stats>
struct Expected {
  std::string name;
  std::function<void(Stats&, uint64_t)> add;
};

#define KV_NUMBER(Stats, name, field)                          \
  Expected<Stats> {                                            \
    name, [](Stats& stats, uint64_t n) { stats.field.Add(n); } \
  }

inline const Expected<EngineStats> kEngine[] = {
    KV_NUMBER(EngineStats, "pool_bytes", pool_bytes),
    KV_NUMBER(EngineStats, "pool_reserved_bytes", pool_reserved_bytes),
    KV_NUMBER(EngineStats, "pool_used_bytes", pool_used_bytes),
    KV_NUMBER(EngineStats, "cache_bytes", cache_bytes),
    KV_NUMBER(EngineStats, "cache_chunks", cache_chunks),
    KV_NUMBER(EngineStats, "cache_inserted_total", cache_inserted),
    KV_NUMBER(EngineStats, "cache_evicted_total", cache_evicted),
    KV_NUMBER(EngineStats, "staged_bytes", staged_bytes),
    KV_NUMBER(EngineStats, "pool_huge_pages", pool_huge_pages),
    KV_NUMBER(EngineStats, "sessions", sessions_open),
    KV_NUMBER(EngineStats, "sessions_opened_total", sessions_opened),
    KV_NUMBER(EngineStats, "host_buffers", host_buffers),
    KV_NUMBER(EngineStats, "host_buffer_bytes", host_buffer_bytes),
    KV_NUMBER(EngineStats, "unmapping_bytes", unmapping_bytes),
    KV_NUMBER(EngineStats, "regions", regions),
    KV_NUMBER(EngineStats, "landing_regions", landing_regions),
    KV_NUMBER(EngineStats, "landing_parts_overdue", landing_parts_overdue),
    KV_NUMBER(EngineStats, "landing_timeouts_total", landing_timeouts),
    KV_NUMBER(EngineStats, "leases", leases),
    KV_NUMBER(EngineStats, "leased_chunks", leased_chunks),
    KV_NUMBER(EngineStats, "leases_expired_total", leases_expired),
    KV_NUMBER(EngineStats, "operations_running", operations_running),
    KV_NUMBER(EngineStats, "read_steps_total", read_steps),
    KV_NUMBER(EngineStats, "stores_total", stores),
    KV_NUMBER(EngineStats, "lookups_total", lookups),
    KV_NUMBER(EngineStats, "lookup_keys_total", lookup_keys),
    KV_NUMBER(EngineStats, "lookup_hits_total", lookup_hits),
    KV_NUMBER(EngineStats, "operations_rejected_total", rejected),
    KV_NUMBER(EngineStats, "operations_cancelled_total", cancelled),
    KV_NUMBER(EngineStats, "deadlines_exceeded_total", deadlines_exceeded),
    KV_NUMBER(EngineStats, "chunks_delivered_total", chunks_delivered),
    KV_NUMBER(EngineStats, "chunks_failed_total", chunks_failed),
    KV_NUMBER(EngineStats, "chunks_missing_total", chunks_missing),
    KV_NUMBER(EngineStats, "delivered_bytes_total", bytes_delivered),
    KV_NUMBER(EngineStats, "delivered_from_pool_bytes_total", bytes_from_pool),
    KV_NUMBER(EngineStats, "chunks_stored_total", chunks_stored),
    KV_NUMBER(EngineStats, "stored_bytes_total", bytes_stored),
    KV_NUMBER(EngineStats, "chunks_existed_total", chunks_existed),
    KV_NUMBER(EngineStats, "chunks_dropped_total", chunks_dropped),
    KV_NUMBER(EngineStats, "chunks_lost_total", chunks_lost),
    KV_NUMBER(EngineStats, "staged_chunks_damaged_total", staged_chunks_damaged),
    KV_NUMBER(EngineStats, "index_chunks", index_chunks),
    KV_NUMBER(EngineStats, "operator_evicted_chunks_total", operator_evicted_chunks),
    KV_NUMBER(EngineStats, "operator_evictions_unfinished_total", operator_evictions_unfinished),
    KV_NUMBER(EngineStats, "index_bytes", index_bytes),
    KV_NUMBER(EngineStats, "unhandled_events", unhandled_events),
    KV_NUMBER(EngineStats, "draining", draining),
};

inline const Expected<RpcStats> kRpc[] = {
    KV_NUMBER(RpcStats, "streams", streams_open),
    KV_NUMBER(RpcStats, "calls_waiting", calls_waiting),
    KV_NUMBER(RpcStats, "lookup_keys_waiting", lookup_keys_waiting),
    KV_NUMBER(RpcStats, "calls_refused_total", calls_refused),
    KV_NUMBER(RpcStats, "streams_held_total", streams_held),
    KV_NUMBER(RpcStats, "hellos_missed_total", hellos_missed),
    KV_NUMBER(RpcStats, "accept_paused", accept_paused),
    KV_NUMBER(RpcStats, "accept_failures_total", accept_failures),
    KV_NUMBER(RpcStats, "sessions_refused_total", sessions_refused),
    KV_NUMBER(RpcStats, "streams_refused_total", streams_refused),
    KV_NUMBER(RpcStats, "sessions_overrun_total", sessions_overrun),
    KV_NUMBER(RpcStats, "namespaces_refused_total", namespaces_refused),
};

inline const Expected<TierEngineStats> kTierEngine[] = {
    KV_NUMBER(TierEngineStats, "tier_out", out),
    KV_NUMBER(TierEngineStats, "tier_failing", failing),
    KV_NUMBER(TierEngineStats, "tier_writes_out", writes_out),
    KV_NUMBER(TierEngineStats, "tier_writes_hang", writes_hang),
    KV_NUMBER(TierEngineStats, "tier_degraded", degraded),
    KV_NUMBER(TierEngineStats, "tier_late", late),
    KV_NUMBER(TierEngineStats, "tier_late_total", times_late),
    KV_NUMBER(TierEngineStats, "tier_restoring", restoring),
    KV_NUMBER(TierEngineStats, "tier_settling", settling),
    KV_NUMBER(TierEngineStats, "tier_restored_files_total", restored_files),
    KV_NUMBER(TierEngineStats, "tier_restored_missing_total", restored_missing),
    KV_NUMBER(TierEngineStats, "tier_temporaries_removed_total", temporaries_removed),
    KV_NUMBER(TierEngineStats, "tier_snapshot_files", snapshot_files),
    KV_NUMBER(TierEngineStats, "tier_snapshots_written_total", snapshots_written),
    KV_NUMBER(TierEngineStats, "tier_snapshots_unusable_total", snapshots_unusable),
    KV_NUMBER(TierEngineStats, "tier_snapshot_failures_total", snapshot_failures),
    KV_NUMBER(TierEngineStats, "tier_snapshot_failing", snapshot_failing),
    KV_NUMBER(TierEngineStats, "tier_hints", hints),
    KV_NUMBER(TierEngineStats, "tier_hints_heard_total", hints_heard),
    KV_NUMBER(TierEngineStats, "tier_hints_refused_total", hints_refused),
    KV_NUMBER(TierEngineStats, "tier_catalog_failing", catalog_failing),
    KV_NUMBER(TierEngineStats, "tier_catalog_frames_unsaid_total", catalog_frames_unsaid),
    KV_NUMBER(TierEngineStats, "tier_catalog_metadata_calls_total", catalog_metadata_calls),
    KV_NUMBER(TierEngineStats, "tier_catalog_frames_damaged_total", catalog_frames_damaged),
    KV_NUMBER(TierEngineStats, "tier_catalog_terms_total", catalog_terms),
    KV_NUMBER(TierEngineStats, "tier_catalog_leads", catalog_leads),
    KV_NUMBER(TierEngineStats, "tier_catalog_nodes_adopted_total", catalog_nodes_adopted),
    KV_NUMBER(TierEngineStats, "tier_files_adopted_total", files_adopted),
    KV_NUMBER(TierEngineStats, "tier_chunk_files", chunk_files),
    KV_NUMBER(TierEngineStats, "tier_chunk_bytes", chunk_bytes),
    KV_NUMBER(TierEngineStats, "tier_space_bytes", space_bytes),
    KV_NUMBER(TierEngineStats, "tier_cut_off_bytes", cut_off_bytes),
    KV_NUMBER(TierEngineStats, "tier_evictions_in_vain", evictions_in_vain),
    KV_NUMBER(TierEngineStats, "tier_space_free_bytes", space_free_bytes),
    KV_NUMBER(TierEngineStats, "tier_evicted_files_total", files_evicted),
    KV_NUMBER(TierEngineStats, "tier_evicted_bytes_total", bytes_evicted),
    KV_NUMBER(TierEngineStats, "tier_eviction_failures_total", eviction_failures),
    KV_NUMBER(TierEngineStats, "tier_evictions_stuck_total", evictions_stuck),
    KV_NUMBER(TierEngineStats, "tier_probing", probing),
    KV_NUMBER(TierEngineStats, "tier_probes_total", probes),
    KV_NUMBER(TierEngineStats, "tier_held_out", held_out),
    KV_NUMBER(TierEngineStats, "tier_in_flight_bytes", in_flight_bytes),
    KV_NUMBER(TierEngineStats, "tier_window_bytes", window_bytes),
    KV_NUMBER(TierEngineStats, "tier_quarantined_bytes", quarantined_bytes),
    KV_NUMBER(TierEngineStats, "tier_quarantine_limit_bytes", quarantine_limit_bytes),
    KV_NUMBER(TierEngineStats, "tier_write_backlog_bytes", write_backlog_bytes),
    KV_NUMBER(TierEngineStats, "tier_read_rate_bytes_per_second", read_rate),
    KV_NUMBER(TierEngineStats, "tier_write_rate_bytes_per_second", write_rate),
    KV_NUMBER(TierEngineStats, "tier_delivered_bytes_total", bytes_delivered),
    KV_NUMBER(TierEngineStats, "tier_segments_read_total", segments_read),
    KV_NUMBER(TierEngineStats, "tier_segments_hedged_total", segments_hedged),
    KV_NUMBER(TierEngineStats, "tier_corrupt_reads_total", corrupt_reads),
    KV_NUMBER(TierEngineStats, "tier_missing_files_total", missing_files),
    KV_NUMBER(TierEngineStats, "tier_failed_reads_total", failed_reads),
    KV_NUMBER(TierEngineStats, "tier_chunks_written_total", chunks_written),
    KV_NUMBER(TierEngineStats, "tier_chunks_existed_total", chunks_existed),
    KV_NUMBER(TierEngineStats, "tier_failed_writes_total", failed_writes),
    KV_NUMBER(TierEngineStats, "tier_writes_dropped_total", writes_dropped),
    KV_NUMBER(TierEngineStats, "tier_files_set_aside_total", files_set_aside),
    KV_NUMBER(TierEngineStats, "tier_set_aside_failures_total", set_aside_failures),
    KV_NUMBER(TierEngineStats, "tier_outages_total", times_out),
    KV_NUMBER(TierEngineStats, "tier_scrubbing", scrubbing),
    KV_NUMBER(TierEngineStats, "tier_scrub_files_total", scrubbed_files),
    KV_NUMBER(TierEngineStats, "tier_scrub_bytes_total", scrubbed_bytes),
    KV_NUMBER(TierEngineStats, "tier_scrub_damaged_total", scrub_damaged),
    KV_NUMBER(TierEngineStats, "tier_scrub_repaired_total", scrub_repaired),
    KV_NUMBER(TierEngineStats, "tier_scrub_unreadable_total", scrub_unreadable),
};

inline const Expected<TierStats> kTier[] = {
    KV_NUMBER(TierStats, "tier_open_files", open_files),
    KV_NUMBER(TierStats, "tier_read_bytes_total", bytes_read),
    KV_NUMBER(TierStats, "tier_written_bytes_total", bytes_written),
    KV_NUMBER(TierStats, "tier_read_errors_total", read_errors),
    KV_NUMBER(TierStats, "tier_write_errors_total", write_errors),
    KV_NUMBER(TierStats, "tier_short_reads_resumed_total", short_reads_resumed),
    KV_NUMBER(TierStats, "tier_retries_total", retries),
    KV_NUMBER(TierStats, "tier_unknown_completions_total", unknown_completions),
    KV_NUMBER(TierStats, "tier_descriptor_shortages_total", descriptor_shortages),
    KV_NUMBER(TierStats, "tier_temporaries_left_total", temporaries_left),
    KV_NUMBER(TierStats, "tier_remounts_total", remounts),
};

inline const Expected<DeviceStats> kGpu[] = {
    KV_NUMBER(DeviceStats, "gpu_usable", usable),
    KV_NUMBER(DeviceStats, "gpu_hung", hung),
    KV_NUMBER(DeviceStats, "gpu_regions", regions),
    KV_NUMBER(DeviceStats, "gpu_mapped_bytes", mapped_bytes),
    KV_NUMBER(DeviceStats, "gpu_queued_bytes", queued_bytes),
    KV_NUMBER(DeviceStats, "gpu_in_bytes_total", bytes_in),
    KV_NUMBER(DeviceStats, "gpu_out_bytes_total", bytes_out),
    KV_NUMBER(DeviceStats, "gpu_fragments_total", fragments),
    KV_NUMBER(DeviceStats, "gpu_batches_total", batches),
    KV_NUMBER(DeviceStats, "gpu_unclosed_total", unclosed),
};

#undef KV_NUMBER

}  // namespace kvstream::metrics
