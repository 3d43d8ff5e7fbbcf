// The names of the numbers: a table for each stats struct, which does not compile while a number of
// the struct has no name. Constants; any thread.
#pragma once

#include <iterator>

#include "server/base/stats.h"
#include "server/base/types.h"
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

// A number of a stats struct and its name.
template <typename Stats, typename Number>
struct Series {
  const char* name;
  const char* help;
  Number Stats::*number;
};

inline constexpr Series<EngineStats, Gauge> kEngineGauges[] = {
    {"kvstreamd_pool_bytes", "Size of the staging pool.", &EngineStats::pool_bytes},
    {"kvstreamd_pool_reserved_bytes", "Share of the pool that only reads may use.",
     &EngineStats::pool_reserved_bytes},
    {"kvstreamd_pool_used_bytes", "Bytes of the pool in use.", &EngineStats::pool_used_bytes},
    {"kvstreamd_staged_bytes", "Staged chunks that are not yet written everywhere.",
     &EngineStats::staged_bytes},
    {"kvstreamd_cache_bytes", "Bytes of the pool that the DRAM cache has, beside those in use.",
     &EngineStats::cache_bytes},
    {"kvstreamd_cache_chunks", "Chunks in the DRAM cache.", &EngineStats::cache_chunks},
    {"kvstreamd_pool_huge_pages", "1 when the pool lies on huge pages.",
     &EngineStats::pool_huge_pages},
    {"kvstreamd_sessions", "Sessions that are open.", &EngineStats::sessions_open},
    {"kvstreamd_host_buffers", "Host buffers attached.", &EngineStats::host_buffers},
    {"kvstreamd_host_buffer_bytes", "Bytes of the host buffers attached.",
     &EngineStats::host_buffer_bytes},
    {"kvstreamd_unmapping_bytes", "Bytes of host buffers given up and not yet unmapped.",
     &EngineStats::unmapping_bytes},
    {"kvstreamd_regions", "Regions of GPU memory that are open.", &EngineStats::regions},
    {"kvstreamd_landing_regions", "Landing buffers among the regions.",
     &EngineStats::landing_regions},
    {"kvstreamd_landing_parts_overdue",
     "Parts of landing buffers that workers have, of operations that have ended.",
     &EngineStats::landing_parts_overdue},
    {"kvstreamd_leases", "Leases in force.", &EngineStats::leases},
    {"kvstreamd_leased_chunks", "Chunks that leases protect.", &EngineStats::leased_chunks},
    {"kvstreamd_unhandled_events", "Events that the engine loop has not handled.",
     &EngineStats::unhandled_events},
    {"kvstreamd_operations_running", "Operations that have not quiesced.",
     &EngineStats::operations_running},
    {"kvstreamd_index_chunks", "Chunks in the index.", &EngineStats::index_chunks},
    {"kvstreamd_index_bytes", "Memory that the index takes up.", &EngineStats::index_bytes},
    {"kvstreamd_draining", "1 while new operations are refused.", &EngineStats::draining},
};

