// What operators ask of the whole index, as plain structs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/base/types.h"
#include "server/store/chunk_index.h"

namespace kvstream::engine {

// Chunks of one namespace, as the index knows them.
struct NamespaceUsage {
  // Of all that it has anywhere; payload bytes.
  store::ChunkIndex::Usage all;
  struct OnTier {
    // Files of our own, and their bytes.
    uint64_t files = 0;
    uint64_t bytes = 0;
    // Files of other nodes.
    uint64_t hints = 0;
  };
  // By TierId.
  std::vector<OnTier> tiers;
  // In the staging pool.
  uint64_t staged_chunks = 0;
  uint64_t staged_bytes = 0;
  // How long ago the last one was used, and the one that nobody has used for longest, of those that
  // were used here; min > max: none was.
  uint32_t unused_seconds_min = UINT32_MAX;
  uint32_t unused_seconds_max = 0;
};
using NamespaceUsages = std::map<NamespaceId, NamespaceUsage>;

// By namespace. It takes as long as the index is large, in slices; what changes meanwhile is
// counted as it was or as it is. UNAVAILABLE: the daemon stops.
struct ListUsage {
  absl::AnyInvocable<void(absl::StatusOr<NamespaceUsages>)> reply;
};

struct EvictResult {
  // Contents of chunks, and the bytes of their files of our own and of their copies in the pool.
  uint64_t chunks = 0;
  uint64_t bytes = 0;
  // Those that were asked for and stay: one of their siblings is leased, or still to be written.
  uint64_t kept = 0;
};

// An operator wants chunks to go, from the cache and from all tiers: those of which all is true.
// Files of other nodes are left to those. UNAVAILABLE: a tier has deleted nothing for a minute, and
// what it has stays; or the daemon drains or stops. RESOURCE_EXHAUSTED: too many wait.
struct EvictChunks {
  // Absent: of every namespace.
  std::optional<NamespaceId> name_space;
  // These, and what comes after them in their prefixes as far as that is known; empty: all.
  std::vector<SiblingsId> prefixes;
  // 0: whenever they were used.
  uint32_t unused_seconds_min = 0;
  // Only counts.
  bool dry_run = false;
  // Called once all deletions are under way.
  absl::AnyInvocable<void(absl::StatusOr<EvictResult>)> reply;
};

}  // namespace kvstream::engine
