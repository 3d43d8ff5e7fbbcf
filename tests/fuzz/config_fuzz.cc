// The config file. What loads has every value within the range that config.proto documents, and
// whatever else comes is refused with a line for each problem.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "server/base/check.h"
#include "server/base/types.h"
#include "server/config/config.h"

namespace kvstream::config {
namespace {

template <typename Int>
bool Within(Int value, Int min, Int max) {
  return min <= value && value <= max;
}

bool IsMiB(uint64_t bytes, uint64_t min, uint64_t max) {
  return bytes % kMiB == 0 && Within(bytes / kMiB, min, max);
}

bool IsMs(TimeNs duration, TimeNs min, TimeNs max) {
  return duration % kMillisecond == 0 && Within(duration / kMillisecond, min, max);
}

bool IsPath(const std::string& path, size_t bytes_max) {
  return path.starts_with('/') && path.size() <= bytes_max && path.find('\0') == path.npos;
}

void CheckTier(const TierOptions& tier) {
  constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_-";
  KV_CHECK(Within<size_t>(tier.name.size(), 1, 32));
  KV_CHECK(tier.name.find_first_not_of(kNameCharacters) == tier.name.npos);
  KV_CHECK(IsPath(tier.root, 4095));
  KV_CHECK(std::has_single_bit(tier.io_bytes) && Within(tier.io_bytes, 4 * kKiB, 65536 * kKiB));
  KV_CHECK(IsMiB(tier.window_bytes, 1, 4096) && IsMiB(tier.write_window_bytes, 1, 4096));
  KV_CHECK(IsMiB(tier.write_backlog_bytes, 1, 1048576));
  KV_CHECK(Within(tier.quarantine_bytes, kMiB / 2, tier.window_bytes));
  KV_CHECK(Within(tier.open_files, 16u, 100000u) && Within(tier.io_threads, 1u, 256u));
}

void CheckTiers(const Options& options) {
  std::set<std::string> names;
  std::set<std::string> roots;
  KV_CHECK(Within<size_t>(options.tiers.size(), 1, kTiersMax));
  for (const TierOptions& tier : options.tiers) {
    CheckTier(tier);
    KV_CHECK(names.insert(tier.name).second && roots.insert(tier.root).second);
  }
  const RoutingOptions& routing = options.routing;
  KV_CHECK(routing.policy != Policy::kSingle || names.contains(routing.single_tier));
  KV_CHECK(routing.fixed_percent <= 100 && Within(routing.published_chunks, 1u, 4096u));
  KV_CHECK(IsMs(routing.ahead, 0, 10000) && IsMs(options.hedge_after, 1, 60000));
  KV_CHECK(IsMs(options.max_defer, 0, 3600000) && Within(options.watermark_percent, 1u, 100u));
}

void CheckMemory(const Options& options) {
  KV_CHECK(IsMiB(options.pool_bytes, 16, 1048576) && Within(options.copy_threads, 1u, 64u));
  // Between 10 and 90 percent, rounded down.
  KV_CHECK(options.pool_reserved_bytes <= options.pool_bytes / 100 * 90 + kMiB);
  KV_CHECK(options.pool_reserved_bytes + 64 * kMiB >= options.pool_bytes / 100 * 10);
  KV_CHECK(options.pool_reserved_bytes > 0);
  KV_CHECK(std::has_single_bit(options.segment_bytes_default));
  KV_CHECK(std::has_single_bit(options.segment_bytes_max));
  KV_CHECK(Within(options.segment_bytes_default, 16 * kKiB, options.segment_bytes_max));
  KV_CHECK(options.segment_bytes_max <= 64 * kMiB);
  KV_CHECK(2 * options.segment_bytes_max <= options.pool_reserved_bytes);
  KV_CHECK(Within(options.gpu.direct_bytes_min, kKiB, 2048 * kKiB));
  KV_CHECK(IsMs(options.gpu.landing_ack, 10, 600000));
}

void CheckLimits(const Options& options) {
  constexpr TimeNs kDayMs = 86400000;
  KV_CHECK(Within<uint64_t>(options.lookup_keys_max, 1, 1048576));
  KV_CHECK(Within<uint64_t>(options.chunks_per_operation_max, 1, 1048576));
  KV_CHECK(Within<uint64_t>(options.operations_per_session_max, 1, 65536));
  KV_CHECK(Within<uint64_t>(options.host_buffers_per_session_max, 1, 4096));
  KV_CHECK(IsMiB(options.host_buffer_bytes_per_session_max, 1, 16777216));
  KV_CHECK(Within<uint64_t>(options.sessions_max, 1, 65536));
  KV_CHECK(IsMs(options.deadline_max, 1, kDayMs) && IsMs(options.lease_max, 1, kDayMs));
  KV_CHECK(IsMiB(options.message_bytes_max, 1, 1024));
  KV_CHECK(IsMiB(options.unread_events_bytes_max, 1, 1024));
  KV_CHECK(Within<uint64_t>(options.unhandled_messages_per_session_max, 1, 65536));
  KV_CHECK(IsMiB(options.unhandled_bytes_per_session_max, 1, 1024));
  KV_CHECK(Within<uint64_t>(options.calls_max, 1, 65536));
  KV_CHECK(Within<uint64_t>(options.lookup_keys_waiting_max, 1048576, 67108864));
  KV_CHECK(IsMiB(options.scrub_bytes_per_second, 1, 16384));
  KV_CHECK(Within<TimeNs>(options.scrub_every / (3600 * kSecond), 0, 8760));
  KV_CHECK(IsMs(options.hello_max, 100, 600000) && IsMs(options.drain, 100, 600000));
}

void CheckNames(const Options& options) {
  KV_CHECK(IsPath(options.grpc_socket, 100) && IsPath(options.handoff_socket, 107));
  KV_CHECK(options.grpc_socket != options.handoff_socket && options.socket_mode <= 0777);
  const std::set<std::string> levels = {"trace", "debug", "info", "warn", "error"};
  KV_CHECK(levels.contains(options.log_level));
  // No list and no options for the listener.
  KV_CHECK(options.metrics_listen.find_first_of(", +\n\0") == std::string::npos);
}

}  // namespace
}  // namespace kvstream::config

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstream::config;
  const auto options = ParseConfig({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!options.ok()) {
    KV_CHECK(absl::IsInvalidArgument(options.status()) && !options.status().message().empty());
    return 0;
  }
  CheckTiers(*options);
  CheckMemory(*options);
  CheckLimits(*options);
  CheckNames(*options);
  return 0;
}
