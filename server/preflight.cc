#include "server/preflight.h"

#include <string_view>

#include "absl/strings/str_format.h"
#include "server/limits.h"

namespace kvstream {
namespace {

struct Row {
  std::string_view what;
  Limit limit;
  // Of a count; else MiB.
  bool counted = false;
  // Without it the daemon does not start.
  bool required = false;
  std::string_view without;
};

std::string Amount(uint64_t amount, bool counted) {
  if (amount == Limit::kNone) return "no limit";
  if (counted) return std::to_string(amount);
  return absl::StrFormat("%.1f MiB", static_cast<double>(amount) / kMiB);
}

}  // namespace

Preflight CheckPreflight(const config::Options& options) {
  RaiseOpenFiles();
  const Row rows[] = {
      {"memory", Memory(options), false, true, "does not start"},
      {"locked memory", LockedMemory(options), false, false,
       "the pool is not registered with io_uring: reads cost more CPU"},
      {"huge pages", HugePages(options), false, false,
       "the pool has ordinary pages: reads and copies cost more CPU"},
      {"open files", OpenFiles(options), true, false,
       "files are closed early, and reads that find no descriptor are misses"},
  };
  Preflight preflight;
  preflight.report = absl::StrFormat("%-14s %14s %14s  %s\n", "WHAT", "NEED", "HAVE", "VERDICT");
  for (const Row& row : rows) {
    std::string verdict = "ok";
    if (!row.limit.enough()) {
      verdict =
          absl::StrFormat("too little: %s. Raise: %s", std::string(row.without), row.limit.raise);
      preflight.starts = preflight.starts && !row.required;
    }
    preflight.report += absl::StrFormat("%-14s %14s %14s  %s\n", std::string(row.what),
                                        Amount(row.limit.need, row.counted),
                                        Amount(row.limit.have, row.counted), verdict);
  }
  return preflight;
}

}  // namespace kvstream
