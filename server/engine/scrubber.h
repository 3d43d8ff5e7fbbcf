// Scrubs of tiers: begins them, when asked and by the clock, does the loop's part of what they
// find, and stops them. One runs at a time (ScrubRun), on a thread of its own.
//
// Thread rule: the engine loop; Stop once the loop has ended. Ownership: borrows the parts.
#pragma once

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

  void Begin(BeginScrub event);
  void OnDamaged(FileDamaged event);
  void OnRepaired(const FileRepaired& event);

  // Begins the scrub that is due, but while the daemon drains.
  void Tick(bool draining, TimeNs now);
  TimeNs NextDeadline() const;
  bool running() const { return run_ != nullptr && !run_->ended(); }

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

  absl::Status TryBegin(BeginScrub& event);

  const Parts parts_;
  const ScrubOptions options_;
  std::shared_ptr<ScrubRun> run_;  // The last one.
  std::optional<Known> known_;     // Of the last damaged file.
  std::optional<TimeNs> due_;
};

}  // namespace kvstream::engine
