// The validated configuration: plain values, every unit resolved. The daemon hands each room its
// part; no other code sees the config schema.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/base/types.h"

namespace kvstream::config {

enum class IoEngine : uint8_t { kAuto, kUring, kThreads };

struct TierOptions {
  std::string name;
  std::string root;
  bool shared = false;
  bool required = true;
  // Empty: not looked at.
  std::string mount_point;
  uint64_t io_bytes = 0;
  uint64_t window_bytes = 0;
  uint64_t write_window_bytes = 0;
  uint64_t write_backlog_bytes = 0;
  uint64_t quarantine_bytes = 0;
  uint32_t open_files = 0;
  IoEngine io_engine = IoEngine::kAuto;
  uint32_t io_threads = 0;
  // 0: no limit but the file system's.
  uint64_t capacity_bytes = 0;
  uint32_t free_percent_min = 0;
  // Of a shared tier; 0: no catalog.
  uint64_t hints_max = 0;
  // Of a shared tier; 0: never.
  TimeNs gone_after = 0;
};

enum class Policy { kCompletion, kRequestAtATime, kSingle, kFixed, kPublished };

struct RoutingOptions {
  Policy policy = Policy::kCompletion;
  // Of kSingle: a name among the tiers'.
  std::string single_tier;
  uint32_t fixed_percent = 0;
  uint32_t published_chunks = 0;
  bool narrowing = true;
  bool hedging = true;
  // 0: windows stay as they are configured.
  TimeNs ahead = 0;
};

enum class GpuMode : uint8_t { kAuto, kOff, kRequired };

struct GpuOptions {
  GpuMode mode = GpuMode::kAuto;
  // Shortest mean run of a region that is copied straight; others land.
  uint64_t direct_bytes_min = 0;
  uint64_t direct_store_bytes_min = 0;
  TimeNs landing_ack = 0;
};

// When a slice of the pool cannot be pinned for the GPUs.
enum class PinPolicy : uint8_t { kShrink, kExit };

// Which chunk of the DRAM cache makes room; kNone: there is no such cache.
enum class CacheChoice : uint8_t { kLru, kS3Fifo, kArc, kNone };

// The share of a pool that only reads may use. Of a large pool in whole blocks of the slot
// allocator, so that no slot lies across the border of two pinned slices.
inline uint64_t ReservedBytes(uint64_t pool_bytes, uint64_t percent) {
  const uint64_t grain = pool_bytes > 1024 * kMiB ? 64 * kMiB : 4 * kKiB;
  return pool_bytes * percent / 100 / grain * grain;
}

struct Options {
  std::string grpc_socket;
  std::string handoff_socket;
  // Permission bits of both sockets.
  uint32_t socket_mode = 0660;
  // Empty: the daemon's own group.
  std::string socket_group;

  std::vector<TierOptions> tiers;

  uint64_t pool_bytes = 0;
  uint64_t pool_reserved_bytes = 0;
  uint32_t copy_threads = 0;
  PinPolicy pin = PinPolicy::kShrink;
  CacheChoice cache = CacheChoice::kArc;

  GpuOptions gpu;

  TimeNs hedge_after = 0;
  RoutingOptions routing;

  // A copy on every tier, or one on the home tier.
  bool replicate_all = true;
  TimeNs max_defer = 0;
  uint32_t watermark_percent = 0;
  bool fsync = false;

  uint64_t scrub_bytes_per_second = 0;
  // 0: only when asked.
  TimeNs scrub_every = 0;

  // 0: only at a stop.
  TimeNs snapshot_every = 0;
  TimeNs temporaries_grace = 0;

  uint64_t segment_bytes_default = 0;
  uint64_t segment_bytes_max = 0;
  uint64_t lookup_keys_max = 0;
  uint64_t chunks_per_operation_max = 0;
  uint64_t operations_per_session_max = 0;
  uint64_t host_buffers_per_session_max = 0;
  uint64_t host_buffer_bytes_per_session_max = 0;
  uint64_t sessions_max = 0;
  TimeNs deadline_max = 0;
  TimeNs lease_max = 0;
  uint64_t message_bytes_max = 0;
  uint64_t unread_events_bytes_max = 0;
  uint64_t unhandled_messages_per_session_max = 0;
  uint64_t unhandled_bytes_per_session_max = 0;
  uint64_t calls_max = 0;
  uint64_t lookup_keys_waiting_max = 0;
  TimeNs hello_max = 0;

  // host:port; empty: off.
  std::string metrics_listen;
  std::string log_level;
  TimeNs drain = 0;
  bool reflection = true;
};

}  // namespace kvstream::config
