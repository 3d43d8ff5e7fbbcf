// Scrubs of tiers: begins them, when asked and by the clock, does the loop's part of what they
// find, and ends them. One at a time, and of it one tier after the other, each by a ScrubRun on a
// thread of its own. A run that hangs in a system call is left behind after ScrubOptions::patience.
//
// Thread rule: the engine loop; Stop once the loop has ended. Ownership: borrows the parts.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "server/base/types.h"
#include "server/engine/asides.h"
#include "server/engine/events.h"
#include "server/engine/scrub_api.h"
#include "server/engine/scrub_run.h"
#include "server/engine/stats.h"
#include "server/store/chunk_index.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

class Scrubber {
 public:
  struct Parts {
    std::vector<tier::Tier*> tiers;
    store::ChunkIndex* index = nullptr;
    Asides* asides = nullptr;
    // Of the events that a scrub posts; they come back here.
    EventPoster* poster = nullptr;
    EngineStats* stats = nullptr;
  };
  Scrubber(const Parts& parts, const ScrubOptions& options) : parts_(parts), options_(options) {}
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;
  // Stops it with no patience.
  ~Scrubber();

  // Asked for by somebody it takes the place of one that nobody asked for.
  void Begin(BeginScrub event);
  void OnDamaged(FileDamaged event);
  void OnRepaired(const FileRepaired& event);
  void OnTierScrubbed();

  // Begins the scrub that is due, but while the daemon drains; leaves a run behind that hangs.
  void Tick(bool draining, TimeNs now);
  TimeNs NextDeadline() const;
  bool running() const { return scrub_.has_value(); }

  // Ends the scrub that runs. One that has not ended by `deadline` is left behind with all that it
  // touches.
  void Stop(TimeNs deadline);

 private:
  // What the index knew of a key before its damaged file was taken out of it.
  struct Known {
    KeyDigest key;
    NamespaceId name_space;
    ChunkShape shape;
  };

  void Start(BeginScrub event);
  // Goes on with the next tier, or ends the scrub.
  void GoOn();
  absl::Status StartTier(TierId tier);
  // Of runs that were left behind, those that have ended since.
  void ForgetEnded();
  // In the numbers and the log, how the run has ended.
  void Record(const absl::Status& status);
  // Whether the tier is on another file system than that one.
  bool Remounted(TierId tier, uint64_t mount) const;
  // UNAVAILABLE where that is so of a tier that the run reads: what it finds is of no use.
  absl::Status WhetherRemounted() const;
  // The run of a tier is over.
  void Conclude(const absl::Status& status);

  const Parts parts_;
  const ScrubOptions options_;
  std::optional<BeginScrub> scrub_;  // With the tiers that are not begun.
  absl::Status outcome_;             // Of those that are over.
  TierId tier_;                      // Of the run.
  std::shared_ptr<ScrubRun> run_;
  TimeNs look_at_ = 0;                                     // Whether it hangs.
  TimeNs look_at_hung_ = kNever;                           // Whether they still do.
  std::optional<BeginScrub> next_;                         // Waits for the end of one by the clock.
  std::array<std::shared_ptr<ScrubRun>, kTiersMax> hung_;  // Left behind, by TierId.
  std::optional<Known> known_;                             // Of the last damaged file.
  std::optional<TimeNs> due_;
};

}  // namespace kvstream::engine
