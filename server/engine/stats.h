// The engine's numbers, written by the loop, those of scrubs by their thread, and read by the
// metrics room and GetStatus.
#pragma once

#include <array>

#include "server/base/cause.h"
#include "server/base/stats.h"
#include "server/base/types.h"

namespace kvstream::engine {

struct TierEngineStats {
  // Out of service, for reads and writes.
  Gauge out;
  // Its health took it out: its reads fail.
  Gauge failing;
  // It takes no writes: they fail, or do not end.
  Gauge writes_out;
  Gauge writes_hang;
  // Some of its reads or writes failed lately, or writes are out.
  Gauge degraded;
  // Its oldest read is late, and it has given nothing back for a second; and how often it was so.
  Gauge late;
  Counter times_late;
  // It is being tried again.
  Gauge probing;
  Counter probes;
  // An operator took it out.
  Gauge held_out;
  Gauge in_flight_bytes;
  Gauge window_bytes;
  Gauge quarantined_bytes;
  Gauge quarantine_limit_bytes;
  Gauge write_backlog_bytes;
  // Bytes per second while busy; 0 until known.
  Gauge read_rate;
  Gauge write_rate;
  // Bytes delivered to clients from this tier.
  Counter bytes_delivered;
  Counter segments_read;
  // Segments read again from this tier because another was late.
  Counter segments_hedged;
  // Reads of bytes that failed verification, and of files that ended before they did; stores that
  // met a damaged file.
  Counter corrupt_reads;
  Counter missing_files;
  Counter failed_reads;
  Counter chunks_written;
  Counter chunks_existed;
  Counter failed_writes;
  // Second copies given up because the tier or the pool was too busy.
  Counter writes_dropped;
  // Damaged files taken out of their names.
  Counter files_set_aside;
  // Those that could not be: they may still have their names.
  Counter set_aside_failures;
  // Times that the tier was taken out of service.
  Counter times_out;
  // Its files are being scrubbed; then what scrubs have read, found damaged, made whole again, and
  // could not read, which says nothing of the file.
  Gauge scrubbing;
  Counter scrubbed_files;
  Counter scrubbed_bytes;
  Counter scrub_damaged;
  Counter scrub_repaired;
  Counter scrub_unreadable;
  // Chunk files that the index knows of, and their bytes.
  Gauge chunk_files;
  Gauge chunk_bytes;
  // What its file system has, as measured last; 0: it is not measured.
  Gauge space_bytes;
  Gauge space_free_bytes;
  // Files given up to make room, and those of them that could not be deleted.
  Counter files_evicted;
  Counter bytes_evicted;
  Counter eviction_failures;
  // Times that room was wanted and there was nothing to give up.
  Counter evictions_stuck;
  // Deleting chunks makes no room on its file system, and is left off for the floor.
  Gauge evictions_in_vain;
  // Of chunk_bytes, what no prefix reaches: something before it is missing.
  Gauge cut_off_bytes;
  // The files that were on it before this start are being looked for.
  Gauge restoring;
  // It has, or may have, more than it may since its limit was lowered.
  Gauge settling;
  // Files that were there before, found and taken into the index, and those that the index snapshot
  // named and were not there.
  Counter restored_files;
  Counter restored_missing;
  // Temporary files of daemons that are gone, removed.
  Counter temporaries_removed;
  // Files that the last index snapshot written names.
  Gauge snapshot_files;
  Counter snapshots_written;
  // Index snapshots that were there and could not be used.
  Counter snapshots_unusable;
  // Those that could not be written; and whether it was so the last time.
  Counter snapshot_failures;
  Gauge snapshot_failing;
  // Of a shared tier: files of other nodes that the index knows of, those that it has heard of, and
  // those that it had no room for.
  Gauge hints;
  Counter hints_heard;
  Counter hints_refused;
  // Its catalog cannot be read or written, or does not answer; and what the other nodes are not
  // told because of that, in frames.
  Gauge catalog_failing;
  Counter catalog_frames_unsaid;
  // Calls for it that ask the file system for more than bytes.
  Counter catalog_metadata_calls;
  // Frames of other nodes that were left out, since they are damaged.
  Counter catalog_frames_damaged;
  // Nodes that are gone whose files this one has taken over, and those files.
  Counter catalog_nodes_adopted;
  Counter files_adopted;
  // Times that this node began to merge what all say, and whether it does.
  Counter catalog_terms;
  Gauge catalog_leads;
  // A scrub of it hangs in a system call, and was left behind.
  Gauge scrub_hung;
  // Damaged files that the last scrub has not made whole again.
  Gauge scrub_unrepaired;
  // When a scrub last saw all its files, in seconds of the calendar; 0: none since the start.
  Gauge scrub_completed_at;
  Counter scrubs_completed;
  // Scrubs that ended before they had seen all files.
  Counter scrubs_unfinished;
};

// What its numbers do not tell; empty while there is nothing to tell.
struct TierCauses {
  // What the last read and the last write that failed met.
  Cause reads;
  Cause writes;
  // What the last try of a tier that is out met.
  Cause probe;
};

struct EngineStats {
  std::array<TierEngineStats, kTiersMax> tiers;
  std::array<TierCauses, kTiersMax> causes;

  Gauge pool_bytes;
  Gauge pool_reserved_bytes;
  Gauge pool_used_bytes;
  Gauge staged_bytes;
  Gauge pool_huge_pages;
  // The DRAM cache: chunks that stay in the pool while nobody else wants their room, which is not
  // counted as used.
  Gauge cache_bytes;
  Gauge cache_chunks;
  Counter cache_inserted;
  Counter cache_evicted;

  Gauge sessions_open;
  Counter sessions_opened;
  Gauge host_buffers;
  Gauge host_buffer_bytes;
  // Of buffers that are no session's any more and not yet unmapped.
  Gauge unmapping_bytes;
  Gauge regions;
  // Landing buffers among them.
  Gauge landing_regions;
  // Parts of landing buffers that workers have, of operations that have ended.
  Gauge landing_parts_overdue;
  // Times that a worker had a part for too long.
  Counter landing_timeouts;
  Gauge leases;
  Gauge leased_chunks;
  Counter leases_expired;

  // Events that the loop has not handled.
  Gauge unhandled_events;
  Gauge operations_running;
  Counter read_steps;
  Counter stores;
  Counter lookups;
  Counter lookup_keys;
  Counter lookup_hits;
  Counter rejected;
  Counter cancelled;
  Counter deadlines_exceeded;

  Counter chunks_delivered;
  Counter chunks_failed;
  Counter chunks_missing;
  Counter bytes_delivered;
  Counter bytes_from_pool;
  Counter chunks_stored;
  Counter bytes_stored;
  Counter chunks_existed;
  Counter chunks_dropped;
  // Staged chunks whose every write failed; the key was withdrawn.
  Counter chunks_lost;
  // Staged chunks whose bytes had changed in the pool when they were read: memory that fails, or a
  // bug. Each is withdrawn.
  Counter staged_chunks_damaged;

  // Scrubs by the clock that found another one running.
  Counter scrubs_refused;

  // Contents of chunks, and evictions that left files on tiers that deleted nothing.
  Counter operator_evicted_chunks;
  Counter operator_evictions_unfinished;

  Gauge index_chunks;
  Gauge index_bytes;
  Gauge draining;

  // From arrival to quiesced.
  Histogram read_step_us;
  Histogram store_release_us;
  Histogram lookup_us;
};

}  // namespace kvstream::engine
