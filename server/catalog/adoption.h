// Takes over the files of nodes that are gone, so that somebody gives them up in their time.
//
// A node whose log has not been written to for long, by the file system's own times, is taken for
// gone. Who renames its log, which only one can, has its files from then on, and leaves a mark that
// tells the node, if it ever comes back, that it has none. Nothing goes wrong where a node was only
// away: its files are read as before, and both may give one up.
//
// Thread rule: one thread. Errors: as Folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/catalog/folder.h"
#include "server/catalog/node_log.h"
#include "server/store/catalog_log.h"

namespace kvstream::catalog {

// A log that was taken, in the folder of the nodes.
struct Claim {
  LogName log;
  store::NodeId by;
};
std::string ToString(const Claim& claim);
std::optional<Claim> ParseClaim(std::string_view name);

// Takes the logs of nodes that have written nothing for so many seconds, measured by this node's
// own log, which was written just now. Returns all that this node has taken and not finished, those
// of an earlier start among them.
absl::StatusOr<std::vector<Claim>> TakeLogs(const Folder& nodes, const LogName& own,
                                            int64_t silent_seconds);
// The files of a taken log are this node's, and it has said so.
absl::Status FinishClaim(const Folder& nodes, const Claim& claim);

// The last of this node's logs that another one has taken, and finished with; 0: none.
absl::StatusOr<uint64_t> LastTaken(const Folder& nodes, const store::NodeId& node);
absl::Status ForgetTaken(const Folder& nodes, const store::NodeId& node);

}  // namespace kvstream::catalog
