// Lookups, answered from the index: a chunk is present while it could be read, from the staging
// pool or from a tier in service. A large one is cut into pieces of a bounded number of keys, one
// a turn, so that it does not hold up the loop.
//
// Thread rule: the engine loop.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/base/types.h"
#include "server/engine/api.h"
#include "server/engine/leases.h"
#include "server/engine/sessions.h"
#include "server/engine/stats.h"
#include "server/sched/router.h"
#include "server/store/chunk_index.h"

namespace kvstream::engine {

class Cataloguer;

class Lookups {
 public:
  struct Parts {
    store::ChunkIndex* index = nullptr;
    Leases* leases = nullptr;
    Sessions* sessions = nullptr;
    EngineStats* stats = nullptr;
    const sched::Router* router = nullptr;
    uint32_t tiers = 0;
  };
  explicit Lookups(const Parts& parts) : parts_(parts) {}

  // Is told what is used; once, before the first.
  void SetCataloguer(Cataloguer* cataloguer) { cataloguer_ = cataloguer; }

  void Begin(Lookup lookup, TimeNs now);
  // A turn's worth of work on them all, in their turn.
  void Pump(TimeNs now);
  // Replies to those that are through. Apart from Pump, so that the turn's numbers are published
  // before anybody hears of what they count.
  void SendReplies();
  bool empty() const { return running_.empty(); }

 private:
  static constexpr size_t kDigestsPerTurn = 4096;
  // How far ahead the processor fetches: each look takes some 20 ns, and memory 100.
  static constexpr size_t kAhead = 8;

  struct Running {
    Lookup lookup;
    LookupResult result;
    size_t next = 0;  // The next key.
    bool run_broken = false;
    std::optional<KeyDigest> last_hint;  // Of the run.
    bool learned = false;                // Which chunks come after which.
    std::vector<KeyDigest> found;        // For the lease.
    TimeNs began = 0;
  };

  size_t KeysOf(const Lookup& lookup) const { return lookup.digests.size() / lookup.members; }
  // What is known of the key's first member; `before`: of the key's before it.
  store::Presence Examine(Running& running, size_t key, TierSet in_service,
                          const store::Presence& before);
  bool Advance(Running& running, size_t* digests_left);
  void Finish(Running& running, TimeNs now);

  struct Answer {
    absl::AnyInvocable<void(absl::StatusOr<LookupResult>)> reply;
    absl::StatusOr<LookupResult> result;
  };

  const Parts parts_;
  Cataloguer* cataloguer_ = nullptr;
  std::deque<Running> running_;
  std::vector<Answer> answers_;
};

}  // namespace kvstream::engine
