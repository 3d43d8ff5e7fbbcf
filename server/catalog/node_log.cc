#include "server/catalog/node_log.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <utility>

#include "server/base/errno_status.h"

namespace kvstream::catalog {
namespace {

constexpr std::string_view kLogSuffix = ".log";
constexpr size_t kNodeDigits = 32;
constexpr size_t kNumberDigits = 16;
// Of 30 million files.
constexpr uint64_t kLogBytesMax = 4 * kGiB;

std::string HexOf(uint64_t number) {
  std::string hex(kNumberDigits, '0');
  for (size_t i = kNumberDigits; number > 0; number >>= 4)
    hex[--i] = "0123456789abcdef"[number & 15];
  return hex;
}

template <typename Int>
bool ParseHex(std::string_view hex, Int* number) {
  const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), *number, 16);
  return error == std::errc() && end == hex.data() + hex.size();
}

}  // namespace

std::string ToString(const LogName& name) {
  return ToHex(name.node) + "." + HexOf(name.number) + std::string(kLogSuffix);
}

std::optional<LogName> ParseLogName(std::string_view name) {
  if (name.size() != kNodeDigits + 1 + kNumberDigits + kLogSuffix.size()) return std::nullopt;
  LogName parsed;
  for (size_t i = 0; i < parsed.node.bytes.size(); ++i) {
    if (!ParseHex(name.substr(2 * i, 2), &parsed.node.bytes[i])) return std::nullopt;
  }
  if (!ParseHex(name.substr(kNodeDigits + 1, kNumberDigits), &parsed.number)) return std::nullopt;
  if (ToString(parsed) != name) return std::nullopt;
  return parsed;
}

absl::StatusOr<std::optional<LogName>> FindLog(const Folder& nodes, const store::NodeId& node) {
  const auto names = nodes.List();
  if (!names.ok()) return names.status();
  std::optional<LogName> newest;
  for (const std::string& name : *names) {
    const std::optional<LogName> parsed = ParseLogName(name);
    if (parsed.has_value() && parsed->node == node) newest = parsed;  // They are in order.
  }
  return newest;
}

absl::StatusOr<NodeLog> NodeLog::Begin(const Folder* nodes, const LogName& name) {
  auto fd = nodes->Create(ToString(name));
  if (!fd.ok()) return fd.status();
  NodeLog log(nodes, name, *std::move(fd));
  if (absl::Status s = log.Append(store::EncodeCatalogHeader({name.node, name.number})); !s.ok()) {
    return s;
  }
  log.bytes_then_ = log.bytes_;
  return log;
}

absl::StatusOr<NodeLog> NodeLog::Open(const Folder* nodes, const store::NodeId& node,
                                      uint64_t after) {
  const auto newest = FindLog(*nodes, node);
  if (!newest.ok()) return newest.status();
  if (!newest->has_value()) return Begin(nodes, {node, after + 1});
  RemoveOlder(*nodes, **newest);
  const std::string name = ToString(**newest);
  const auto bytes = nodes->Read(name, 0, kLogBytesMax);
  if (!bytes.ok()) return bytes.status();
  const auto header = store::DecodeCatalogHeader(*bytes);
  if (absl::IsUnimplemented(header.status())) return header.status();
  if (!header.ok()) {
    auto log = Begin(nodes, {node, (*newest)->number + 1});
    if (log.ok()) (void)nodes->Remove(name);
    return log;
  }
  const size_t whole =
      store::kCatalogHeaderBytes +
      store::ReadLiveFiles(std::string_view(*bytes).substr(store::kCatalogHeaderBytes),
                           [](const store::CatalogEntry&) { return false; });
  auto fd = nodes->OpenToWrite(name);
  if (!fd.ok()) return fd.status();
  // A frame that was being written at a crash.
  if (whole < bytes->size() && ftruncate(fd->get(), static_cast<off_t>(whole)) != 0) {
    return ErrnoStatus(errno, "cut", name);
  }
  NodeLog log(nodes, **newest, *std::move(fd));
  log.bytes_ = whole;
  log.bytes_then_ = whole;
  return log;
}

