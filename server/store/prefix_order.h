// In which order tiers give chunks up: those that nobody has used for longest first, and of a
// prefix its end before its beginning, since a chunk is of use only where all before it are.
//
// What is used and given up is a set: the siblings that differ only in group and shard. A set knows
// the one before it in its prefix, as stores and lookups have told. Using a set uses those before
// it after it, and one that comes to a tier is put just behind the nearest of those: so on each
// tier a set is older than all that are before it.
//
// Thread rule: one thread. Ownership: it holds numbers alone; what they stand for is the index's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "server/base/types.h"

namespace kvstream::store {

class PrefixOrder {
 public:
  using Set = uint32_t;
  static constexpr Set kNone = UINT32_MAX;

  PrefixOrder();
  PrefixOrder(const PrefixOrder&) = delete;
  PrefixOrder& operator=(const PrefixOrder&) = delete;

  // So many sets more will be made soon.
  void Reserve(uint64_t sets) { by_id_.reserve(by_id_.size() + sets); }
  // A set lives while it has members, or others come after it.
  Set AddMember(SiblingsId id);
  void DropMember(Set set);
  // A member's file on a tier. `oldest`: older than all others that are there.
  void AddFile(Set set, TierId tier, bool oldest = false);
  void DropFile(Set set, TierId tier);

  // `set` comes right after the set of this id, which need not have members. The first word stands:
  // false where there was one. Of a set that has files the order is right after the next Touch.
  bool Follow(Set set, SiblingsId before);
  // The set and all before it are used now, `now` of a clock of the caller's in seconds. No-op
  // within kTouchEvery of the last time, unless forced.
  void Touch(Set set, uint32_t now, bool force = false);
  static constexpr uint32_t kTouchEvery = 10;

  // The next one that has files on the tier, of those that `may_go`; kNone when there is none
  // among the first kLookAt. Those that may not are in use, with all before them: they are young
  // from now on, and do not stand in the way the next time.
  Set Oldest(TierId tier, absl::FunctionRef<bool(Set)> may_go);
  static constexpr size_t kLookAt = 256;

  // Goes through the sets that have files on the tier, oldest first; kNone at the end. One walk of
  // a tier at a time, each call of BeginWalk begins anew. A set that is used meanwhile comes again
  // as young as it is then; one that is placed behind the walk is missed.
  void BeginWalk(TierId tier) { walks_[tier.value] = ends_[tier.value].oldest; }
  Set WalkOn(TierId tier);

  // kNone where it is not known.
  Set Find(SiblingsId id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? kNone : *found;
  }
  SiblingsId IdOf(Set set) const { return sets_[set].id; }
  // What comes right before it, as far as that is known.
  std::optional<SiblingsId> BeforeOf(Set set) const;
  // Ids of the sets that have files on the tier, oldest first; for tests.
  std::vector<uint64_t> ByAge(TierId tier) const;
  // When it was last touched; 0: never.
  uint32_t TouchedAt(Set set) const { return sets_[set].touched; }
  // For a set that was used before it was known here.
  void SetTouchedAt(Set set, uint32_t touched) { sets_[set].touched = touched; }
  // Whether some set before it, as far as is known, has no members: then no prefix reaches it. What
  // was found out in a round of looks, 1 .. 32767, is taken as it was until the round ends.
  bool IsCutOff(Set set, uint16_t round);
  // Numbers of sets are below this.
  Set bound() const { return static_cast<Set>(sets_.size()); }
  bool HasMembers(Set set) const { return sets_[set].members > 0; }
  size_t size() const { return by_id_.size(); }
  uint64_t memory_bytes() const;

 private:
  // Among the sets that have files on a tier, by age.
  struct Links {
    Set older = kNone;
    Set younger = kNone;
    uint32_t files = 0;
  };
  struct Record {
    SiblingsId id;
    Set before = kNone;      // Of a free one: the next free one.
    uint32_t followers = 0;  // Sets right after it.
    uint32_t touched = 0;
    uint32_t members = 0;
    uint16_t looked_at = 0;  // 2 * round + 1 where it was cut off.
  };
  struct Ends {
    Set oldest = kNone;
    Set youngest = kNone;
  };
  struct IdHash {
    using is_transparent = void;
    const std::deque<Record>* sets;
    size_t operator()(SiblingsId id) const { return id.value; }  // A digest is uniform.
    size_t operator()(Set set) const { return (*sets)[set].id.value; }
  };
  struct IdEqual {
    using is_transparent = void;
    const std::deque<Record>* sets;
    SiblingsId Of(SiblingsId id) const { return id; }
    SiblingsId Of(Set set) const { return (*sets)[set].id; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return Of(a) == Of(b);
    }
  };

  Set FindOrMake(SiblingsId id);
  void MaybeForget(Set set);
  void Unlink(Set set, size_t tier);
  // How far back the place of a set is looked for, where a tier lacks much of its prefix.
  static constexpr size_t kNearestMax = 4096;

  void MakeYoung(Set set);
  void PlaceAnew(Set set);
  // Of the sets before it, the nearest that has files on the tier; kNone where there is none.
  Set Nearest(Set set, size_t tier) const;
  // Into the list, just older than `next`; kNone: as the youngest.
  void Insert(Set set, size_t tier, Set next);
  bool HasFiles(Set set, size_t tier) const {
    return set < links_[tier].size() && links_[tier][set].files > 0;
  }

  std::deque<Record> sets_;
  std::array<std::deque<Links>, kTiersMax> links_;  // By set, as far as it was needed.
  std::array<Ends, kTiersMax> ends_;
  std::array<Set, kTiersMax> walks_;  // What comes next.
  absl::flat_hash_set<Set, IdHash, IdEqual> by_id_;
  Set free_ = kNone;
  std::vector<Set> path_;  // Of a walk.
};

}  // namespace kvstream::store
