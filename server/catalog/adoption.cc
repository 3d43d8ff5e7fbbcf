#include "server/catalog/adoption.h"

#include <algorithm>
#include <utility>

namespace kvstream::catalog {
namespace {

constexpr std::string_view kClaimMark = ".by.";
constexpr std::string_view kTakenSuffix = ".taken";

std::string TakenName(const LogName& log) { return ToString(log) + std::string(kTakenSuffix); }

// The log that the mark is of.
std::optional<LogName> ParseTakenName(std::string_view name) {
  if (!name.ends_with(kTakenSuffix)) return std::nullopt;
  return ParseLogName(name.substr(0, name.size() - kTakenSuffix.size()));
}

}  // namespace

std::string ToString(const Claim& claim) {
  // The claimer as a log of its own would be called.
  return ToString(claim.log) + std::string(kClaimMark) + ToString(LogName{claim.by, 0});
}

std::optional<Claim> ParseClaim(std::string_view name) {
  const size_t mark = name.find(kClaimMark);
  if (mark == std::string_view::npos) return std::nullopt;
  const auto log = ParseLogName(name.substr(0, mark));
  const auto by = ParseLogName(name.substr(mark + kClaimMark.size()));
  if (!log.has_value() || !by.has_value()) return std::nullopt;
  return Claim{*log, by->node};
}

absl::StatusOr<std::vector<Claim>> TakeLogs(const Folder& nodes, const LogName& own,
                                            int64_t silent_seconds) {
  const auto names = nodes.List();
  if (!names.ok()) return names.status();
  const auto now = nodes.ModifiedAt(ToString(own));
  if (!now.ok()) return now.status();
  std::vector<Claim> claims;
  std::vector<store::NodeId> gone;
  const auto take = [&](const std::string& name, const LogName& log) {
    const Claim claim{log, own.node};
    // Another may have been first.
    if (nodes.Move(name, ToString(claim)).ok()) claims.push_back(claim);
  };
  for (const std::string& name : *names) {
    const auto log = ParseLogName(name);
    if (!log.has_value() || log->node == own.node) continue;
    const auto modified_at = nodes.ModifiedAt(name);
    if (!modified_at.ok() || *now - *modified_at < silent_seconds) continue;
    gone.push_back(log->node);
    take(name, *log);
  }
  for (const std::string& name : *names) {
    const auto claim = ParseClaim(name);
    if (!claim.has_value()) continue;
    if (claim->by == own.node) {
      claims.push_back(*claim);
    } else if (std::ranges::find(gone, claim->by) != gone.end()) {
      take(name, claim->log);
    }
  }
  return claims;
}

absl::Status FinishClaim(const Folder& nodes, const Claim& claim) {
  const auto mark = nodes.Create(TakenName(claim.log));
  if (!mark.ok() && !absl::IsAlreadyExists(mark.status())) return mark.status();
  return nodes.Remove(ToString(claim));
}

absl::StatusOr<uint64_t> LastTaken(const Folder& nodes, const store::NodeId& node) {
  const auto names = nodes.List();
  if (!names.ok()) return names.status();
  uint64_t last = 0;
  for (const std::string& name : *names) {
    const auto log = ParseTakenName(name);
    if (log.has_value() && log->node == node) last = log->number;  // They are in order.
  }
  return last;
}

absl::Status ForgetTaken(const Folder& nodes, const store::NodeId& node) {
  const auto names = nodes.List();
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    const auto log = ParseTakenName(name);
    if (!log.has_value() || log->node != node) continue;
    if (absl::Status s = nodes.Remove(name); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace kvstream::catalog
