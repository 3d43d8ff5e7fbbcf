#include "server/store/prefix_order.h"

#include <algorithm>

#include "server/base/check.h"

namespace kvstream::store {

PrefixOrder::PrefixOrder() : by_id_(0, IdHash{&sets_}, IdEqual{&sets_}) { walks_.fill(kNone); }

PrefixOrder::Set PrefixOrder::FindOrMake(SiblingsId id) {
  if (const auto found = by_id_.find(id); found != by_id_.end()) return *found;
  Set set = free_;
  if (set == kNone) {
    KV_CHECK(sets_.size() < kNone);
    set = static_cast<Set>(sets_.size());
    sets_.emplace_back();
  } else {
    free_ = sets_[set].before;
    sets_[set] = Record();
  }
  sets_[set].id = id;
  by_id_.insert(set);
  return set;
}

PrefixOrder::Set PrefixOrder::AddMember(SiblingsId id) {
  const Set set = FindOrMake(id);
  sets_[set].members += 1;
  return set;
}

void PrefixOrder::DropMember(Set set) {
  KV_CHECK(sets_[set].members > 0);
  sets_[set].members -= 1;
  MaybeForget(set);
}

// And those before it that were only known for its sake.
void PrefixOrder::MaybeForget(Set set) {
  while (set != kNone && sets_[set].members == 0 && sets_[set].followers == 0) {
    by_id_.erase(set);
    const Set before = sets_[set].before;
    sets_[set].before = free_;
    free_ = set;
    if (before != kNone) sets_[before].followers -= 1;
    set = before;
  }
}

void PrefixOrder::AddFile(Set set, TierId tier, bool oldest) {
  std::deque<Links>& links = links_[tier.value];
  if (links.size() <= set) links.resize(sets_.size());
  if (links[set].files++ > 0) return;
  Insert(set, tier.value, oldest ? ends_[tier.value].oldest : Nearest(set, tier.value));
}

void PrefixOrder::DropFile(Set set, TierId tier) {
  Links& links = links_[tier.value][set];
  KV_CHECK(links.files > 0);
  if (--links.files == 0) Unlink(set, tier.value);
}

bool PrefixOrder::Follow(Set set, SiblingsId before) {
  if (sets_[set].before != kNone || sets_[set].id == before) return false;
  const Set found = FindOrMake(before);
  // Hashes of prefixes make no rings; one by collision shall not end in an endless walk.
  for (Set at = sets_[set].followers > 0 ? found : kNone; at != kNone; at = sets_[at].before) {
    if (at != set) continue;
    MaybeForget(found);
    return false;
  }
  sets_[set].before = found;
  sets_[found].followers += 1;
  if (sets_[set].touched == 0) sets_[set].touched = sets_[found].touched;
  return true;
}

void PrefixOrder::Touch(Set set, uint32_t now, bool force) {
  if (!force && sets_[set].touched != 0 && now < sets_[set].touched + kTouchEvery) return;
  path_.clear();
  // What was used this second is young already, and so is all before it.
  for (Set at = set; at != kNone && (at == set || sets_[at].touched != now);
       at = sets_[at].before) {
    path_.push_back(at);
  }
  std::ranges::reverse(path_);
  for (const Set at : path_) {
    sets_[at].touched = now;
    PlaceAnew(at);
  }
}

void PrefixOrder::MakeYoung(Set set) {
  path_.clear();
  for (Set at = set; at != kNone; at = sets_[at].before) path_.push_back(at);
  std::ranges::reverse(path_);
  for (const Set at : path_) PlaceAnew(at);
}

// Just behind the nearest of those before it; the first of a prefix is the youngest.
void PrefixOrder::PlaceAnew(Set set) {
  for (size_t tier = 0; tier < kTiersMax; ++tier) {
    if (!HasFiles(set, tier)) continue;
    Unlink(set, tier);
    Insert(set, tier, Nearest(set, tier));
  }
}

PrefixOrder::Set PrefixOrder::Nearest(Set set, size_t tier) const {
  Set next = sets_[set].before;
  for (size_t steps = 0; next != kNone && !HasFiles(next, tier); ++steps) {
    if (steps == kNearestMax) return kNone;
    next = sets_[next].before;
  }
  return next;
}

void PrefixOrder::Unlink(Set set, size_t tier) {
  std::deque<Links>& all = links_[tier];
  Links& links = all[set];
  if (walks_[tier] == set) walks_[tier] = links.younger;
  (links.older == kNone ? ends_[tier].oldest : all[links.older].younger) = links.younger;
  (links.younger == kNone ? ends_[tier].youngest : all[links.younger].older) = links.older;
  links.older = links.younger = kNone;
}

void PrefixOrder::Insert(Set set, size_t tier, Set next) {
  std::deque<Links>& all = links_[tier];
  Ends& ends = ends_[tier];
  const Set older = next == kNone ? ends.youngest : all[next].older;
  all[set].older = older;
  all[set].younger = next;
  (older == kNone ? ends.oldest : all[older].younger) = set;
  (next == kNone ? ends.youngest : all[next].older) = set;
}

PrefixOrder::Set PrefixOrder::Oldest(TierId tier, absl::FunctionRef<bool(Set)> may_go) {
  const Set& oldest = ends_[tier.value].oldest;
  for (size_t looked_at = 0; looked_at < kLookAt; ++looked_at) {
    const Set set = oldest;
    if (set == kNone || may_go(set)) return set;
    MakeYoung(set);
    if (oldest == set) return kNone;  // There is only what is before it.
  }
  return kNone;
}

PrefixOrder::Set PrefixOrder::WalkOn(TierId tier) {
  Set& next = walks_[tier.value];
  const Set set = next;
  if (set != kNone) next = links_[tier.value][set].younger;
  return set;
}

std::optional<SiblingsId> PrefixOrder::BeforeOf(Set set) const {
  const Set before = sets_[set].before;
  return before == kNone ? std::nullopt : std::optional(sets_[before].id);
}

std::vector<uint64_t> PrefixOrder::ByAge(TierId tier) const {
  std::vector<uint64_t> ids;
  for (Set set = ends_[tier.value].oldest; set != kNone; set = links_[tier.value][set].younger) {
    ids.push_back(sets_[set].id.value);
  }
  return ids;
}

bool PrefixOrder::IsCutOff(Set set, uint16_t round) {
  path_.clear();
  Set end = set;
  for (; end != kNone && sets_[end].looked_at / 2 != round; end = sets_[end].before) {
    path_.push_back(end);
  }
  bool cut_off = end != kNone && (sets_[end].looked_at % 2 == 1 || sets_[end].members == 0);
  std::ranges::reverse(path_);
  for (const Set at : path_) {
    Record& record = sets_[at];
    record.looked_at = static_cast<uint16_t>(2 * round + (cut_off ? 1 : 0));
    cut_off = cut_off || record.members == 0;
  }
  return sets_[set].looked_at % 2 == 1;
}

uint64_t PrefixOrder::memory_bytes() const {
  uint64_t bytes = sets_.size() * sizeof(Record) + by_id_.capacity() * (sizeof(Set) + 1);
  for (const auto& links : links_) bytes += links.size() * sizeof(Links);
  return bytes;
}

}  // namespace kvstream::store
