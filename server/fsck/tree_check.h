// Reads chunks and index snapshots below a tier's root and says what is sound, without a daemon:
// for an operator who does not know what a disk has kept. It writes nothing, and passes over what
// nodes tell each other (v1/catalog, v1/node), which is made anew at a start. A daemon may run
// meanwhile; what comes or goes then is seen or not.
//
// Thread rule: one thread; blocks for as long as the file system does. Ownership: the descriptor is
// borrowed. Errors: those of v1 itself, see tier::WalkChunks; NOT_FOUND: there is no v1.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/base/types.h"

namespace kvstream::fsck {

struct CheckOptions {
  // Reads headers alone: a file whose payload is damaged counts as sound.
  bool headers_only = false;
};

struct NamespaceFiles {
  uint64_t files = 0;
  // Of files.
  uint64_t bytes = 0;
  uint64_t damaged = 0;
};

struct TreeReport {
  // Chunk files that could be judged, by the folder that they lie in.
  std::map<NamespaceId, NamespaceFiles> namespaces;
  // Of all of them.
  NamespaceFiles all;
  // Files and folders that could not be read, which says nothing of them.
  uint64_t unreadable = 0;
  // Names that are none of a chunk's, and files of versions that this build does not know.
  uint64_t foreign = 0;
  // Files on their way into a name or out of it; a daemon removes old ones.
  uint64_t temporary = 0;
  // Index snapshots, and those of them that a start would not use.
  uint64_t snapshots = 0;
  uint64_t snapshots_unusable = 0;
};

// Calls `on_bad` with each file that is damaged, cannot be read, or is a snapshot of no use: its
// path below the root, and why.
absl::StatusOr<TreeReport> CheckTree(
    int root_fd, const CheckOptions& options,
    absl::FunctionRef<void(const std::string& path, const absl::Status& why)> on_bad);

}  // namespace kvstream::fsck
