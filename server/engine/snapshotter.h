// Writes the index snapshots of the tiers, now and then and at a stop: a few sets of the index in
// each turn of the loop, and the file by a thread of its own.
//
// Thread rule: the engine loop; WriteAll once the loop has ended. Ownership: borrows the parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "server/base/quiet_period.h"
#include "server/base/types.h"
#include "server/engine/restore_api.h"
#include "server/engine/restorer.h"
#include "server/engine/snapshot_run.h"
#include "server/engine/stats.h"
#include "server/store/chunk_index.h"
#include "server/store/index_snapshot.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

class Snapshotter {
 public:
  struct Parts {
    std::vector<tier::Tier*> tiers;
    store::ChunkIndex* index = nullptr;
    const Restorer* restorer = nullptr;
    EngineStats* stats = nullptr;
  };
  // Nothing: no snapshots.
  Snapshotter(const Parts& parts, const std::optional<RestartOptions>& options);
  Snapshotter(const Snapshotter&) = delete;
  Snapshotter& operator=(const Snapshotter&) = delete;
  // Gives up what is not whole.
  ~Snapshotter();

  void Tick(TimeNs now);
  TimeNs NextDeadline() const;

  // The last ones, of all that the index has now. Those that stand still are given up.
  void WriteAll(TimeNs now);

 private:
  static constexpr size_t kSetsAtOnce = 256;
  static constexpr size_t kPieceBytes = 256 * kKiB;
  // Where the thread cannot keep up the loop waits, for this long at a time.
  static constexpr size_t kUnwrittenMax = 4 * kMiB;
  static constexpr TimeNs kWait = 20 * kMillisecond;

  struct Keep {
    TimeNs due = 0;  // Of the next one, or of the next look at the one that is written.
    std::shared_ptr<SnapshotRun> run;
    std::optional<store::SnapshotWriter> writer;  // Until it has all.
    QuietPeriod failure_quiet;
  };

  bool Begin(TierId tier, TimeNs now);
  // Adds a few sets more; with `all`, the rest.
  void GoOn(TierId tier, bool all, TimeNs now);
  // For as long as more of it is written. Whether it has ended.
  bool WaitFor(SnapshotRun& run) const;
  // Says how it went.
  void Conclude(TierId tier, const absl::Status& status, TimeNs now);

  const Parts parts_;
  const std::optional<RestartOptions> options_;
  std::deque<Keep> keeps_;  // By TierId.
};

}  // namespace kvstream::engine
