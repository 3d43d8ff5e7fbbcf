// The one door into the engine: an event of api.h, catalog_api.h, index_api.h, restore_api.h or
// scrub_api.h, posted from any thread.
#pragma once

#include <variant>

#include "server/engine/api.h"
#include "server/engine/catalog_api.h"
#include "server/engine/index_api.h"
#include "server/engine/restore_api.h"
#include "server/engine/scrub_api.h"

namespace kvstream::engine {

using Event =
    std::variant<SessionConnected, BufferAttached, DropBuffer, HandoffClosed, StreamOpened,
                 StreamClosed, MessageArrived, Lookup, RegisterMemory, RegionOpened, RegionClosed,
                 UnregisterMemory, DeviceMemoryAttached, ListUsage, EvictChunks, SetTierInService,
                 Drain, BeginScrub, FileDamaged, FileRepaired, TierScrubbed, SnapshotOpened,
                 FilesFound, TierRestored, HintsHeard>;

// Thread-safe. Post never blocks and never calls back into the poster: sinks and replies are called
// later, on the engine loop. Callers may hold their own locks. Events of one caller keep their
// order. An event that the engine can no longer take is dropped, with its reply; a MessageArrived,
// whose credit calls back, never within Post.
class EventPoster {
 public:
  virtual ~EventPoster() = default;
  virtual void Post(Event event) = 0;
};

}  // namespace kvstream::engine
