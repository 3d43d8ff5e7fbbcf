// Brings back into the index what was on the tiers before this start, while the engine already
// serves: what is not found yet is a miss. A file system that takes a tier's place is looked
// through in the same way.
//
// Of a tier of our own both the index snapshot and a walk tell what is there. Of a shared tier the
// snapshot alone does, which lies on the first tier that is not shared, and its files are looked
// for by nobody.
//
// Thread rule: the engine loop; Stop once the loop has ended. Ownership: borrows the parts.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/base/unique_fd.h"
#include "server/engine/asides.h"
#include "server/engine/capacity.h"
#include "server/engine/events.h"
#include "server/engine/evictor.h"
#include "server/engine/restore_api.h"
#include "server/engine/restore_run.h"
#include "server/engine/stats.h"
#include "server/store/chunk_index.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

class Restorer {
 public:
  struct Parts {
    std::vector<tier::Tier*> tiers;
    store::ChunkIndex* index = nullptr;
    Asides* asides = nullptr;
    const Evictor* evictor = nullptr;
    EventPoster* poster = nullptr;
    EngineStats* stats = nullptr;
  };
  // Nothing: tiers are taken for empty. `capacities` by TierId; those that are absent have no
  // limit.
  Restorer(const Parts& parts, const std::optional<RestartOptions>& options,
           std::vector<CapacityOptions> capacities);
  Restorer(const Restorer&) = delete;
  Restorer& operator=(const Restorer&) = delete;
  ~Restorer();

  // A file system and the path on it.
  struct Home {
    // The caller's own; invalid where there is none.
    UniqueFd root;
    std::string path;
  };
  // Where the index snapshot of a tier lies.
  Home HomeOf(TierId tier) const;
  // Whether what was on the tier is still being looked for.
  bool Restoring(TierId tier) const { return keeps_[tier.value].run != nullptr; }
  // Whether the index has all that the tier's snapshot had, so that another may take its place.
  bool SnapshotRead(TierId tier) const;

  void OnOpened(const SnapshotOpened& event);
  void OnFound(const FilesFound& event, TimeNs now);
  void OnRestored(const TierRestored& event);

  // Begins with tiers that are new, or on a new file system.
  void Tick(TimeNs now);
  TimeNs NextDeadline() const;
  void PublishStats();

  // Runs that have not ended by `deadline` are left behind.
  void Stop(TimeNs deadline);

 private:
  struct Keep {
    CapacityOptions capacity;
    // Of the file system that is, or was, looked through.
    std::optional<uint64_t> mount;
    std::shared_ptr<RestoreRun> run;
    bool snapshot_read = false;
    // The tier has, or may have, more than it may since its limit was lowered. What its snapshot
    // says is waited for until then.
    bool settling = false;
    TimeNs opens_by = kNever;
  };
  // A file system that does not answer shall not keep the daemon from being ready.
  static constexpr TimeNs kOpensIn = 10 * kSecond;

  void Begin(TierId tier, TimeNs now);
  bool IsOf(TierId tier, uint64_t mount) const { return keeps_[tier.value].mount == mount; }

  const Parts parts_;
  const std::optional<RestartOptions> options_;
  std::deque<Keep> keeps_;  // By TierId.
};

}  // namespace kvstream::engine
