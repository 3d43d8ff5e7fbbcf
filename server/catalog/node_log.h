// The log in which a node says what it publishes on a shared tier, and what it gives up there:
// v1/catalog/nodes/<node>.<number>.log, appended to by that node alone. Each start, and each time
// that it has become much longer than what it says, writes it anew under a number that nobody has
// had, without what is gone: so no two writers ever share a file. The log before stays for a
// minute, for those who follow it to read its rest.
//
// Thread rule: one thread. Errors: as Folder; RESOURCE_EXHAUSTED for a log that is too long to be
// read. Ownership: borrows the folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/types.h"
#include "server/base/unique_fd.h"
#include "server/catalog/folder.h"
#include "server/store/catalog_log.h"

namespace kvstream::catalog {

inline constexpr char kNodesFolder[] = "v1/catalog/nodes";

// Of a log's file. The number has 16 digits, so that names sort.
struct LogName {
  store::NodeId node;
  uint64_t number = 0;
};
std::string ToString(const LogName& name);
std::optional<LogName> ParseLogName(std::string_view name);

// The newest log of the node; nothing where it has none.
absl::StatusOr<std::optional<LogName>> FindLog(const Folder& nodes, const store::NodeId& node);

class NodeLog {
 public:
  // Begins a log with what the node's newest says is there, numbered behind that and behind
  // `after`. Takes twice its length in memory. UNIMPLEMENTED: the newest is of a version that this
  // build does not know.
  static absl::StatusOr<NodeLog> Open(const Folder* nodes, const store::NodeId& node,
                                      uint64_t after = 0);

  // All of it, flushed, or, after an error, nothing that a reader takes for whole.
  absl::Status Append(std::string_view frames);
  // Removes those before, in their time, and writes it anew where that may be worth it.
  absl::Status Maintain(TimeNs now);
  // ABORTED: somebody has taken it, and what is appended is read by nobody.
  absl::Status CheckName() const;

  uint64_t bytes() const { return bytes_; }
  const LogName& name() const { return name_; }

 private:
  // Below this it is not worth it.
  static constexpr uint64_t kCompactBytesMin = kMiB;
  static constexpr TimeNs kOlderStayFor = 60 * kSecond;

  NodeLog(const Folder* nodes, LogName name, UniqueFd fd, uint64_t bytes)
      : nodes_(nodes), name_(name), fd_(std::move(fd)), bytes_(bytes), bytes_then_(bytes) {}
  absl::Status RemoveOlder() const;

  const Folder* nodes_;
  LogName name_;
  UniqueFd fd_;
  uint64_t bytes_;
  uint64_t bytes_then_;  // When it was begun.
  // Nothing: not known yet; kNever: they are gone.
  std::optional<TimeNs> older_go_at_;
};

// The files that a log says are there, in the order in which they came; false ends it. `end`: where
// its last whole frame ends. Takes twice
// the log's length in memory. Errors: those of DecodeCatalogHeader, too.
absl::Status ReadLogFiles(const Folder& nodes, const std::string& name,
                          absl::FunctionRef<bool(const store::CatalogEntry& file)> visit,
                          uint64_t* end = nullptr);
// The same of the node's newest log. OK where there is none.
absl::Status ReadNodeFiles(const Folder& nodes, const store::NodeId& node,
                           absl::FunctionRef<bool(const store::CatalogEntry& file)> visit);

}  // namespace kvstream::catalog
