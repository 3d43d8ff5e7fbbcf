// What is heard of other nodes' files on a shared tier, as plain structs: events of the thread that
// listens (CatalogRun) for the loop (Cataloguer).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "server/base/types.h"
#include "server/catalog/options.h"
#include "server/engine/restore_api.h"

namespace kvstream::engine {

struct CatalogOptions {
  // From one look at the catalog to the next.
  TimeNs every = kSecond;
  // The use of another node's chunk is told this often at most.
  TimeNs use_every = 600 * kSecond;
  catalog::CatalogTimes times;
};

class CatalogRun;

struct HintsHeard {
  TierId tier;
  // tier::TierRoot::mount of the file system that it was heard on.
  uint64_t mount = 0;
  // Another node has taken over this one's files: they are no longer its own. Before all else.
  bool disowned = false;
  // Files of a node that is gone, which are this one's from now on.
  std::vector<FoundFile> adopted;
  // All that is there is told from here on; or was told up to here, and what was not is gone.
  bool telling_all = false;
  bool all_told = false;
  std::vector<FoundFile> files;
  std::vector<KeyDigest> gone;
  // Siblings of chunks that others have used.
  std::vector<SiblingsId> used;
  // To be told that they were taken: it waits for that.
  std::shared_ptr<CatalogRun> run;
};

}  // namespace kvstream::engine
