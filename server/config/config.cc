#include "server/config/config.h"

#include <fcntl.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <climits>

#include "absl/strings/str_cat.h"
#include "kvstream/config/v1/config.pb.h"
#include "server/base/errno_status.h"
#include "server/base/unique_fd.h"
#include "server/config/convert_tiers.h"
#include "server/config/problems.h"

namespace kvstream::config {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;
// sun_path holds 108 bytes, the closing zero among them.
constexpr size_t kSocketPathBytesMax = 107;

// Unsigned until the end: a value that failed its check may be too large for TimeNs.
TimeNs Milliseconds(uint64_t ms) { return static_cast<TimeNs>(ms * kMillisecond); }

class ParseErrors final : public google::protobuf::io::ErrorCollector {
 public:
  ParseErrors(std::string_view source, Problems* problems) : source_(source), problems_(problems) {}

  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    // protobuf counts from 0, editors from 1.
    problems_->AddLine(absl::StrCat(source_, ":", line + 1, ":", column + 1, ": ", message));
  }

 private:
  const std::string source_;
  Problems* const problems_;
};

// An octal number of up to 4 digits, at most 0777.
uint32_t Mode(const std::string& text, Problems& problems) {
  uint32_t mode = 0;
  const char* end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, mode, 8);
  if (error != std::errc() || parsed != end || text.size() > 4 || mode > 0777) {
    problems.Add("sockets.mode",
                 absl::StrCat("'", text, "' is not an octal number in 0000 .. 0777"));
  }
  return mode;
}

void ConvertSockets(const v1::Sockets& in, Problems& problems, Options& out) {
  out.grpc_socket = problems.AbsolutePath("sockets.grpc", in.grpc(), 100);
  out.handoff_socket =
      in.has_handoff() ? in.handoff()
                       : (in.grpc().empty() ? std::string() : absl::StrCat(in.grpc(), ".handoff"));
  if (in.has_handoff() || !in.grpc().empty()) {
    problems.AbsolutePath("sockets.handoff", out.handoff_socket, kSocketPathBytesMax);
  }
  if (in.has_handoff() && !in.handoff().empty() && in.handoff() == in.grpc()) {
    problems.Add("sockets.handoff", "is the same path as sockets.grpc");
  }
  out.socket_mode = Mode(in.mode(), problems);
  if (in.group().find('\0') != std::string::npos) {
    problems.Add("sockets.group", "contains a zero byte");
  }
  out.socket_group = in.group();
}

void ConvertPool(const v1::Pool& in, Problems& problems, Options& out) {
  const uint64_t mib = problems.InRange("pool.mib", in.mib(), {16, 1048576});
  const uint64_t percent = problems.InRange("pool.reads_percent", in.reads_percent(), {10, 90});
  out.pool_bytes = mib * kMiB;
  out.pool_reserved_bytes = ReservedBytes(out.pool_bytes, percent);
  out.copy_threads =
      static_cast<uint32_t>(problems.InRange("pool.copy_threads", in.copy_threads(), {1, 64}));
  out.pin = in.pin() == v1::Pool::EXIT ? PinPolicy::kExit : PinPolicy::kShrink;
}

CacheChoice ChoiceOf(v1::Cache::Policy policy) {
  switch (policy) {
    case v1::Cache::LRU:
      return CacheChoice::kLru;
    case v1::Cache::S3_FIFO:
      return CacheChoice::kS3Fifo;
    case v1::Cache::NONE:
      return CacheChoice::kNone;
    case v1::Cache::ARC:
      break;
  }
  return CacheChoice::kArc;
}

GpuMode ModeOf(v1::Gpu::Mode mode) {
  switch (mode) {
    case v1::Gpu::OFF:
      return GpuMode::kOff;
    case v1::Gpu::REQUIRED:
      return GpuMode::kRequired;
    case v1::Gpu::AUTO:
      break;
  }
  return GpuMode::kAuto;
}

void ConvertGpu(const v1::Gpu& in, Problems& problems, Options& out) {
  out.gpu.mode = ModeOf(in.mode());
  out.gpu.direct_bytes_min =
      problems.InRange("gpu.direct_kib_min", in.direct_kib_min(), {1, 2048}) * kKiB;
  out.gpu.direct_store_bytes_min =
      problems.InRange("gpu.direct_store_kib_min", in.direct_store_kib_min(), {1, 2048}) * kKiB;
  out.gpu.landing_ack =
      Milliseconds(problems.InRange("gpu.landing_ack_ms", in.landing_ack_ms(), {10, 600000}));
}