inline constexpr Series<EngineStats, Counter> kEngineCounters[] = {
    {"kvstreamd_operator_evicted_chunks_total", "Chunks that operators have evicted.",
     &EngineStats::operator_evicted_chunks},
    {"kvstreamd_operator_evictions_unfinished_total",
     "Evictions that left files on tiers that deleted nothing.",
     &EngineStats::operator_evictions_unfinished},
    {"kvstreamd_sessions_opened_total", "Sessions opened.", &EngineStats::sessions_opened},
    {"kvstreamd_landing_timeouts_total",
     "Times that a worker had a part of its landing buffer for too long.",
     &EngineStats::landing_timeouts},
    {"kvstreamd_leases_expired_total", "Leases that ended by their time.",
     &EngineStats::leases_expired},
    {"kvstreamd_read_steps_total", "ReadStep operations accepted.", &EngineStats::read_steps},
    {"kvstreamd_stores_total", "Store operations accepted.", &EngineStats::stores},
    {"kvstreamd_lookups_total", "Lookups answered.", &EngineStats::lookups},
    {"kvstreamd_lookup_keys_total", "Keys asked for by lookups.", &EngineStats::lookup_keys},
    {"kvstreamd_lookup_hits_total", "Keys that lookups found.", &EngineStats::lookup_hits},
    {"kvstreamd_operations_rejected_total", "Operations refused.", &EngineStats::rejected},
    {"kvstreamd_operations_cancelled_total", "Operations cancelled.", &EngineStats::cancelled},
    {"kvstreamd_deadlines_exceeded_total", "Operations whose deadline passed first.",
     &EngineStats::deadlines_exceeded},
    {"kvstreamd_chunks_delivered_total", "Chunks delivered to clients.",
     &EngineStats::chunks_delivered},
    {"kvstreamd_chunks_failed_total", "Chunks of reads that failed.", &EngineStats::chunks_failed},
    {"kvstreamd_chunks_missing_total", "Chunks of reads that were not there.",
     &EngineStats::chunks_missing},
    {"kvstreamd_delivered_bytes_total", "Bytes delivered to clients.",
     &EngineStats::bytes_delivered},
    {"kvstreamd_delivered_from_pool_bytes_total",
     "Bytes delivered out of the staging pool, without a tier.", &EngineStats::bytes_from_pool},
    {"kvstreamd_cache_inserted_total", "Chunks that came into the DRAM cache.",
     &EngineStats::cache_inserted},
    {"kvstreamd_cache_evicted_total", "Chunks that left the DRAM cache to make room.",
     &EngineStats::cache_evicted},
    {"kvstreamd_chunks_stored_total", "Chunks staged for writing.", &EngineStats::chunks_stored},
    {"kvstreamd_stored_bytes_total", "Bytes staged for writing.", &EngineStats::bytes_stored},
    {"kvstreamd_chunks_existed_total", "Chunks of stores that were present already.",
     &EngineStats::chunks_existed},
    {"kvstreamd_chunks_dropped_total", "Chunks of stores that found no room in time.",
     &EngineStats::chunks_dropped},
    {"kvstreamd_chunks_lost_total", "Staged chunks whose every write failed.",
     &EngineStats::chunks_lost},
    {"kvstreamd_staged_chunks_damaged_total",
     "Staged chunks whose bytes had changed in the pool when they were read.",
     &EngineStats::staged_chunks_damaged},
    {"kvstreamd_scrubs_refused_total", "Scrubs by the clock that found another one running.",
     &EngineStats::scrubs_refused},
};

inline constexpr Series<EngineStats, Histogram> kEngineHistograms[] = {
    {"kvstreamd_read_step_seconds", "A ReadStep, from arrival to quiesced.",
     &EngineStats::read_step_us},
    {"kvstreamd_store_release_seconds", "A Store, from arrival to quiesced.",
     &EngineStats::store_release_us},
    {"kvstreamd_lookup_seconds", "A Lookup, from arrival to its answer.", &EngineStats::lookup_us},
};

inline constexpr Series<RpcStats, Gauge> kRpcGauges[] = {
    {"kvstreamd_streams", "Session streams that are open.", &RpcStats::streams_open},
    {"kvstreamd_calls_waiting", "Unary calls that wait for the engine.", &RpcStats::calls_waiting},
    {"kvstreamd_lookup_keys_waiting", "Keys of lookups that wait for the engine.",
     &RpcStats::lookup_keys_waiting},
    {"kvstreamd_accept_paused",
     "1 while the handoff socket accepts nobody, for want of descriptors or memory.",
     &RpcStats::accept_paused},
};

