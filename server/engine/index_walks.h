// What operators ask of the whole index: what each namespace has, and that chunks go. Both walk
// through the index by so much a turn, so that neither holds up the loop. Lists share a walk;
// evictions come one after the other, and wait for the deletions that are under way.
//
// Thread rule: the engine loop. Ownership: borrows the parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/base/types.h"
#include "server/engine/evictor.h"
#include "server/engine/index_api.h"
#include "server/engine/staging.h"
#include "server/engine/stats.h"
#include "server/store/chunk_index.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

class IndexWalks {
 public:
  // Evictions that may wait.
  static constexpr size_t kEvictionsMax = 16;
  // How long an eviction waits for a tier that deletes nothing.
  static constexpr TimeNs kPatience = 60 * kSecond;

  struct Parts {
    std::vector<tier::Tier*> tiers;
    store::ChunkIndex* index = nullptr;
    Evictor* evictor = nullptr;
    Staging* staging = nullptr;
    EngineStats* stats = nullptr;
  };
  explicit IndexWalks(const Parts& parts) : parts_(parts) {}
  IndexWalks(const IndexWalks&) = delete;
  IndexWalks& operator=(const IndexWalks&) = delete;

  void Begin(ListUsage list) { lists_.push_back(std::move(list)); }
  void Begin(EvictChunks evict);
  // Answers all evictions, and all lists, with this.
  void EndEvictions(const absl::Status& why);
  void EndLists(const absl::Status& why);

  // A turn's worth of work.
  void Pump(TimeNs now);
  // Replies to those that are through: once the turn's numbers are published.
  void SendReplies();
  TimeNs NextDeadline() const { return next_; }

 private:
  // What of the index is looked at in a turn.
  static constexpr size_t kBudget = 4096;
  // Of the way back through a prefix one step of so many is remembered.
  static constexpr size_t kRememberEvery = 16;

  struct Listing {
    uint32_t at = 0;
    NamespaceUsages usages;
    std::vector<ListUsage> asked;  // Before it began.
  };
  struct Eviction {
    EvictChunks asked;
    uint32_t at = 0;
    EvictResult done{};
    // What is looked at, until it is over with.
    std::optional<store::KnownSiblings> current{};
    // The way back from there, as far as it was gone.
    std::vector<SiblingsId> path{};
    // Whether these are of a prefix that was asked for.
    absl::flat_hash_map<SiblingsId, bool> in_prefix{};
    // They delete nothing, and are waited for no longer.
    TierSet given_up{};
  };

  bool GoOnListing(TimeNs now);
  void Count(const store::KnownSiblings& siblings, NamespaceUsages* usages) const;
  void AnswerLists();
  // True: it is through.
  bool GoOn(Eviction& eviction, size_t* budget, TimeNs now);
  // Whether they are among those that shall go. Nothing: the budget is used up.
  std::optional<bool> Matches(Eviction& eviction, size_t* budget) const;
  static bool IsYoung(const Eviction& eviction);
  std::optional<bool> IsInPrefix(Eviction& eviction, size_t* budget) const;
  bool MayGo(const store::KnownSiblings& siblings) const;
  // False: a tier has enough to delete for now.
  bool Evict(Eviction& eviction, TimeNs now);
  // Whether a tier that has files of them is waited for.
  bool Waits(Eviction& eviction, TimeNs now);
  void Answer(Eviction& eviction);

  const Parts parts_;
  std::vector<ListUsage> lists_;
  std::optional<Listing> listing_;
  std::deque<Eviction> evictions_;
  std::vector<absl::AnyInvocable<void()>> replies_;
  TimeNs next_ = kNever;
};

}  // namespace kvstream::engine
