#include "server/catalog/node_log.h"

#include <algorithm>
#include <charconv>

#include "server/base/random.h"

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

absl::StatusOr<NodeLog> NodeLog::Open(const Folder* nodes, const store::NodeId& node,
                                      uint64_t after) {
  const auto newest = FindLog(*nodes, node);
  if (!newest.ok()) return newest.status();
  const LogName name{node, std::max(after, newest->has_value() ? (*newest)->number : 0) + 1};
  std::string bytes = store::EncodeCatalogHeader({name.node, name.number});
  store::CatalogFrame frame;
  if (newest->has_value()) {
    const absl::Status read =
        ReadLogFiles(*nodes, ToString(**newest), [&](const store::CatalogEntry& file) {
          frame.Add(file);
          if (frame.full()) bytes += frame.Take(node);
          return true;
        });
    // One that is none says nothing.
    if (!read.ok() && !absl::IsDataLoss(read)) return read;
  }
  bytes += frame.Take(node);
  const std::string temporary =
      ".tmp-" + ToString(name) + "-" + ToHex(store::NodeId{RandomBytes16()});
  auto fd = nodes->Create(temporary);
  if (!fd.ok()) return fd.status();
  absl::Status status = WriteAt(fd->get(), bytes, 0, temporary);
  // Before it has its name: else a crash might leave the name with less than there was.
  if (status.ok()) status = Flush(fd->get(), temporary);
  if (status.ok()) status = nodes->Rename(temporary, ToString(name));
  if (!status.ok()) {
    (void)nodes->Remove(temporary);
    return status;
  }
  return NodeLog(nodes, name, *std::move(fd), bytes.size());
}

absl::Status NodeLog::Append(std::string_view frames) {
  // Where a part of it was written, the next one is written over that.
  if (absl::Status s = WriteAt(fd_.get(), frames, bytes_, ToString(name_)); !s.ok()) return s;
  // Others see it only then, on a file system that keeps what is written until it is flushed.
  if (absl::Status s = Flush(fd_.get(), ToString(name_)); !s.ok()) return s;
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

absl::Status NodeLog::Maintain(TimeNs now) {
  if (!older_go_at_.has_value()) older_go_at_ = now + kOlderStayFor;
  if (now >= *older_go_at_ && *older_go_at_ != kNever) {
    if (absl::Status s = RemoveOlder(); !s.ok()) return s;
    older_go_at_ = kNever;
  }
  if (bytes_ < kCompactBytesMin || bytes_ / 2 < bytes_then_) return absl::OkStatus();
  bytes_then_ = bytes_;  // Whatever comes of it: not again at once.
  auto fresh = Open(nodes_, name_.node);
  if (!fresh.ok()) return fresh.status();
  *this = *std::move(fresh);
  return absl::OkStatus();
}

absl::Status NodeLog::RemoveOlder() const {
  const auto names = nodes_->List();
  if (!names.ok()) return names.status();
  for (const std::string& other : *names) {
    const std::optional<LogName> parsed = ParseLogName(other);
    const bool older =
        parsed.has_value() && parsed->node == name_.node && parsed->number < name_.number;
    if (!older) continue;
    if (absl::Status s = nodes_->Remove(other); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status ReadLogFiles(const Folder& nodes, const std::string& name,
                          absl::FunctionRef<bool(const store::CatalogEntry& file)> visit,
                          uint64_t* end) {
  const auto bytes = nodes.Read(name, 0, kLogBytesMax);
  if (!bytes.ok()) return bytes.status();
  if (bytes->size() == kLogBytesMax) {
    return absl::ResourceExhaustedError(name + " is too long to be read");
  }
  const auto header = store::DecodeCatalogHeader(*bytes);
  if (!header.ok()) return header.status();
  const uint64_t whole =
      store::ReadLiveFiles(std::string_view(*bytes).substr(store::kCatalogHeaderBytes), visit);
  if (end != nullptr) *end = store::kCatalogHeaderBytes + whole;
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