inline constexpr Series<RpcStats, Counter> kRpcCounters[] = {
    {"kvstreamd_calls_refused_total", "Unary calls refused because too much waits.",
     &RpcStats::calls_refused},
    {"kvstreamd_streams_held_total",
     "Times that a stream was read no further until the engine had caught up.",
     &RpcStats::streams_held},
    {"kvstreamd_hellos_missed_total", "Connections and streams that said no hello in time.",
     &RpcStats::hellos_missed},
    {"kvstreamd_sessions_refused_total", "Handoff connections refused because too many are open.",
     &RpcStats::sessions_refused},
    {"kvstreamd_streams_refused_total", "Session streams refused because too many are open.",
     &RpcStats::streams_refused},
    {"kvstreamd_sessions_overrun_total",
     "Sessions that were ended because their client left too many events unread.",
     &RpcStats::sessions_overrun},
    {"kvstreamd_namespaces_refused_total", "Namespaces refused because there are too many.",
     &RpcStats::namespaces_refused},
    {"kvstreamd_accept_failures_total", "Times that the handoff socket could not accept.",
     &RpcStats::accept_failures},
};

inline constexpr Series<TierEngineStats, Gauge> kTierEngineGauges[] = {
    {"kvstreamd_tier_out", "1 while the tier is out of service.", &TierEngineStats::out},
    {"kvstreamd_tier_failing", "1 while the tier is out because its reads fail.",
     &TierEngineStats::failing},
    {"kvstreamd_tier_writes_out", "1 while the tier takes no writes: they fail, or do not end.",
     &TierEngineStats::writes_out},
    {"kvstreamd_tier_writes_hang", "1 while that is because they do not end.",
     &TierEngineStats::writes_hang},
    {"kvstreamd_tier_degraded", "1 while I/O of the tier failed lately, or it takes no writes.",
     &TierEngineStats::degraded},
    {"kvstreamd_tier_late",
     "1 while the tier's oldest read is late and it has given nothing back for a second.",
     &TierEngineStats::late},
    {"kvstreamd_tier_probing", "1 while the tier is being tried again.", &TierEngineStats::probing},
    {"kvstreamd_tier_scrubbing", "1 while the tier's files are being scrubbed.",
     &TierEngineStats::scrubbing},
    {"kvstreamd_tier_restoring",
     "1 while the files that were on the tier before the start are being looked for.",
     &TierEngineStats::restoring},
    {"kvstreamd_tier_settling",
     "1 while the tier has, or may have, more than it may since its limit was lowered.",
     &TierEngineStats::settling},
    {"kvstreamd_tier_snapshot_files", "Files that the last index snapshot written names.",
     &TierEngineStats::snapshot_files},
    {"kvstreamd_tier_snapshot_failing", "1 when the last index snapshot could not be written.",
     &TierEngineStats::snapshot_failing},
    {"kvstreamd_tier_hints",
     "Of a shared tier: chunk files of other nodes that the index knows of.",
     &TierEngineStats::hints},
    {"kvstreamd_tier_catalog_leads", "1 while this node merges what the nodes of the tier say.",
     &TierEngineStats::catalog_leads},
    {"kvstreamd_tier_catalog_failing",
     "1 while the catalog of a shared tier cannot be read or written.",
     &TierEngineStats::catalog_failing},
    {"kvstreamd_tier_scrub_hung", "1 while a scrub of the tier hangs, and was left behind.",
     &TierEngineStats::scrub_hung},
    {"kvstreamd_tier_chunk_files", "Chunk files that the index knows of.",
     &TierEngineStats::chunk_files},
    {"kvstreamd_tier_chunk_bytes", "Bytes of those files.", &TierEngineStats::chunk_bytes},
    {"kvstreamd_tier_cut_off_bytes", "Of the chunk bytes, what no prefix reaches, as counted last.",
     &TierEngineStats::cut_off_bytes},
    {"kvstreamd_tier_evictions_in_vain",
     "1 while deleting chunks makes no room on the tier's file system.",
     &TierEngineStats::evictions_in_vain},
    {"kvstreamd_tier_space_bytes", "Size of the tier's file system; 0: not measured.",
     &TierEngineStats::space_bytes},
    {"kvstreamd_tier_space_free_bytes", "What of it is free, as measured last.",
     &TierEngineStats::space_free_bytes},
    {"kvstreamd_tier_scrub_unrepaired",
     "Damaged files that the last scrub of the tier has not made whole again.",
     &TierEngineStats::scrub_unrepaired},
    {"kvstreamd_tier_scrub_completed_timestamp_seconds",
     "When a scrub last saw all files of the tier; 0: none since the start.",
     &TierEngineStats::scrub_completed_at},
    {"kvstreamd_tier_held_out", "1 while an operator holds the tier out of service.",
     &TierEngineStats::held_out},
    {"kvstreamd_tier_in_flight_bytes", "Bytes of reads in flight.",
     &TierEngineStats::in_flight_bytes},
    {"kvstreamd_tier_window_bytes", "Bytes of reads that may be in flight.",
     &TierEngineStats::window_bytes},
    {"kvstreamd_tier_quarantined_bytes", "Pool held by reads that nobody waits for any more.",
     &TierEngineStats::quarantined_bytes},
    {"kvstreamd_tier_quarantine_limit_bytes", "Quarantine at which the tier is taken out.",
     &TierEngineStats::quarantine_limit_bytes},
    {"kvstreamd_tier_write_backlog_bytes", "Bytes that wait to be written.",
     &TierEngineStats::write_backlog_bytes},
    {"kvstreamd_tier_read_rate_bytes_per_second", "Read rate while busy; 0 until known.",
     &TierEngineStats::read_rate},
    {"kvstreamd_tier_write_rate_bytes_per_second", "Write rate while busy; 0 until known.",
     &TierEngineStats::write_rate},
};

