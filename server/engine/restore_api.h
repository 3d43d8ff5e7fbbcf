// What is found of the files that were on a tier before this start, as plain structs: events of the
// threads that look (RestoreRun) for the loop (Restorer).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "server/base/chunk_shape.h"
#include "server/base/types.h"

namespace kvstream::engine {

struct RestartOptions {
  // From one index snapshot of a tier to the next; 0: only at a stop.
  TimeNs snapshot_every = 600 * kSecond;
  // How old temporary files are when they are taken for those of a daemon that is gone.
  TimeNs temporaries_grace = 3600 * kSecond;
  // How long a stop waits for a snapshot of which nothing more is written.
  TimeNs snapshot_patience = 3 * kSecond;
};

class RestoreRun;

// The snapshot of a tier was opened, or there is none that can be used.
struct SnapshotOpened {
  TierId tier;
  // tier::TierRoot::mount of the file system that is looked through.
  uint64_t mount = 0;
  // Of the files that it names, together, and how many they are.
  uint64_t file_bytes = 0;
  uint64_t files = 0;
};

struct FoundFile {
  KeyDigest key;
  SiblingsId siblings;
  NamespaceId name_space;
  ChunkShape shape;
  ContentId content;
  absl::InlinedVector<uint64_t, 1> checksums;
  // What comes right before it in its prefix, as far as that is known.
  std::optional<SiblingsId> before;
  uint32_t unused_seconds = 0;
};

// Files of a tier, from the youngest to the oldest as far as that is known.
struct FilesFound {
  TierId tier;
  uint64_t mount = 0;
  std::vector<FoundFile> files;
  // The snapshot names them, and they are not there.
  std::vector<KeyDigest> missing;
  // To be told that they were taken: it waits for that.
  std::shared_ptr<RestoreRun> run;
};

// All that the snapshot names was handed over, and then that no more comes.
struct TierRestored {
  TierId tier;
  uint64_t mount = 0;
  bool snapshot_read = false;
  bool ended = false;
};

}  // namespace kvstream::engine
