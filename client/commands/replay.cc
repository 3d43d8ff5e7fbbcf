// kvstreamctl replay.
#include "client/replay/replay.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <utility>

#include "client/commands/command.h"
#include "client/output.h"
#include "client/replay/generator.h"

namespace kvstream::ctl {
namespace {

using replay::ReplayOptions;
using replay::ReplayReport;

constexpr uint64_t kHourMs = 3600000;

struct ReplayFlags {
  std::string trace;
  uint64_t generate = 0;
  uint64_t requests = std::numeric_limits<uint64_t>::max();
  uint64_t seed = 1;
  uint64_t chunk_bytes = uint64_t{256} << 10;
  uint64_t segment_bytes = 0;
  uint64_t batch = 1;
  uint64_t forward_ms = 0;
  uint64_t admission_ms = 60000;
  uint64_t deadline_ms = 60000;
  uint64_t reconnect_s = 30;
  bool own_buffer = false;
  bool fresh = false;
};

std::vector<Option> Options(ReplayFlags* f) {
  constexpr uint64_t kMany = uint64_t{1} << 40;
  return {
      TextOption("--trace", "FILE", "JSON lines with hash_ids, as the published traces", &f->trace),
      NumberOption("--generate", "N", "make a multi-turn trace of N requests instead", {1, 1000000},
                   &f->generate),
      NumberOption("--seed", "N", "of a generated trace and of the content (1)", {0, kMany},
                   &f->seed),
      NumberOption("--requests", "N", "only the first N requests", {1, kMany}, &f->requests),
      SizeOption("--chunk-bytes", "of a chunk (256KiB)", {1, replay::Content::kChunkBytesMax},
                 &f->chunk_bytes),
      SizeOption("--segment-bytes", "of a segment (the daemon's default)", {4096, kMany},
                 &f->segment_bytes),
      NumberOption("--batch", "N", "requests in a step (1)", {1, 100000}, &f->batch),
      NumberOption("--forward-ms", "MS", "how long a forward pass takes (0)", {0, kHourMs},
                   &f->forward_ms),
      NumberOption("--admission-ms", "MS", "how long a store may wait for room (60000)",
                   {0, kHourMs}, &f->admission_ms),
      NumberOption("--deadline-ms", "MS", "of a read (60000)", {1, kHourMs}, &f->deadline_ms),
      NumberOption("--reconnect-seconds", "S", "how long to wait for a daemon that went away (30)",
                   {0, 3600}, &f->reconnect_s),
      FlagOption("--own-buffer", "read into memory of this process's making", &f->own_buffer),
      FlagOption("--fresh", "share nothing with earlier replays", &f->fresh),
  };
}

// The value that a share of the values do not exceed. REQUIRES: sorted.
absl::Duration Percentile(const std::vector<absl::Duration>& sorted, double share) {
  if (sorted.empty()) return absl::ZeroDuration();
  const auto at = static_cast<size_t>(std::lround(share * static_cast<double>(sorted.size() - 1)));
  return sorted[at];
}

struct StepTimes {
  double mean_ms = 0;
  double p50_ms = 0;
  double p99_ms = 0;
  double max_ms = 0;
};

StepTimes Summarize(std::vector<absl::Duration> times) {
  if (times.empty()) return {};
  std::sort(times.begin(), times.end());
  absl::Duration sum;
  for (const absl::Duration time : times) sum += time;
  return {absl::ToDoubleMilliseconds(sum / static_cast<int64_t>(times.size())),
          absl::ToDoubleMilliseconds(Percentile(times, 0.5)),
          absl::ToDoubleMilliseconds(Percentile(times, 0.99)),
          absl::ToDoubleMilliseconds(times.back())};
}

void PrintTable(const ReplayReport& r) {
  const StepTimes times = Summarize(r.step_times);
  std::vector<std::vector<std::string>> rows = {
      {"REPLAY", ""},
      {"requests", FormatCount(r.requests) + " in " + FormatCount(r.steps) + " steps"},
      {"chunks in prompts", FormatCount(r.chunks)},
      {"leading chunks hit", FormatCount(r.hits) + " of " + FormatCount(r.possible_hits) +
                                 " that an unbounded cache would hit"},
      {"bytes read and verified", FormatBytes(r.bytes_read)},
      {"wrong bytes", FormatCount(r.wrong_bytes)},
      {"chunks that failed", FormatCount(r.chunks_failed)},
      {"chunks stored", FormatCount(r.chunks_stored) + ", " + FormatCount(r.chunks_existed) +
                            " existed, " + FormatCount(r.chunks_dropped) + " dropped"},
  };
  for (const replay::TierBytes& tier : r.tiers) {
    rows.push_back({"tier " + tier.name,
                    FormatBytes(tier.read) + " read, " + FormatBytes(tier.written) + " written"});
  }
  rows.push_back({"from the pool", FormatBytes(r.pool_bytes)});
  rows.push_back({"step time, ms", "mean " + FormatDecimal(times.mean_ms, 2) + ", p50 " +
                                       FormatDecimal(times.p50_ms, 2) + ", p99 " +
                                       FormatDecimal(times.p99_ms, 2) + ", max " +
                                       FormatDecimal(times.max_ms, 2)});
  rows.push_back({"elapsed", FormatDecimal(absl::ToDoubleSeconds(r.elapsed), 1) + " s"});
  std::printf("%s", FormatTable(rows).c_str());
  if (r.restarts > 0) {
    std::printf(
        "the daemon went away %s times: possible hits are those of one that did not, and "
        "bytes are since the last time\n",
        FormatCount(r.restarts).c_str());
  }
  if (r.wrong_bytes > 0) std::printf("first wrong: %s\n", r.first_wrong.c_str());
}

void PrintJson(const ReplayReport& r) {
  const StepTimes times = Summarize(r.step_times);
  google::protobuf::Struct object;
  const auto number = [&object](const char* name, auto value) {
    SetNumber(&object, name, static_cast<double>(value));
  };
  number("requests", r.requests);
  number("steps", r.steps);
  number("chunks", r.chunks);
  number("possible_hits", r.possible_hits);
  number("hits", r.hits);
  number("bytes_read", r.bytes_read);
  number("wrong_bytes", r.wrong_bytes);
  number("chunks_failed", r.chunks_failed);
  number("chunks_stored", r.chunks_stored);
  number("chunks_existed", r.chunks_existed);
  number("chunks_dropped", r.chunks_dropped);
  number("restarts", r.restarts);
  number("pool_bytes", r.pool_bytes);
  for (const replay::TierBytes& tier : r.tiers) {
    SetNumber(&object, "tier_" + tier.name + "_bytes_read", static_cast<double>(tier.read));
    SetNumber(&object, "tier_" + tier.name + "_bytes_written", static_cast<double>(tier.written));
  }
  number("step_ms_mean", times.mean_ms);
  number("step_ms_p50", times.p50_ms);
  number("step_ms_p99", times.p99_ms);
  number("step_ms_max", times.max_ms);
  number("seconds", absl::ToDoubleSeconds(r.elapsed));
  SetText(&object, "first_wrong", r.first_wrong);
  std::printf("%s\n", ToJson(object).c_str());
}

// One line that is written over, for a person who watches.
class ProgressLine {
 public:
  explicit ProgressLine(uint64_t requests) : requests_(requests) {}

