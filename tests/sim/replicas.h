// What the simulation knows of the files on its tiers: which replicas are good, that is published
// whole, known to the engine and not harmed by the fault plan since. It decides what the plan may
// harm, so that every chunk that was once published keeps a good replica on a tier in service, and
// every read that runs keeps one of those that it began with. So a read that fails all the same is
// the engine's fault.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/base/types.h"
#include "server/tier/tier.h"
#include "tests/sim/journal.h"
#include "tests/sim/names.h"
#include "tests/support/fake_tier.h"
#include "tests/support/fault_plan.h"

namespace kvstream::sim {

class Replicas {
 public:
  using HopeId = uint64_t;

  // `deadlines`: whoever waits for a read that hangs gives up in time; else it holds its tier's
  // window for good, unless another replica saves it.
  Replicas(const Names* names, Journal* journal, bool deadlines)
      : names_(*names), journal_(*journal), deadlines_(deadlines) {}
  // By TierId. REQUIRES: before everything else.
  void SetTiers(std::vector<test::FakeTier*> tiers);

  // Whether a fault may harm a file, and if so notes that it does.
  bool MayHarm(TierId tier, uint32_t key, test::FaultPoint point, const test::Fault& fault);
  // Flips a byte of a published file, or removes it, where that may be.
  void DamageFile(TierId tier, uint32_t key, uint64_t at);
  void RemoveFile(TierId tier, uint32_t key);

  // Of the tiers' requests.
  void ReadBegan(TierId tier, uint32_t key) { at(tier, key).reads += 1; }
  void WriteBegan(TierId tier, uint32_t key) { at(tier, key).writes += 1; }
  void AsideBegan(TierId tier, uint32_t key) { at(tier, key).in_doubt = at(tier, key).writes > 0; }
  // The engine gives the file up, for want of room.
  void GivenUp(TierId tier, uint32_t key);
  void Ended(const tier::Completion& completion, uint32_t key);
  // After a turn: the engine knows now what has ended, and only these tiers were in service all
  // the time.
  void AfterTurn(TierSet usable);
  // The engine has forgotten everything, and nothing is under way.
  void Restart();

  TierSet good(uint32_t key) const { return good_[key]; }
  TierSet usable() const { return usable_; }
  // The file's content id, of a good replica.
  const ContentId& content(TierId tier, uint32_t key) const { return at(tier, key).content; }
  bool Published(TierId tier, uint32_t key) const;
  // The plan has removed it or made it unreadable since it was published, or the engine gave it up.
  bool Harmed(TierId tier, uint32_t key) const { return at(tier, key).harmed; }

  // Of a read of a chunk that begins now: what it may be read from. `staged`: from the pool too,
  // which nothing harms.
  HopeId BeginHope(uint32_t key, bool staged);
  // Whether something is left of it; `usable`: tiers in service for all of the turn so far.
  bool Hopeful(HopeId id, TierSet usable) const;
  void EndHope(HopeId id) { hopes_.erase(id); }

 private:
  struct Replica {
    uint32_t reads = 0;  // In flight.
    uint32_t writes = 0;
    // What a write meets there may be on its way out of its name, so that it is begun again.
    bool in_doubt = false;
    // While it has reads in flight that the plan has harmed, a new file is not sure to stay known.
    bool tainted = false;
    bool harmed = false;
    bool hangs = false;  // One of them never ends.
    ContentId content;
  };
  struct Hope {
    uint32_t key = 0;
    bool staged = false;
    TierSet tiers;
  };
  struct End {
    TierId tier;
    uint32_t key = 0;
    tier::Completion::Kind kind;
    absl::StatusCode code;
  };

  Replica& at(TierId tier, uint32_t key) { return replicas_[tier.value * names_.keys() + key]; }
  const Replica& at(TierId tier, uint32_t key) const {
    return replicas_[tier.value * names_.keys() + key];
  }
  // Who may serve instead of the tier's file of the key.
  TierSet Others(TierId tier, uint32_t key) const;
  // Whether `others` are enough for all that the file is good for.
  bool OthersServe(TierId tier, uint32_t key, TierSet others) const;
  // Good replicas of the content that the tier has a good one of.
  TierSet SameContent(TierId tier, uint32_t key) const;
  void Harm(TierId tier, uint32_t key);
  void Publish(TierId tier, uint32_t key);

  const Names& names_;
  Journal& journal_;
  const bool deadlines_;
  std::vector<test::FakeTier*> tiers_;
  std::vector<Replica> replicas_;
  std::vector<TierSet> good_;  // By key.
  TierSet usable_;
  std::map<HopeId, Hope> hopes_;
  HopeId last_hope_ = 0;
  std::vector<End> ended_;  // In this turn.
};

}  // namespace kvstream::sim