inline constexpr Series<TierEngineStats, Counter> kTierEngineCounters[] = {
    {"kvstreamd_tier_delivered_bytes_total", "Bytes delivered to clients from this tier.",
     &TierEngineStats::bytes_delivered},
    {"kvstreamd_tier_segments_read_total", "Segments read.", &TierEngineStats::segments_read},
    {"kvstreamd_tier_segments_hedged_total",
     "Segments read again from this tier because another was late, or would have been later.",
     &TierEngineStats::segments_hedged},
    {"kvstreamd_tier_corrupt_reads_total",
     "Reads that met damaged bytes or a file cut short, and stores that met a damaged file.",
     &TierEngineStats::corrupt_reads},
    {"kvstreamd_tier_missing_files_total", "Reads that found no file.",
     &TierEngineStats::missing_files},
    {"kvstreamd_tier_failed_reads_total", "Segment reads that failed.",
     &TierEngineStats::failed_reads},
    {"kvstreamd_tier_chunks_written_total", "Chunks published.", &TierEngineStats::chunks_written},
    {"kvstreamd_tier_chunks_existed_total", "Writes that met the chunk published already.",
     &TierEngineStats::chunks_existed},
    {"kvstreamd_tier_failed_writes_total", "Chunk writes that failed.",
     &TierEngineStats::failed_writes},
    {"kvstreamd_tier_writes_dropped_total",
     "Second copies given up because the tier or the pool was too busy.",
     &TierEngineStats::writes_dropped},
    {"kvstreamd_tier_files_set_aside_total", "Damaged files taken out of their names.",
     &TierEngineStats::files_set_aside},
    {"kvstreamd_tier_set_aside_failures_total",
     "Damaged files that could not be taken out of their names.",
     &TierEngineStats::set_aside_failures},
    {"kvstreamd_tier_late_total", "Times that reads of the tier became late.",
     &TierEngineStats::times_late},
    {"kvstreamd_tier_probes_total", "Times that a failing tier was tried again.",
     &TierEngineStats::probes},
    {"kvstreamd_tier_outages_total", "Times that the tier was taken out of service.",
     &TierEngineStats::times_out},
    {"kvstreamd_tier_evicted_files_total", "Chunk files given up to make room.",
     &TierEngineStats::files_evicted},
    {"kvstreamd_tier_evicted_bytes_total", "Bytes of those files.",
     &TierEngineStats::bytes_evicted},
    {"kvstreamd_tier_eviction_failures_total",
     "Of those files, the ones that could not be deleted.", &TierEngineStats::eviction_failures},
    {"kvstreamd_tier_restored_files_total",
     "Files from before the start that were taken into the index.",
     &TierEngineStats::restored_files},
    {"kvstreamd_tier_restored_missing_total",
     "Files that an index snapshot named and that were not there.",
     &TierEngineStats::restored_missing},
    {"kvstreamd_tier_temporaries_removed_total",
     "Temporary files of daemons that are gone, removed.", &TierEngineStats::temporaries_removed},
    {"kvstreamd_tier_snapshots_written_total", "Index snapshots written.",
     &TierEngineStats::snapshots_written},
    {"kvstreamd_tier_snapshots_unusable_total",
     "Index snapshots that were there at the start and could not be used.",
     &TierEngineStats::snapshots_unusable},
    {"kvstreamd_tier_snapshot_failures_total", "Index snapshots that could not be written.",
     &TierEngineStats::snapshot_failures},
    {"kvstreamd_tier_hints_heard_total",
     "Chunk files of other nodes that were heard of and taken into the index.",
     &TierEngineStats::hints_heard},
    {"kvstreamd_tier_hints_refused_total",
     "Chunk files of other nodes that were heard of beyond hints_max.",
     &TierEngineStats::hints_refused},
    {"kvstreamd_tier_catalog_metadata_calls_total",
     "Calls for the catalog that ask the file system for more than bytes.",
     &TierEngineStats::catalog_metadata_calls},
    {"kvstreamd_tier_catalog_frames_damaged_total",
     "Frames of other nodes that were left out, since they are damaged.",
     &TierEngineStats::catalog_frames_damaged},
    {"kvstreamd_tier_catalog_terms_total",
     "Times that this node began to merge what the nodes of the tier say.",
     &TierEngineStats::catalog_terms},
    {"kvstreamd_tier_catalog_nodes_adopted_total",
     "Nodes that are gone whose files this one has taken over.",
     &TierEngineStats::catalog_nodes_adopted},
    {"kvstreamd_tier_files_adopted_total", "Chunk files of such nodes.",
     &TierEngineStats::files_adopted},
    {"kvstreamd_tier_catalog_frames_unsaid_total",
     "Frames that the other nodes were not told, since the catalog took nothing.",
     &TierEngineStats::catalog_frames_unsaid},
    {"kvstreamd_tier_evictions_stuck_total",
     "Times that room was wanted and nothing could be given up.",
     &TierEngineStats::evictions_stuck},
    {"kvstreamd_tier_scrub_files_total", "Chunk files that scrubs read.",
     &TierEngineStats::scrubbed_files},
    {"kvstreamd_tier_scrub_bytes_total", "Bytes that scrubs read.",
     &TierEngineStats::scrubbed_bytes},
    {"kvstreamd_tier_scrub_damaged_total", "Damaged files that scrubs found.",
     &TierEngineStats::scrub_damaged},
    {"kvstreamd_tier_scrub_repaired_total", "Of those, files that are whole again.",
     &TierEngineStats::scrub_repaired},
    {"kvstreamd_tier_scrub_unreadable_total",
     "Files and folders that scrubs could not read, and left alone.",
     &TierEngineStats::scrub_unreadable},
    {"kvstreamd_tier_scrubs_completed_total", "Scrubs that saw all files of the tier.",
     &TierEngineStats::scrubs_completed},
    {"kvstreamd_tier_scrubs_unfinished_total", "Scrubs that ended before they had seen all files.",
     &TierEngineStats::scrubs_unfinished},
};

