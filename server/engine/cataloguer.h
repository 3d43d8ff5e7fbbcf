// Tells other nodes, by the catalog of a shared tier, what this one publishes there, gives up and
// uses, and takes what they tell into the index: hints, which a read that does not find the file
// withdraws. A chunk that another node has stored is a hit here a few seconds later.
//
// Thread rule: the engine loop; Stop once the loop has ended. Ownership: borrows the parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "server/base/quiet_period.h"
#include "server/base/types.h"
#include "server/catalog/stats.h"
#include "server/engine/asides.h"
#include "server/engine/capacity.h"
#include "server/engine/catalog_api.h"
#include "server/engine/catalog_run.h"
#include "server/engine/events.h"
#include "server/engine/evictor.h"
#include "server/engine/restorer.h"
#include "server/engine/stats.h"
#include "server/store/catalog_log.h"
#include "server/store/chunk_index.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

class Cataloguer final : public NameListener {
 public:
  struct Parts {
    std::vector<tier::Tier*> tiers;
    store::ChunkIndex* index = nullptr;
    const Evictor* evictor = nullptr;
    const Restorer* restorer = nullptr;
    EventPoster* poster = nullptr;
    EngineStats* stats = nullptr;
  };
  // Nothing: no catalogs. `capacities` by TierId: of shared tiers with hints_max above 0.
  Cataloguer(const Parts& parts, const std::optional<CatalogOptions>& options,
             const std::vector<CapacityOptions>& capacities);
  Cataloguer(const Cataloguer&) = delete;
  Cataloguer& operator=(const Cataloguer&) = delete;
  ~Cataloguer();

  void OnPublished(TierId tier, const store::ChunkFacts& chunk) override;
  void OnGone(TierId tier, const KeyDigest& key) override;
  // The chunk, of which a tier has another node's file, and all before it in its prefix were used
  // here.
  void OnUsed(const KeyDigest& key, TimeNs now);
  void OnHeard(const HintsHeard& event, TimeNs now);

  // Begins with tiers that are new, or on a new file system, and hands on what is to be said.
  void Tick(TimeNs now);
  TimeNs NextDeadline() const;
  void PublishStats(TimeNs now);

  // Says what waits. Runs that have not ended by `deadline` are left behind.
  void Stop(TimeNs deadline);

 private:
  // Full frames that wait for a file system that does not answer: 16 MiB. More is not said.
  static constexpr size_t kUnsaidMax = 64;
  // Chunks of others whose use was told lately.
  static constexpr size_t kUsesMax = 65536;
  // Of the index, in a turn.
  static constexpr size_t kForgetAtOnce = 8192;
  // A look that takes longer hangs.
  static constexpr TimeNs kLookMax = 30 * kSecond;

  struct Keep {
    // Of other nodes' files; 0: no catalog of this tier.
    uint64_t hints_max = 0;
    TimeNs gone_after = 0;
    std::optional<uint64_t> mount;
    std::shared_ptr<CatalogRun> run;
    // Of all its runs, which may hang for longer than this lives.
    std::shared_ptr<catalog::CatalogStats> counts = std::make_shared<catalog::CatalogStats>();
    std::optional<TimeNs> began_at;  // Its thread.
    // While all that is there is told, and what was not is looked for: what was told.
    std::optional<absl::flat_hash_set<KeyDigest>> told;
    std::optional<uint32_t> forget_at;  // Of the index's walk.
    store::CatalogFrame frame;
    TimeNs say_at = kNever;  // What is in the frame.
    QuietPeriod unsaid_quiet;
    QuietPeriod failure_quiet;
  };

  // Of adopted files nobody knows when they were used last: a day ago, say.
  static constexpr uint32_t kAdoptedUnused = 86400;

  void Begin(TierId tier);
  void StartThread(TierId tier, TimeNs now);
  void GoWithout(TierId tier, const char* cause);
  void Disown(TierId tier);
  // Hints of which nobody says any more that they are there.
  void ForgetUntold(TierId tier);
  void TakeHint(const FoundFile& file, TierId tier);
  void Own(const FoundFile& file, TierId tier, TimeNs now);
  void Add(TierId tier, const store::CatalogEntry& entry);
  void Say(TierId tier);
  // What of a run's numbers is not in the tier's yet.
  void PublishRun(TierId tier, TimeNs now);

  const Parts parts_;
  const std::optional<CatalogOptions> options_;
  std::deque<Keep> keeps_;  // By TierId.
  absl::flat_hash_map<std::pair<TierId, SiblingsId>, TimeNs> uses_;
  TimeNs now_ = 0;  // Of the last turn.
};

}  // namespace kvstream::engine