  void operator()(const ReplayReport& r) {
    const double seconds = absl::ToDoubleSeconds(r.elapsed);
    if (seconds - shown_ < 0.2 && r.requests < requests_) return;
    shown_ = seconds;
    const double left = seconds * static_cast<double>(requests_ - r.requests) /
                        static_cast<double>(std::max<uint64_t>(r.requests, 1));
    std::fprintf(stderr, "\r%llu of %llu requests, %llu hits, %s/s read, %.0f s left \033[K",
                 static_cast<unsigned long long>(r.requests),
                 static_cast<unsigned long long>(requests_),
                 static_cast<unsigned long long>(r.hits),
                 FormatBytes(static_cast<uint64_t>(static_cast<double>(r.bytes_read) /
                                                   std::max(seconds, 1e-3)))
                     .c_str(),
                 left);
    if (r.requests == requests_) std::fputc('\n', stderr);
  }

 private:
  const uint64_t requests_;
  double shown_ = -1;
};

ReplayOptions ToReplayOptions(const ReplayFlags& flags, const Globals& globals) {
  ReplayOptions options;
  options.client = ToClientOptions(globals);
  options.chunk_bytes = flags.chunk_bytes;
  options.segment_bytes = flags.segment_bytes;
  options.batch = flags.batch;
  options.forward = absl::Milliseconds(flags.forward_ms);
  options.admission = absl::Milliseconds(flags.admission_ms);
  options.deadline = absl::Milliseconds(flags.deadline_ms);
  options.reconnect = absl::Seconds(flags.reconnect_s);
  options.own_buffer = flags.own_buffer;
  options.seed = flags.seed;
  if (flags.fresh) options.label = std::to_string(std::random_device()());
  return options;
}

}  // namespace

int RunReplay(const Command& command, Globals globals, const std::vector<std::string>& arguments) {
  ReplayFlags flags;
  std::vector<std::string> rest;
  if (auto code = ParseCommand(command, &globals, arguments, Options(&flags), &rest)) return *code;
  if (!rest.empty()) return UsageError(command, "takes no argument \"" + rest[0] + "\"");
  if (flags.trace.empty() == (flags.generate == 0)) {
    return UsageError(command, "needs either --trace or --generate");
  }
  auto requests = flags.trace.empty() ? absl::StatusOr<std::vector<replay::Request>>(
                                            replay::GenerateTrace(flags.generate, flags.seed))
                                      : replay::ReadTrace(flags.trace, flags.requests);
  if (!requests.ok()) return Fail(command, requests.status(), kFailed);
  if (requests->size() > flags.requests) requests->resize(flags.requests);
  ProgressLine line(requests->size());
  const bool watched = isatty(STDERR_FILENO) != 0;
  replay::Replay replay(ToReplayOptions(flags, globals), *std::move(requests));
  const absl::Status status = replay.Run([&](const ReplayReport& r) {
    if (watched) line(r);
  });
  // A replay that never began has nothing to report.
  if (status.ok() || replay.report().steps > 0) {
    globals.json ? PrintJson(replay.report()) : PrintTable(replay.report());
  }
  if (replay.report().wrong_bytes > 0) return kFailed;
  if (!status.ok()) {
    return Fail(command, status, CodeForCall(status));
  }
  return kDone;
}

}  // namespace kvstream::ctl
