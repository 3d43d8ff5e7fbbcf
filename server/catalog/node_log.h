// The log in which a node says what it publishes on a shared tier, and what it gives up there:
// v1/catalog/nodes/<node>.<number>.log, appended to by that node alone. It is written anew, under
// the next number, without what is gone, once that is worth it; a restart goes on with it, and
// learns from it what the node has published.
//
// Thread rule: one thread. Errors: as Folder. Ownership: borrows the folder.
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
  // Goes on behind what is whole of the newest log, or begins one, numbered from `after` on: who
  // follows the one before must not take it for that. UNIMPLEMENTED: the newest is of a version
  // that this build does not know.
  static absl::StatusOr<NodeLog> Open(const Folder* nodes, const store::NodeId& node,
                                      uint64_t after = 0);

  // All of it or, after an error, nothing that a reader takes for whole.
  absl::Status Append(std::string_view frames);
  // Where it may have become much longer than what it says. Takes twice its length in memory. The
  // log before stays for a while: who follows it has the rest of it to read.
  absl::Status MaybeCompact(TimeNs now);

  // ABORTED: somebody has taken it, and what is appended is read by nobody.
  absl::Status CheckName() const;

  uint64_t bytes() const { return bytes_; }
  const LogName& name() const { return name_; }

 private:
  // Below this it is not worth it.
  static constexpr uint64_t kCompactBytesMin = kMiB;
  static constexpr TimeNs kOldStaysFor = 60 * kSecond;

  NodeLog(const Folder* nodes, LogName name, UniqueFd fd)
      : nodes_(nodes), name_(name), fd_(std::move(fd)) {}
  static absl::StatusOr<NodeLog> Begin(const Folder* nodes, const LogName& name);
  absl::Status Compact();
  static void RemoveOlder(const Folder& nodes, const LogName& name);

  const Folder* nodes_;
  LogName name_;
  UniqueFd fd_;
  uint64_t bytes_ = 0;
  // When it was written anew, or opened.
  uint64_t bytes_then_ = 0;
  // The log before this one, until its time is over.
  std::string old_name_;
  TimeNs old_goes_at_ = kNever;
};

// The files that a log says are there, in the order in which they came; false ends it. Takes twice
// the log's length in memory. Errors: those of DecodeCatalogHeader, too.
absl::Status ReadLogFiles(const Folder& nodes, const std::string& name,
                          absl::FunctionRef<bool(const store::CatalogEntry& file)> visit);
// The same of the node's newest log. OK where there is none.
absl::Status ReadNodeFiles(const Folder& nodes, const store::NodeId& node,
                           absl::FunctionRef<bool(const store::CatalogEntry& file)> visit);

}  // namespace kvstream::catalog
