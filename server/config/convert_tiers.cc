#include "server/config/convert_tiers.h"

#include <algorithm>
#include <climits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvstream::config {
namespace {

// Of a tier that is this node's alone.
constexpr uint32_t kFreePercent = 2;
// Of a shared one: 150 MB.
constexpr uint64_t kHints = 1000000;

bool TierNameIsWellFormed(const std::string& name) {
  return !name.empty() && name.size() <= 32 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

bool LiesBelow(const std::string& path, const std::string& folder) {
  return path == folder || folder == "/" || path.starts_with(folder + "/");
}

IoEngine EngineOf(v1::Tier::IoEngine engine) {
  switch (engine) {
    case v1::Tier::IO_URING:
      return IoEngine::kUring;
    case v1::Tier::THREADS:
      return IoEngine::kThreads;
    case v1::Tier::AUTO:
      break;
  }
  return IoEngine::kAuto;
}

TierOptions ConvertTier(const v1::Tier& in, const std::string& field, Problems& problems) {
  TierOptions out;
  out.name = in.name();
  if (!TierNameIsWellFormed(in.name())) {
    problems.Add(absl::StrCat(field, ".name"),
                 absl::StrCat("'", in.name(), "' is not 1 .. 32 characters of [a-z0-9_-]"));
  }
  out.root = problems.AbsolutePath(absl::StrCat(field, ".root"), in.root(), PATH_MAX - 1);
  if (in.has_mount_point()) {
    out.mount_point =
        problems.AbsolutePath(absl::StrCat(field, ".mount_point"), in.mount_point(), PATH_MAX - 1);
    if (!LiesBelow(in.root(), in.mount_point())) {
      problems.Add(
          absl::StrCat(field, ".root"),
          absl::StrCat("'", in.root(), "' is not below mount_point '", in.mount_point(), "'"));
    }
  }
  out.shared = in.shared();
  out.required = in.required();
  out.io_bytes =
      problems.PowerOfTwo(absl::StrCat(field, ".io_kib"), in.io_kib(), {4, 65536}) * kKiB;
  out.window_bytes =
      problems.InRange(absl::StrCat(field, ".window_mib"), in.window_mib(), {1, 4096}) * kMiB;
  out.write_window_bytes =
      problems.InRange(absl::StrCat(field, ".write_window_mib"), in.write_window_mib(), {1, 4096}) *
      kMiB;
  out.write_backlog_bytes = problems.InRange(absl::StrCat(field, ".write_backlog_mib"),
                                             in.write_backlog_mib(), {1, 1048576}) *
                            kMiB;
  out.quarantine_bytes = in.has_quarantine_mib()
                             ? problems.InRange(absl::StrCat(field, ".quarantine_mib"),
                                                in.quarantine_mib(), {1, in.window_mib()}) *
                                   kMiB
                             : out.window_bytes / 2;
  out.open_files = static_cast<uint32_t>(
      problems.InRange(absl::StrCat(field, ".open_files"), in.open_files(), {16, 100000}));
  if (in.has_capacity_mib()) {
    out.capacity_bytes = problems.InRange(absl::StrCat(field, ".capacity_mib"), in.capacity_mib(),
                                          {64, uint64_t{1} << 40}) *
                         kMiB;
  }
  const uint32_t free_percent = in.has_free_percent_min() ? in.free_percent_min()
                                : in.shared()             ? 0
                                                          : kFreePercent;
  out.free_percent_min = static_cast<uint32_t>(
      problems.InRange(absl::StrCat(field, ".free_percent_min"), free_percent, {0, 50}));
  if (in.has_hints_max() && !in.shared()) {
    problems.Add(absl::StrCat(field, ".hints_max"), "is for a shared tier");
  }
  if (in.shared()) {
    out.hints_max = problems.InRange(absl::StrCat(field, ".hints_max"),
                                     in.has_hints_max() ? in.hints_max() : kHints, {0, 100000000});
    out.gone_after = static_cast<TimeNs>(problems.InRange(absl::StrCat(field, ".gone_after_hours"),
                                                          in.gone_after_hours(), {0, 8760})) *
                     3600 * kSecond;
  }
  out.io_engine = EngineOf(in.io_engine());
  out.io_threads = static_cast<uint32_t>(
      problems.InRange(absl::StrCat(field, ".io_threads"), in.io_threads(), {1, 256}));
  return out;
}

}  // namespace

void ConvertTiers(const v1::DaemonConfig& in, Problems& problems, Options& out) {
  if (in.tiers_size() < 1 || in.tiers_size() > static_cast<int>(kTiersMax)) {
    problems.Add("tiers", absl::StrCat("there are ", in.tiers_size(), ", not 1 .. ", kTiersMax));
  }
  for (int i = 0; i < in.tiers_size(); ++i) {
    const std::string field = absl::StrCat("tiers[", i, "]");
    TierOptions tier = ConvertTier(in.tiers(i), field, problems);
    for (size_t other = 0; other < out.tiers.size(); ++other) {
      if (!tier.name.empty() && out.tiers[other].name == tier.name) {
        problems.Add(absl::StrCat(field, ".name"),
                     absl::StrCat("'", tier.name, "' is the name of tiers[", other, "] too"));
      }
      if (!tier.root.empty() && out.tiers[other].root == tier.root) {
        problems.Add(absl::StrCat(field, ".root"),
                     absl::StrCat("'", tier.root, "' is the root of tiers[", other, "] too"));
      }
    }
    out.tiers.push_back(std::move(tier));
  }
}

}  // namespace kvstream::config
