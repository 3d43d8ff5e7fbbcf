// The part of the index that knows in which order chunks were used.
#include <algorithm>

#include "server/store/chunk_index.h"

namespace kvstream::store {

bool ChunkIndex::Follow(const KeyDigest& key, SiblingsId before) {
  const Number first = First(key);
  return first != kNone && order_.Follow(records_[first].set, before);
}

bool ChunkIndex::Follow(const Presence& chunk, const Presence& before) {
  return chunk.place != PrefixOrder::kNone && before.place != PrefixOrder::kNone &&
         order_.Follow(chunk.place, order_.IdOf(before.place));
}

void ChunkIndex::Reserve(uint64_t chunks) {
  by_key_.reserve(by_key_.size() + chunks);
  order_.Reserve(chunks);
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

std::optional<SiblingsId> ChunkIndex::BeforeOf(SiblingsId siblings) const {
  const PrefixOrder::Set set = order_.Find(siblings);
  return set == PrefixOrder::kNone ? std::nullopt : order_.BeforeOf(set);
}

std::optional<uint32_t> ChunkIndex::UnusedSeconds(PrefixOrder::Set set, TimeNs now) const {
  const uint32_t touched = order_.TouchedAt(set);
  if (touched == 0) return std::nullopt;
  return SecondsAt(now) - std::min(touched, SecondsAt(now));
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
    const uint32_t unused = UnusedSeconds(set, now).value_or(0);
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
    if (TierSet::FromBits(record.tiers & ~record.own & ~record.met).Has(tier)) visit(record.key);
  }
  return *at < records_.size();
}

std::optional<KnownSiblings> ChunkIndex::NextSiblings(uint32_t* at, size_t* budget,
                                                      TimeNs now) const {
  for (; *budget > 0 && !IsThrough(*at); ++*at) {
    --*budget;
    if (!order_.HasMembers(*at)) continue;
    KnownSiblings siblings = Describe((*at)++, now);
    *budget -= std::min(*budget, siblings.contents.size());
    return siblings;
  }
  return std::nullopt;
}

std::optional<KnownSiblings> ChunkIndex::FindSiblings(SiblingsId id, TimeNs now) const {
  const PrefixOrder::Set set = order_.Find(id);
  if (set == PrefixOrder::kNone || !order_.HasMembers(set)) return std::nullopt;
  return Describe(set, now);
}

KnownSiblings ChunkIndex::Describe(PrefixOrder::Set set, TimeNs now) const {
  const Number first = first_of_set_[set];
  KnownSiblings siblings{order_.IdOf(set), kinds_[records_[first].kind].name_space,
                         UnusedSeconds(set, now)};
  for (Number number = first; number != kNone; number = records_[number].next_of_set) {
    const Record& record = records_[number];
    siblings.leased |= record.leases > 0;
    siblings.contents.push_back({record.key, kinds_[record.kind].shape.file_bytes(),
                                 TierSet::FromBits(record.tiers), TierSet::FromBits(record.own),
                                 record.staged});
  }
  return siblings;
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
