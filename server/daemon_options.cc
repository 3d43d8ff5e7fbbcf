#include "server/daemon_options.h"

#include <algorithm>

#include "server/store/chunk_format.h"

namespace kvstream {
namespace {

// The smallest segment that is worth a request of its own.
constexpr uint64_t kSegmentBytesMin = 16 * kKiB;

tier::IoEngine EngineOf(config::IoEngine engine) {
  switch (engine) {
    case config::IoEngine::kUring:
      return tier::IoEngine::kUring;
    case config::IoEngine::kThreads:
      return tier::IoEngine::kThreads;
    case config::IoEngine::kAuto:
      break;
  }
  return tier::IoEngine::kAuto;
}

sched::Policy PolicyOf(config::Policy policy) {
  switch (policy) {
    case config::Policy::kRequestAtATime:
      return sched::Policy::kRequestAtATime;
    case config::Policy::kSingle:
      return sched::Policy::kSingle;
    case config::Policy::kFixed:
      return sched::Policy::kFixed;
    case config::Policy::kPublished:
      return sched::Policy::kPublished;
    case config::Policy::kCompletion:
      break;
  }
  return sched::Policy::kCompletion;
}

sched::PolicyOptions PolicyOptionsOf(const config::RoutingOptions& routing,
                                     const std::vector<config::TierOptions>& open) {
  // A tier that is left out is none of the router's: what was meant for it goes to the others.
  uint32_t single = 0;
  while (single < open.size() && open[single].name != routing.single_tier) ++single;
  return {.policy = PolicyOf(routing.policy),
          .single = TierId{single},
          .fixed_percent = routing.fixed_percent,
          .chunks_at_a_time = routing.published_chunks,
          .narrowing = routing.narrowing,
          .hedging = routing.hedging};
}

std::optional<sched::CachePolicyKind> CachePolicyOf(config::CacheChoice choice) {
  switch (choice) {
    case config::CacheChoice::kLru:
      return sched::CachePolicyKind::kLru;
    case config::CacheChoice::kS3Fifo:
      return sched::CachePolicyKind::kS3Fifo;
    case config::CacheChoice::kArc:
      return sched::CachePolicyKind::kArc;
    case config::CacheChoice::kNone:
      break;
  }
  return std::nullopt;
}

}  // namespace

store::NamespaceLimits NamespaceLimitsOf(const config::Options& options) {
  // A chunk that can never be staged is refused when its namespace is registered.
  const uint64_t stageable = options.pool_bytes - options.pool_reserved_bytes;
  return {.segment_bytes_min = kSegmentBytesMin,
          .segment_bytes_max = options.segment_bytes_max,
          .segment_bytes_default = options.segment_bytes_default,
          .chunk_bytes_max = std::min(store::kSegmentsMax * options.segment_bytes_max, stageable)};
}

engine::EngineOptions EngineOptionsOf(const config::Options& options,
                                      const std::vector<config::TierOptions>& open) {
  engine::EngineOptions engine;
  engine.pool_reserved_bytes = options.pool_reserved_bytes;
  engine.cache = CachePolicyOf(options.cache);
  engine.copy_threads = options.copy_threads;
  engine.operations_per_session_max = options.operations_per_session_max;
  engine.drain = options.drain;
  engine.direct_bytes_min = {options.gpu.direct_bytes_min, options.gpu.direct_store_bytes_min};
  engine.landing_ack = options.gpu.landing_ack;
  engine.scrub = {options.scrub_bytes_per_second, options.scrub_every};
  engine.restart = engine::RestartOptions{.snapshot_every = options.snapshot_every,
                                          .temporaries_grace = options.temporaries_grace};
  engine.catalog.emplace();
  engine.router.hedge_after = options.hedge_after;
  engine.router.policy = PolicyOptionsOf(options.routing, open);
  engine.writes.replicate_all = options.replicate_all;
  engine.writes.max_defer = options.max_defer;
  const uint64_t stageable = options.pool_bytes - options.pool_reserved_bytes;
  engine.writes.watermark_bytes = stageable / 100 * options.watermark_percent;
  engine.missing_tiers = static_cast<uint32_t>(options.tiers.size() - open.size());
  for (const config::TierOptions& tier : open) {
    // Even when all of the shared pool is staged, each tier finds its window in the reserved part.
    const uint64_t window = std::min(tier.window_bytes, options.pool_reserved_bytes / open.size());
    engine.router.lanes.push_back({.window_bytes = window,
                                   .quarantine_bytes = std::min(tier.quarantine_bytes, window / 2),
                                   .ahead = options.routing.ahead});
    engine.capacities.push_back(
        {tier.capacity_bytes, tier.free_percent_min, tier.shared, tier.hints_max, tier.gone_after});
    engine.writes.lanes.push_back(
        {.window_bytes = tier.write_window_bytes, .backlog_bytes = tier.write_backlog_bytes});
  }
  return engine;
}

tier::TierOptions TierOptionsOf(const config::Options& options, const config::TierOptions& tier,
                                TierId id, bool register_memory) {
  tier::TierOptions out;
  out.id = id;
  out.name = tier.name;
  out.root = tier.root;
  out.mount_point = tier.mount_point;
  // A lock on the folder of one node would stay with the file system that is gone.
  out.follows_mount = tier.shared && !tier.mount_point.empty();
  out.io_bytes = tier.io_bytes;
  out.open_files_max = tier.open_files;
  out.fsync = options.fsync;
  out.io_engine = EngineOf(tier.io_engine);
  out.io_threads = tier.io_threads;
  out.register_memory = register_memory;
  return out;
}

rpc::Limits LimitsOf(const config::Options& options) {
  const store::NamespaceLimits namespaces = NamespaceLimitsOf(options);
  return {.segment_bytes_min = namespaces.segment_bytes_min,
          .segment_bytes_max = namespaces.segment_bytes_max,
          .segment_bytes_default = namespaces.segment_bytes_default,
          .chunk_bytes_max = namespaces.chunk_bytes_max,
          .lookup_keys_max = options.lookup_keys_max,
          .chunks_per_operation_max = options.chunks_per_operation_max,
          .operations_per_session_max = options.operations_per_session_max,
          .host_buffers_per_session_max = options.host_buffers_per_session_max,
          .host_buffer_bytes_per_session_max = options.host_buffer_bytes_per_session_max,
          .deadline_max = options.deadline_max,
          .lease_max = options.lease_max,
          .message_bytes_max = options.message_bytes_max,
          .sessions_max = options.sessions_max,
          .unread_events_bytes_max = options.unread_events_bytes_max,
          .unhandled_messages_max = options.unhandled_messages_per_session_max,
          .unhandled_bytes_max = options.unhandled_bytes_per_session_max,
          .calls_max = options.calls_max,
          .lookup_keys_waiting_max = options.lookup_keys_waiting_max,
          .hello_max = options.hello_max};
}

}  // namespace kvstream