inline constexpr Series<TierStats, Gauge> kTierGauges[] = {
    {"kvstreamd_tier_open_files", "Descriptors kept open for reading.", &TierStats::open_files},
};

inline constexpr Series<TierStats, Counter> kTierCounters[] = {
    {"kvstreamd_tier_read_bytes_total", "Bytes read from the tier.", &TierStats::bytes_read},
    {"kvstreamd_tier_written_bytes_total", "Bytes written to the tier.", &TierStats::bytes_written},
    {"kvstreamd_tier_read_errors_total", "Device reads that failed.", &TierStats::read_errors},
    {"kvstreamd_tier_write_errors_total", "Writes that failed.", &TierStats::write_errors},
    {"kvstreamd_tier_short_reads_resumed_total", "Short reads that were continued.",
     &TierStats::short_reads_resumed},
    {"kvstreamd_tier_retries_total", "Requests given to the kernel again.", &TierStats::retries},
    {"kvstreamd_tier_unknown_completions_total", "Completions whose request is unknown; a bug.",
     &TierStats::unknown_completions},
    {"kvstreamd_tier_descriptor_shortages_total", "Opens that met the limit of descriptors.",
     &TierStats::descriptor_shortages},
    {"kvstreamd_tier_temporaries_left_total",
     "Temporary files, and damaged ones that were set aside, that could not be removed.",
     &TierStats::temporaries_left},
    {"kvstreamd_tier_remounts_total", "File systems mounted in place of the tier's.",
     &TierStats::remounts},
};

