// The part of the index that knows in which order chunks were used.
#include <algorithm>

#include "server/store/chunk_index.h"

namespace kvstream::store {

bool ChunkIndex::Follow(const KeyDigest& key, SiblingsId before) {
  const Number first = First(key);
  return first != kNone && order_.Follow(records_[first].set, before);
}

bool ChunkIndex::Follow(const KeyDigest& key, const KeyDigest& before) {
  const Number first = First(before);
  return first != kNone && Follow(key, order_.IdOf(records_[first].set));
}

void ChunkIndex::Touch(const KeyDigest& key, TimeNs now, bool force) {
  const Number first = First(key);
  if (first == kNone) return;
  order_.Touch(records_[first].set, SecondsAt(now), force);
}

void ChunkIndex::Touch(SiblingsId siblings, TimeNs now) {
  const PrefixOrder::Set set = order_.Find(siblings);
  if (set != PrefixOrder::kNone) order_.Touch(set, SecondsAt(now), /*force=*/false);
}

std::pair<SiblingsId, std::optional<SiblingsId>> ChunkIndex::PlaceOf(const KeyDigest& key) const {
  const PrefixOrder::Set set = records_[First(key)].set;
  return {order_.IdOf(set), order_.BeforeOf(set)};
}

bool ChunkIndex::AnyLeased(PrefixOrder::Set set) const {
  for (Number number = first_of_set_[set]; number != kNone; number = records_[number].next_of_set) {
    if (records_[number].leases > 0) return true;
  }
  return false;
}

std::vector<EvictedFile> ChunkIndex::Evict(TierId tier) {
  std::vector<EvictedFile> evicted;
  const PrefixOrder::Set set =
      order_.Oldest(tier, [this](PrefixOrder::Set candidate) { return !AnyLeased(candidate); });
  if (set == PrefixOrder::kNone) return evicted;
  for (Number number = first_of_set_[set]; number != kNone; number = records_[number].next_of_set) {
    const Record& record = records_[number];
    if (!TierSet::FromBits(record.own).Has(tier)) continue;
    const Kind& kind = kinds_[record.kind];
    evicted.push_back({record.key, kind.name_space, kind.shape.file_bytes()});
  }
  for (const EvictedFile& file : evicted) RemoveReplicas(file.key, tier);
  return evicted;
}

bool ChunkIndex::WalkOn(TierId tier, size_t sets, TimeNs now,
                        absl::FunctionRef<void(const OwnFile&)> visit) {
  for (; sets > 0; --sets) {
    const PrefixOrder::Set set = order_.WalkOn(tier);
    if (set == PrefixOrder::kNone) return true;
    const uint32_t touched = order_.TouchedAt(set);
    const uint32_t unused = touched == 0 ? 0 : SecondsAt(now) - std::min(touched, SecondsAt(now));
    for (Number number = first_of_set_[set]; number != kNone;
         number = records_[number].next_of_set) {
      const Record& record = records_[number];
      if (!TierSet::FromBits(record.own).Has(tier)) continue;
      const Kind& kind = kinds_[record.kind];
      visit({{record.key, order_.IdOf(set), kind.name_space, kind.shape, record.content,
              ChecksumsOf(number)},
             order_.BeforeOf(set),
             unused});
    }
  }
  return false;
}

void ChunkIndex::ForgetTier(TierId tier) {
  std::vector<KeyDigest> keys;
  for (const Number number : by_key_) keys.push_back(records_[number].key);
  for (const KeyDigest& key : keys) RemoveReplicas(key, tier);
}

bool ChunkIndex::WalkHints(TierId tier, size_t records, uint32_t* at,
                           absl::FunctionRef<void(const KeyDigest&)> visit) const {
  for (; records > 0 && *at < records_.size(); --records, ++*at) {
    const Record& record = records_[*at];  // A free one has no tiers.
    if (TierSet::FromBits(record.tiers & ~record.own).Has(tier)) visit(record.key);
  }
  return *at < records_.size();
}

uint64_t ChunkIndex::Disown(TierId tier) {
  uint64_t files = 0;
  for (const Number first : by_key_) {
    for (Number number = first; number != kNone; number = records_[number].next) {
      Record& record = records_[number];
      if (!TierSet::FromBits(record.own).Has(tier)) continue;
      NoteFile(record, tier, false);
      tier_usage_[tier.value].hints += 1;
      files += 1;
    }
  }
  return files;
}

bool ChunkIndex::SweepCutOff(size_t sets) {
  for (; sets > 0 && sweep_ < order_.bound(); --sets, ++sweep_) {
    if (!order_.HasMembers(sweep_) || !order_.IsCutOff(sweep_, sweep_round_)) continue;
    for (Number number = first_of_set_[sweep_]; number != kNone;
         number = records_[number].next_of_set) {
      const Record& record = records_[number];
      for (uint32_t t = 0; t < kTiersMax; ++t) {
        if (!TierSet::FromBits(record.own).Has(TierId{t})) continue;
        cut_off_[t] += kinds_[record.kind].shape.file_bytes();
      }
    }
  }
  if (sweep_ < order_.bound()) return false;
  for (uint32_t t = 0; t < kTiersMax; ++t) tier_usage_[t].cut_off_bytes = cut_off_[t];
  cut_off_ = {};
  sweep_ = 0;
  sweep_round_ = sweep_round_ == INT16_MAX ? 1 : static_cast<uint16_t>(sweep_round_ + 1);
  return true;
}

}  // namespace kvstream::store