absl::Status NodeLog::Append(std::string_view frames) {
  // Where a part of it was written, the next one is written over that.
  if (absl::Status s = WriteAt(fd_.get(), frames, bytes_, ToString(name_)); !s.ok()) return s;
  bytes_ += frames.size();
  return absl::OkStatus();
}

absl::Status NodeLog::CheckName() const {
  const auto there = nodes_->ModifiedAt(ToString(name_));
  if (absl::IsNotFound(there.status())) {
    return absl::AbortedError("another node has taken over " + ToString(name_));
  }
  return there.status();
}

absl::Status NodeLog::MaybeCompact(TimeNs now) {
  if (now >= old_goes_at_) {
    old_goes_at_ = kNever;
    if (absl::Status s = nodes_->Remove(old_name_); !s.ok()) return s;
  }
  if (old_goes_at_ != kNever) return absl::OkStatus();
  if (bytes_ < kCompactBytesMin || bytes_ / 2 < bytes_then_) return absl::OkStatus();
  bytes_then_ = bytes_;  // Whatever comes of it: not again at once.
  if (absl::Status s = Compact(); !s.ok()) return s;
  old_goes_at_ = now + kOldStaysFor;
  return absl::OkStatus();
}

absl::Status NodeLog::Compact() {
  const auto bytes = nodes_->Read(ToString(name_), 0, kLogBytesMax);
  if (!bytes.ok()) return bytes.status();
  const LogName next{name_.node, name_.number + 1};
  std::string compact = store::EncodeCatalogHeader({next.node, next.number});
  store::CatalogFrame frame;
  store::ReadLiveFiles(std::string_view(*bytes).substr(store::kCatalogHeaderBytes),
                       [&](const store::CatalogEntry& file) {
                         frame.Add(file);
                         if (frame.full()) compact += frame.Take(name_.node);
                         return true;
                       });
  compact += frame.Take(name_.node);
  const std::string temporary = ".tmp-" + ToString(next);
  (void)nodes_->Remove(temporary);  // Of a crash.
  auto fd = nodes_->Create(temporary);
  if (!fd.ok()) return fd.status();
  absl::Status status = WriteAt(fd->get(), compact, 0, temporary);
  if (status.ok()) status = nodes_->Rename(temporary, ToString(next));
  if (!status.ok()) {
    (void)nodes_->Remove(temporary);
    return status;
  }
  old_name_ = ToString(std::exchange(name_, next));
  fd_ = *std::move(fd);
  bytes_ = bytes_then_ = compact.size();
  return absl::OkStatus();
}

void NodeLog::RemoveOlder(const Folder& nodes, const LogName& name) {
  const auto names = nodes.List();
  if (!names.ok()) return;
  for (const std::string& other : *names) {
    const std::optional<LogName> parsed = ParseLogName(other);
    const bool older =
        parsed.has_value() && parsed->node == name.node && parsed->number < name.number;
    if (older) (void)nodes.Remove(other);
  }
}

absl::Status ReadLogFiles(const Folder& nodes, const std::string& name,
                          absl::FunctionRef<bool(const store::CatalogEntry& file)> visit) {
  const auto bytes = nodes.Read(name, 0, kLogBytesMax);
  if (!bytes.ok()) return bytes.status();
  const auto header = store::DecodeCatalogHeader(*bytes);
  if (!header.ok()) return header.status();
  store::ReadLiveFiles(std::string_view(*bytes).substr(store::kCatalogHeaderBytes), visit);
  return absl::OkStatus();
}

absl::Status ReadNodeFiles(const Folder& nodes, const store::NodeId& node,
                           absl::FunctionRef<bool(const store::CatalogEntry& file)> visit) {
  const auto newest = FindLog(nodes, node);
  if (!newest.ok()) return newest.status();
  if (!newest->has_value()) return absl::OkStatus();
  return ReadLogFiles(nodes, ToString(**newest), visit);
}

}  // namespace kvstream::catalog
