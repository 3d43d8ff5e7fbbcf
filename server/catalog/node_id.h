// Which node this is, for those who share a tier with it: drawn once, kept on a tier that is its
// own.
//
// Thread rule: any; blocks. Errors: as ErrnoStatus; DATA_LOSS where the file is none of ours: it is
// for an operator to say which node this is, or to remove it.
#pragma once

#include "absl/status/statusor.h"
#include "server/store/catalog_log.h"

namespace kvstream::catalog {

// Below the root of the tier that keeps it: 32 hexadecimal digits and an end of line.
inline constexpr char kNodeIdPath[] = "v1/node";

// Draws one where there is none yet.
absl::StatusOr<store::NodeId> LoadNodeId(int home_fd);

}  // namespace kvstream::catalog