inline constexpr Series<DeviceStats, Gauge> kGpuGauges[] = {
    {"kvstreamd_gpu_usable", "0 once the GPU is lost after a CUDA error.", &DeviceStats::usable},
    {"kvstreamd_gpu_hung", "1 while the GPU's copies do not end.", &DeviceStats::hung},
    {"kvstreamd_gpu_regions", "Regions that are open.", &DeviceStats::regions},
    {"kvstreamd_gpu_mapped_bytes", "Memory of workers that the daemon has mapped.",
     &DeviceStats::mapped_bytes},
    {"kvstreamd_gpu_queued_bytes", "Bytes of copies that have not ended.",
     &DeviceStats::queued_bytes},
};

inline constexpr Series<DeviceStats, Counter> kGpuCounters[] = {
    {"kvstreamd_gpu_in_bytes_total", "Bytes copied to the GPU.", &DeviceStats::bytes_in},
    {"kvstreamd_gpu_out_bytes_total", "Bytes copied from the GPU.", &DeviceStats::bytes_out},
    {"kvstreamd_gpu_fragments_total", "Contiguous pieces copied.", &DeviceStats::fragments},
    {"kvstreamd_gpu_batches_total", "Batches of pieces copied.", &DeviceStats::batches},
    {"kvstreamd_gpu_unclosed_total", "Allocations of workers that could not be closed.",
     &DeviceStats::unclosed},
};

// The stats structs hold nothing but numbers, so their sizes tell how many they have: a number
// without a name above is an error here.
static_assert(sizeof(TierStats) ==
              std::size(kTierGauges) * sizeof(Gauge) + std::size(kTierCounters) * sizeof(Counter));
static_assert(sizeof(TierEngineStats) == std::size(kTierEngineGauges) * sizeof(Gauge) +
                                             std::size(kTierEngineCounters) * sizeof(Counter));
static_assert(sizeof(RpcStats) ==
              std::size(kRpcGauges) * sizeof(Gauge) + std::size(kRpcCounters) * sizeof(Counter));
static_assert(sizeof(DeviceStats) ==
              std::size(kGpuGauges) * sizeof(Gauge) + std::size(kGpuCounters) * sizeof(Counter));
static_assert(sizeof(EngineStats) == kTiersMax * sizeof(TierEngineStats) +
                                         sizeof(EngineStats::causes) +
                                         std::size(kEngineGauges) * sizeof(Gauge) +
                                         std::size(kEngineCounters) * sizeof(Counter) +
                                         std::size(kEngineHistograms) * sizeof(Histogram));

}  // namespace kvstream::metrics
