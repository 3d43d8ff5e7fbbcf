#include "server/store/chunk_index.h"

#include <algorithm>
#include <cstring>

#include "server/base/check.h"

namespace kvstream::store {
size_t ChunkIndex::KeyHash::operator()(const KeyDigest& key) const {
  size_t half = 0;  // A digest is already uniform.
  std::memcpy(&half, key.bytes.data(), sizeof half);
  return half;
}

ChunkIndex::ChunkIndex() : by_key_(0, KeyHash{&records_}, KeyEqual{&records_}) {}

ChunkIndex::Number ChunkIndex::First(const KeyDigest& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? kNone : *found;
}

ChunkIndex::Number ChunkIndex::FindContent(Number first, const ContentId& content) const {
  Number number = first;
  while (number != kNone && records_[number].content != content) number = records_[number].next;
  return number;
}

std::span<const uint64_t> ChunkIndex::ChecksumsOf(Number number) const {
  const Record& record = records_[number];
  const uint32_t segments = kinds_[record.kind].shape.segments();
  if (segments == 1) return {&record.checksum, 1};
  return {more_.at(number).get(), segments};
}

std::optional<IndexEntry> ChunkIndex::Find(const KeyDigest& key) const {
  const Number first = First(key);
  if (first == kNone) return std::nullopt;
  const Kind& kind = kinds_[records_[first].kind];
  IndexEntry entry{kind.name_space, kind.shape, {}, records_[first].leases, {}};
  for (Number number = first; number != kNone; number = records_[number].next) {
    const Record& record = records_[number];
    entry.copies.push_back(
        {record.content, TierSet::FromBits(record.tiers), record.staged, ChecksumsOf(number)});
    entry.hints = entry.hints | TierSet::FromBits(record.tiers & ~record.own);
  }
  if (entry.copies.size() > 1) {
    std::ranges::stable_sort(entry.copies, [](const ContentCopy& a, const ContentCopy& b) {
      if (a.staged != b.staged) return a.staged;
      return a.tiers.size() > b.tiers.size();
    });
  }
  return entry;
}

Presence ChunkIndex::Look(const KeyDigest& key) const {
  Presence presence;
  for (Number number = First(key); number != kNone;) {
    const Record& record = records_[number];
    presence.tiers = presence.tiers | TierSet::FromBits(record.tiers);
    presence.staged |= record.staged;
    presence.hinted |= (record.tiers & ~record.own) != 0;
    presence.place = record.set;
    number = record.next;
  }
  return presence;
}

bool ChunkIndex::OnTiers(const KeyDigest& key, TierSet tiers) const {
  for (Number number = First(key); number != kNone; number = records_[number].next) {
    if ((records_[number].tiers & tiers.bits()) != 0) return true;
  }
  return false;
}

bool ChunkIndex::OwnOnTiers(const KeyDigest& key, TierSet tiers) const {
  for (Number number = First(key); number != kNone; number = records_[number].next) {
    if ((records_[number].own & tiers.bits()) != 0) return true;
  }
  return false;
}

ChunkIndex::Number ChunkIndex::OnTier(const KeyDigest& key, TierId tier) const {
  Number number = First(key);
  while (number != kNone && !TierSet::FromBits(records_[number].tiers).Has(tier)) {
    number = records_[number].next;
  }
  return number;
}

bool ChunkIndex::IsHint(const KeyDigest& key, TierId tier) const {
  const Number number = OnTier(key, tier);
  return number != kNone && !TierSet::FromBits(records_[number].own).Has(tier);
}

bool ChunkIndex::IsLeased(const KeyDigest& key) const {
  const Number first = First(key);
  return first != kNone && records_[first].leases > 0;
}

void ChunkIndex::AddReplica(const ChunkFacts& chunk, TierId tier, bool own) {
  KV_CHECK(tier.value < kTiersMax);
  const Number number = Add(chunk);
  Publish(number, tier, own, /*oldest=*/false);
  if (!own) records_[number].met |= static_cast<uint8_t>(TierSet::Of(tier).bits());
  RemoveWhere(chunk.key, TierSet::Of(tier), false,
              [&chunk](const Record& other) { return other.content != chunk.content; });
}

void ChunkIndex::Publish(Number number, TierId tier, bool own, bool oldest) {
  Record& record = records_[number];
  const bool known = TierSet::FromBits(record.tiers).Has(tier);
  if (known && (!own || TierSet::FromBits(record.own).Has(tier))) return;
  if (++generation_ == 0) ++generation_;
  record.generations[tier.value] = generation_;
  record.tiers |= static_cast<uint8_t>(TierSet::Of(tier).bits());
  // What another node told of was gone, and now the file is ours.
  if (known) tier_usage_[tier.value].hints -= 1;
  if (own) {
    NoteFile(record, tier, true, oldest);
  } else {
    tier_usage_[tier.value].hints += 1;
  }
}

bool ChunkIndex::AddHint(const ChunkFacts& chunk, std::optional<SiblingsId> before, TierId tier) {
  KV_CHECK(tier.value < kTiersMax);
  const Number first = First(chunk.key);
  if (!MayBeFound(first, chunk, tier)) return false;
  const Number number = AddTo(first, chunk);
  if (before.has_value()) order_.Follow(records_[number].set, *before);
  Publish(number, tier, /*own=*/false, /*oldest=*/false);
  return true;
}

void ChunkIndex::RemoveHint(const KeyDigest& key, TierId tier) {
  if (IsHint(key, tier)) RemoveReplicas(key, tier);
}

bool ChunkIndex::MayBeFound(Number first, const ChunkFacts& chunk, TierId tier) const {
  if (first == kNone) return true;
  const Kind& kind = kinds_[records_[first].kind];
  return kind.name_space == chunk.name_space && kind.shape == chunk.shape &&
         OnTier(chunk.key, tier) == kNone;
}

bool ChunkIndex::AddFound(const OwnFile& file, TierId tier, TimeNs now) {
  KV_CHECK(tier.value < kTiersMax);
  const ChunkFacts& chunk = file.chunk;
  Number first = First(chunk.key);
  if (first != kNone) {
    // What another node's was said to be is our own.
    RemoveHint(chunk.key, tier);
    first = First(chunk.key);
  }
  if (!MayBeFound(first, chunk, tier)) return false;
  const Number number = AddTo(first, chunk);
  const PrefixOrder::Set set = records_[number].set;
  const uint32_t used = SecondsAt(now) - std::min(file.unused_seconds, kEpoch - 1);
  const uint32_t known = order_.TouchedAt(set);
  if (file.before.has_value()) order_.Follow(set, *file.before);
  order_.SetTouchedAt(set, std::max(known, used));
  // What comes after it in its prefix was used since, then: so it is as young.
  const bool used_since = known > used + PrefixOrder::kTouchEvery;
  Publish(number, tier, /*own=*/true, /*oldest=*/!used_since);
  return true;
}

void ChunkIndex::WithdrawOthers(const KeyDigest& key, const NamespaceId& name_space,
                                const ChunkShape& shape) {
  const Number first = First(key);
  if (first == kNone) return;
  const Kind& kind = kinds_[records_[first].kind];
  if (kind.name_space == name_space && kind.shape == shape) return;
  RemoveWhere(key, TierSet::FromBits((1u << kTiersMax) - 1), /*staged=*/false,
              [](const Record&) { return true; });
}

void ChunkIndex::AddStaged(const ChunkFacts& chunk) { records_[Add(chunk)].staged = true; }

// A record of it, which may say of no copy yet.
ChunkIndex::Number ChunkIndex::Add(const ChunkFacts& chunk) {
  WithdrawOthers(chunk.key, chunk.name_space, chunk.shape);
  return AddTo(First(chunk.key), chunk);
}

ChunkIndex::Number ChunkIndex::AddTo(Number first, const ChunkFacts& chunk) {
  KV_CHECK(chunk.shape.segment_bytes > 0 && chunk.checksums.size() == chunk.shape.segments());
  if (first != kNone) {
    const Kind& kind = kinds_[records_[first].kind];
    KV_CHECK(kind.name_space == chunk.name_space && kind.shape == chunk.shape);
  }
  Number number = FindContent(first, chunk.content);
  if (number != kNone) return number;
  number = NewRecord();
  Record& record = records_[number];
  record.key = chunk.key;
  record.content = chunk.content;
  record.kind = KindOf(chunk.name_space, chunk.shape);
  kinds_[record.kind].records += 1;
  if (chunk.checksums.size() == 1) {
    record.checksum = chunk.checksums[0];
  } else {
    auto copied = std::make_unique<uint64_t[]>(chunk.checksums.size());
    std::ranges::copy(chunk.checksums, copied.get());
    more_[number] = std::move(copied);
    more_checksums_ += chunk.checksums.size();
  }
  if (first == kNone) {
    by_key_.insert(number);
    Usage& usage = usage_[chunk.name_space];
    usage.chunks += 1;
    usage.bytes += chunk.shape.payload_bytes;
    JoinSet(number, order_.AddMember(chunk.siblings));
  } else {
    Number last = first;  // Seldom are there two, hardly ever more.
    while (records_[last].next != kNone) last = records_[last].next;
    records_[last].next = number;
    JoinSet(number, order_.AddMember(order_.IdOf(records_[first].set)));
  }
  return number;
}

void ChunkIndex::JoinSet(Number number, PrefixOrder::Set set) {
  if (first_of_set_.size() <= set) first_of_set_.resize(order_.bound(), kNone);
  Record& record = records_[number];
  record.set = set;
  record.next_of_set = first_of_set_[set];
  first_of_set_[set] = number;
}

void ChunkIndex::LeaveSet(Number number) {
  const Record& record = records_[number];
  Number* at = &first_of_set_[record.set];
  while (*at != number) at = &records_[*at].next_of_set;
  *at = record.next_of_set;
  order_.DropMember(record.set);
}

void ChunkIndex::NoteFile(Record& record, TierId tier, bool has, bool oldest) {
  TierUsage& usage = tier_usage_[tier.value];
  record.own = static_cast<uint8_t>(has ? record.own | TierSet::Of(tier).bits()
                                        : record.own & ~TierSet::Of(tier).bits());
  const uint64_t bytes = kinds_[record.kind].shape.file_bytes();
  if (has) {
    order_.AddFile(record.set, tier, oldest);
    usage.files += 1;
    usage.bytes += bytes;
  } else {
    order_.DropFile(record.set, tier);
    usage.files -= 1;
    usage.bytes -= bytes;
  }
}

ChunkIndex::Number ChunkIndex::NewRecord() {
  if (free_ == kNone) {
    KV_CHECK(records_.size() < kNone);
    records_.emplace_back();
    return static_cast<Number>(records_.size() - 1);
  }
  const Number number = free_;
  free_ = records_[number].next;
  records_[number] = Record();
  return number;
}

// REQUIRES: no list has it any more.
void ChunkIndex::FreeRecord(Number number) {
  const uint32_t kind = records_[number].kind;
  if (kinds_[kind].shape.segments() > 1) {
    more_checksums_ -= kinds_[kind].shape.segments();
    more_.erase(number);
  }
  DropKind(kind);
  LeaveSet(number);
  records_[number].next = free_;
  free_ = number;
}

uint32_t ChunkIndex::KindOf(const NamespaceId& name_space, const ChunkShape& shape) {
  const auto [found, is_new] = kind_numbers_.try_emplace(
      {name_space, {shape.payload_bytes, shape.segment_bytes}}, static_cast<uint32_t>(0));
  if (!is_new) return found->second;
  if (free_kinds_.empty()) {
    found->second = static_cast<uint32_t>(kinds_.size());
    kinds_.push_back({name_space, shape, 0});
  } else {
    found->second = free_kinds_.back();
    free_kinds_.pop_back();
    kinds_[found->second] = {name_space, shape, 0};
  }
  return found->second;
}

void ChunkIndex::DropKind(uint32_t kind) {
  Kind& dropped = kinds_[kind];
  dropped.records -= 1;
  if (dropped.records > 0) return;
  kind_numbers_.erase(
      {dropped.name_space, {dropped.shape.payload_bytes, dropped.shape.segment_bytes}});
  free_kinds_.push_back(kind);
}

uint16_t ChunkIndex::GenerationOf(const KeyDigest& key, const ContentId& content,
                                  TierId tier) const {
  KV_CHECK(tier.value < kTiersMax);
  const Number number = FindContent(First(key), content);
  if (number == kNone || !TierSet::FromBits(records_[number].tiers).Has(tier)) return 0;
  return records_[number].generations[tier.value];
}

bool ChunkIndex::RemoveReplica(const KeyDigest& key, const ContentId& content, TierId tier,
                               uint16_t generation) {
  if (generation == 0 || GenerationOf(key, content, tier) != generation) return false;
  return RemoveWhere(key, TierSet::Of(tier), false,
                     [&content](const Record& record) { return record.content == content; });
}

bool ChunkIndex::RemoveReplicas(const KeyDigest& key, TierId tier) {
  KV_CHECK(tier.value < kTiersMax);
  return RemoveWhere(key, TierSet::Of(tier), false, [](const Record&) { return true; });
}

bool ChunkIndex::RemoveStaged(const KeyDigest& key, const ContentId& content) {
  return RemoveWhere(key, TierSet(), true,
                     [&content](const Record& record) { return record.content == content; });
}

bool ChunkIndex::RemoveWhere(const KeyDigest& key, TierSet tiers, bool staged,
                             absl::FunctionRef<bool(const Record&)> matches) {
  const Number first = First(key);
  if (first == kNone) return false;
  const uint32_t leases = records_[first].leases;
  const Kind kind = kinds_[records_[first].kind];
  Number kept = kNone;
  Number last = kNone;
  // The key leaves the table while its records do: the table looks into them.
  by_key_.erase(first);
  for (Number number = first, next = kNone; number != kNone; number = next) {
    Record& record = records_[number];
    next = record.next;
    if (matches(record)) {
      const TierSet going = TierSet::FromBits(record.tiers) & tiers;
      for (uint32_t t = 0; t < kTiersMax; ++t) {
        if (!going.Has(TierId{t})) continue;
        if (TierSet::FromBits(record.own).Has(TierId{t})) {
          NoteFile(record, TierId{t}, false);
        } else {
          tier_usage_[t].hints -= 1;
        }
      }
      record.tiers &= static_cast<uint8_t>(~tiers.bits());
      record.met &= record.tiers;
      record.staged &= !staged;
    }
    if (record.tiers == 0 && !record.staged) {
      FreeRecord(number);
      continue;
    }
    (last == kNone ? kept : records_[last].next) = number;
    last = number;
    record.next = kNone;
  }
  if (kept != kNone) {
    records_[kept].leases = leases;
    by_key_.insert(kept);
    return false;
  }
  const auto usage = usage_.find(kind.name_space);
  usage->second.chunks -= 1;
  usage->second.bytes -= kind.shape.payload_bytes;
  if (usage->second.chunks == 0) usage_.erase(usage);
  return true;
}

bool ChunkIndex::AddLease(const KeyDigest& key) {
  const Number first = First(key);
  if (first == kNone) return false;
  ++records_[first].leases;
  return true;
}

void ChunkIndex::DropLease(const KeyDigest& key) {
  const Number first = First(key);
  if (first != kNone && records_[first].leases > 0) --records_[first].leases;
}

uint64_t ChunkIndex::memory_bytes() const {
  constexpr uint64_t kAllocation = 16;  // What malloc keeps beside each.
  return records_.size() * sizeof(Record) + by_key_.capacity() * (sizeof(Number) + 1) +
         more_.capacity() * (sizeof(*more_.begin()) + 1) + more_.size() * kAllocation +
         more_checksums_ * sizeof(uint64_t) + order_.memory_bytes() +
         first_of_set_.capacity() * sizeof(Number);
}

}  // namespace kvstream::store