void ConvertReadsAndWrites(const v1::DaemonConfig& in, Problems& problems, Options& out) {
  out.hedge_after = Milliseconds(
      problems.InRange("reads.hedge_after_ms", in.reads().hedge_after_ms(), {1, 60000}));
  const v1::Writes& writes = in.writes();
  out.replicate_all = writes.replication() == v1::Writes::ALL;
  out.max_defer =
      Milliseconds(problems.InRange("writes.max_defer_ms", writes.max_defer_ms(), {0, 3600000}));
  out.watermark_percent = static_cast<uint32_t>(
      problems.InRange("writes.watermark_percent", writes.watermark_percent(), {1, 100}));
  out.fsync = writes.fsync();
}

void ConvertScrub(const v1::Scrub& in, Problems& problems, Options& out) {
  constexpr uint64_t kHourMs = 3600000;
  out.scrub_bytes_per_second =
      problems.InRange("scrub.mib_per_s", in.mib_per_s(), {1, 16384}) * kMiB;
  const uint64_t hours = problems.InRange("scrub.every_hours", in.every_hours(), {0, 8760});
  out.scrub_every = Milliseconds(hours * kHourMs);
}

void ConvertRestart(const v1::Restart& in, Problems& problems, Options& out) {
  constexpr uint64_t kMinuteMs = 60000;
  out.snapshot_every = Milliseconds(
      kMinuteMs * problems.InRange("restart.snapshot_minutes", in.snapshot_minutes(), {0, 1440}));
  out.temporaries_grace =
      Milliseconds(kMinuteMs * problems.InRange("restart.temporaries_minutes",
                                                in.temporaries_minutes(), {0, 10080}));
}

Policy PolicyOf(v1::Routing::Policy policy) {
  switch (policy) {
    case v1::Routing::REQUEST_AT_A_TIME:
      return Policy::kRequestAtATime;
    case v1::Routing::SINGLE:
      return Policy::kSingle;
    case v1::Routing::FIXED:
      return Policy::kFixed;
    case v1::Routing::PUBLISHED:
      return Policy::kPublished;
    case v1::Routing::COMPLETION:
      break;
  }
  return Policy::kCompletion;
}

// REQUIRES: ConvertTiers has filled `out`.
void ConvertRouting(const v1::Routing& in, Problems& problems, Options& out) {
  RoutingOptions& routing = out.routing;
  routing.policy = PolicyOf(in.policy());
  routing.single_tier = in.single_tier();
  const bool known = std::ranges::any_of(
      out.tiers, [&](const TierOptions& tier) { return tier.name == in.single_tier(); });
  if (in.has_single_tier() ? !known : routing.policy == Policy::kSingle) {
    problems.Add("routing.single_tier", absl::StrCat("'", in.single_tier(), "' is no tier"));
  }
  routing.fixed_percent = static_cast<uint32_t>(
      problems.InRange("routing.fixed_percent", in.fixed_percent(), {0, 100}));
  routing.published_chunks = static_cast<uint32_t>(
      problems.InRange("routing.published_chunks", in.published_chunks(), {1, 4096}));
  routing.narrowing = in.narrowing();
  routing.hedging = in.hedging();
  routing.ahead = Milliseconds(problems.InRange("routing.ahead_ms", in.ahead_ms(), {0, 10000}));
}

// REQUIRES: ConvertPool has filled `out`. A segment may be half of what reads own of the pool, so
// that one can be read while another is copied.
void ConvertSegments(const v1::SessionLimits& in, Problems& problems, Options& out) {
  const uint64_t kib = problems.PowerOfTwo("limits.segment_kib", in.segment_kib(), {16, 65536});
  const uint64_t kib_max = in.segment_kib_max();
  const uint64_t half_of_reads_kib = out.pool_reserved_bytes / 2 / kKiB;
  if (!std::has_single_bit(kib_max) || kib_max > half_of_reads_kib || kib_max > 65536) {
    problems.Add("limits.segment_kib_max",
                 absl::StrCat(kib_max, " is not a power of two of at most 65536 and ",
                              half_of_reads_kib, ", half of what the pool reserves for reads"));
  } else if (kib > kib_max) {
    problems.Add("limits.segment_kib",
                 absl::StrCat(kib, " is more than limits.segment_kib_max, ", kib_max));
  }
  out.segment_bytes_default = kib * kKiB;
  out.segment_bytes_max = kib_max * kKiB;
}

