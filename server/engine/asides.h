// Files on their way out of their names: a damaged one is renamed, checked again and deleted by its
// tier, one that is given up is deleted, and then the name is free.
//
// Thread rule: the engine loop.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "server/base/quiet_period.h"
#include "server/base/types.h"
#include "server/engine/stats.h"
#include "server/store/chunk_index.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

// Hears which names of a tier change hands. Called on the loop.
class NameListener {
 public:
  virtual ~NameListener() = default;
  // The index has it.
  virtual void OnPublished(TierId tier, const store::ChunkFacts& chunk) = 0;
  // It leaves its name, or is about to.
  virtual void OnGone(TierId tier, const KeyDigest& key) = 0;
};

class Asides {
 public:
  Asides(std::vector<tier::Tier*> tiers, EngineStats* stats)
      : tiers_(std::move(tiers)), stats_(stats) {}

  // Is told of every attempt as it begins. Set once, before the first.
  void SetWatcher(std::function<void(TierId, const std::string& path)> watcher) {
    watcher_ = std::move(watcher);
  }

  // Hears of it all from now on; null: nobody does.
  void SetListener(NameListener* listener) { listener_ = listener; }

  // `done` runs on the loop once the name is free, or the attempt failed. `replace`: see
  // tier::SetAsideRequest.
  void Begin(TierId tier, const std::string& path, const KeyDigest& key,
             absl::AnyInvocable<void()> done, absl::AnyInvocable<int()> replace = nullptr);
  // The file is given up, whatever it is: `done` runs on the loop once it is gone, or could not be
  // unlinked.
  using GivenUp = absl::AnyInvocable<void(bool unlinked, TimeNs now)>;
  void GiveUp(TierId tier, const std::string& path, const KeyDigest& key, GivenUp done);
  // The same for an attempt that runs already; false, and nothing happens, when none does.
  bool WhenDone(TierId tier, const std::string& path, absl::AnyInvocable<void()> done);
  void OnCompletion(const tier::Completion& completion, TimeNs now);
  bool empty() const { return running_.empty(); }

  // From now on, or no longer, notes which names of a tier change hands, in order to tell what was
  // seen before from what is there: a file leaves one here, or is published. Each time it begins
  // anew.
  void NoteChanges(TierId tier, bool on);
  // `own`: this daemon has written it.
  void NotePublished(TierId tier, const store::ChunkFacts& chunk, bool own);
  bool HasChanged(TierId tier, const KeyDigest& key) const {
    return changed_[tier.value].has_value() && changed_[tier.value]->contains(key);
  }

  // A file that is known to be damaged and has its name all the same, until it is set aside or is
  // trusted again: a store that meets it shall replace it, however sound its header looks.
  void Suspect(TierId tier, const KeyDigest& key) { suspects_.emplace(tier, key); }
  void Trust(TierId tier, const KeyDigest& key) { suspects_.erase({tier, key}); }
  bool Suspected(TierId tier, const KeyDigest& key) const {
    return suspects_.contains({tier, key});
  }

 private:
  struct Aside {
    TierId tier;
    KeyDigest key;
    GivenUp given_up;  // Null: it is damaged.
    std::unique_ptr<const std::string> path;
    std::vector<absl::AnyInvocable<void()>> done;
  };

  std::pair<Ticket, Aside*> Begin(TierId tier, const std::string& path, const KeyDigest& key);
  void NoteFailure(const Aside& aside, const tier::Completion& completion, TimeNs now);

  const std::vector<tier::Tier*> tiers_;
  EngineStats* const stats_;
  std::function<void(TierId, const std::string&)> watcher_ = [](TierId, const std::string&) {};
  NameListener* listener_ = nullptr;
  absl::flat_hash_map<Ticket, Aside> running_;
  absl::flat_hash_set<std::pair<TierId, KeyDigest>> suspects_;
  std::array<std::optional<absl::flat_hash_set<KeyDigest>>, kTiersMax> changed_;
  uint64_t next_ticket_ = 1;
  std::array<QuietPeriod, kTiersMax> failure_quiet_;
  std::array<QuietPeriod, kTiersMax> eviction_quiet_;
};

}  // namespace kvstream::engine