void ConvertLimits(const v1::SessionLimits& in, Problems& problems, Options& out) {
  const auto checked = [&problems](std::string_view name, uint64_t value, uint64_t max) {
    return problems.InRange(absl::StrCat("limits.", std::string(name)), value, {1, max});
  };
  out.lookup_keys_max = checked("lookup_keys_max", in.lookup_keys_max(), 1048576);
  out.chunks_per_operation_max =
      checked("chunks_per_operation_max", in.chunks_per_operation_max(), 1048576);
  out.operations_per_session_max =
      checked("operations_per_session_max", in.operations_per_session_max(), 65536);
  out.host_buffers_per_session_max =
      checked("host_buffers_per_session_max", in.host_buffers_per_session_max(), 4096);
  out.host_buffer_bytes_per_session_max =
      checked("host_buffer_mib_per_session_max", in.host_buffer_mib_per_session_max(), 16777216) *
      kMiB;
  out.sessions_max = checked("sessions_max", in.sessions_max(), 65536);
  constexpr uint64_t kDayMs = 86400000;
  out.deadline_max = Milliseconds(checked("deadline_ms_max", in.deadline_ms_max(), kDayMs));
  out.lease_max = Milliseconds(checked("lease_ms_max", in.lease_ms_max(), kDayMs));
  out.message_bytes_max = checked("message_mib_max", in.message_mib_max(), 1024) * kMiB;
  out.unread_events_bytes_max =
      checked("unread_events_mib_max", in.unread_events_mib_max(), 1024) * kMiB;
  out.unhandled_messages_per_session_max =
      checked("unhandled_messages_per_session_max", in.unhandled_messages_per_session_max(), 65536);
  out.unhandled_bytes_per_session_max =
      checked("unhandled_mib_per_session_max", in.unhandled_mib_per_session_max(), 1024) * kMiB;
  out.calls_max = checked("calls_max", in.calls_max(), 65536);
  // Any lookup that lookup_keys_max allows must fit.
  out.lookup_keys_waiting_max = problems.InRange("limits.lookup_keys_waiting_max",
                                                 in.lookup_keys_waiting_max(), {1048576, 67108864});
  out.hello_max = Milliseconds(problems.InRange("limits.hello_ms", in.hello_ms(), {100, 600000}));
}

// host:port, the host a name, an IPv4 address or an IPv6 address in brackets. The listener takes a
// list with options where this takes one address, so only an address's characters pass.
bool ListenAddressIsWellFormed(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  std::string_view host(text.data(), colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  for (char c : host) {
    const bool digit_or_letter =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!digit_or_letter && c != '.' && c != (bracketed ? ':' : '-')) return false;
  }
  uint32_t port = 0;
  const char* end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data() + colon + 1, end, port);
  return error == std::errc() && parsed == end && port <= 65535;
}

void ConvertDaemon(const v1::DaemonConfig& in, Problems& problems, Options& out) {
  out.metrics_listen = in.metrics().listen();
  if (!out.metrics_listen.empty() && !ListenAddressIsWellFormed(out.metrics_listen)) {
    problems.Add("metrics.listen", absl::StrCat("'", out.metrics_listen,
                                                "' is not host:port with a port in 0 .. 65535"));
  }
  constexpr std::array<std::string_view, 5> kLevels = {"trace", "debug", "info", "warn", "error"};
  out.log_level = in.logging().level();
  if (std::find(kLevels.begin(), kLevels.end(), out.log_level) == kLevels.end()) {
    problems.Add("logging.level",
                 absl::StrCat("'", out.log_level, "' is not trace, debug, info, warn or error"));
  }
  out.drain = Milliseconds(problems.InRange("drain_ms", in.drain_ms(), {100, 600000}));
  out.reflection = in.reflection();
}

}  // namespace

absl::StatusOr<Options> ParseConfig(std::string_view text, std::string_view source_name) {
  Problems problems;
  ParseErrors parse_errors(source_name, &problems);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&parse_errors);
  v1::DaemonConfig in;
  if (!parser.ParseFromString(std::string(text), &in)) return problems.ToStatus();

  Options out;
  ConvertSockets(in.sockets(), problems, out);
  ConvertTiers(in, problems, out);
  ConvertPool(in.pool(), problems, out);
  out.cache = ChoiceOf(in.cache().policy());
  ConvertGpu(in.gpu(), problems, out);
  ConvertReadsAndWrites(in, problems, out);
  ConvertScrub(in.scrub(), problems, out);
  ConvertRestart(in.restart(), problems, out);
  ConvertRouting(in.routing(), problems, out);
  ConvertSegments(in.limits(), problems, out);
  ConvertLimits(in.limits(), problems, out);
  ConvertDaemon(in, problems, out);
  if (!problems.empty()) return problems.ToStatus();
  return out;
}

absl::StatusOr<Options> LoadConfig(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "open config", path);
  std::string text(kFileBytesMax + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = ::read(fd.get(), text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "read config", path);
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  if (size > kFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("read config ", path, ": is longer than ", kFileBytesMax, " bytes"));
  }
  text.resize(size);
  return ParseConfig(text, path);
}

}  // namespace kvstream::config
