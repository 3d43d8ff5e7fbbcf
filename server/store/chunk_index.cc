#include "server/store/chunk_index.h"

#include <algorithm>

#include "server/base/check.h"

namespace kvstream::store {
namespace {

using Copies = decltype(IndexEntry::copies);

Copies::iterator FindCopy(Copies& copies, const ContentId& content) {
  return std::find_if(copies.begin(), copies.end(),
                      [&](const ContentCopy& copy) { return copy.content == content; });
}

// Staged first, then by number of tiers; equals keep their order.
void SortCopies(Copies& copies) {
  if (copies.size() < 2) return;  // Nearly always; a stable sort would allocate even then.
  std::stable_sort(copies.begin(), copies.end(), [](const ContentCopy& a, const ContentCopy& b) {
    if (a.staged != b.staged) return a.staged;
    return a.tiers.size() > b.tiers.size();
  });
}

}  // namespace

bool IndexEntry::ReadableFrom(TierSet in_service) const {
  return std::any_of(copies.begin(), copies.end(), [in_service](const ContentCopy& copy) {
    return copy.staged || !(copy.tiers & in_service).empty();
  });
}

const IndexEntry* ChunkIndex::Find(const KeyDigest& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

void ChunkIndex::AddReplica(const KeyDigest& key, const NamespaceId& name_space,
                            const ChunkShape& shape, const ContentId& content,
                            std::span<const uint64_t> checksums, TierId tier) {
  KV_CHECK(tier.value < kTiersMax);
  Add(key, name_space, shape, content, checksums, TierSet::Of(tier), false);
  RemoveWhere(key, TierSet::Of(tier), false,
              [&content](const ContentCopy& copy) { return copy.content != content; });
}

void ChunkIndex::AddStaged(const KeyDigest& key, const NamespaceId& name_space,
                           const ChunkShape& shape, const ContentId& content,
                           std::span<const uint64_t> checksums) {
  Add(key, name_space, shape, content, checksums, TierSet(), true);
}

void ChunkIndex::Add(const KeyDigest& key, const NamespaceId& name_space, const ChunkShape& shape,
                     const ContentId& content, std::span<const uint64_t> checksums, TierSet tiers,
                     bool staged) {
  KV_CHECK(shape.segment_bytes > 0 && checksums.size() == shape.segments());
  const auto [found, is_new] = entries_.try_emplace(key);
  IndexEntry& entry = found->second;
  if (is_new) {
    entry.name_space = name_space;
    entry.shape = shape;
    Usage& usage = usage_[name_space];
    usage.chunks += 1;
    usage.bytes += shape.payload_bytes;
  }
  KV_CHECK(entry.name_space == name_space && entry.shape == shape);
  auto copy = FindCopy(entry.copies, content);
  if (copy == entry.copies.end()) {
    entry.copies.push_back({.content = content,
                            .tiers = {},
                            .generations = {},
                            .staged = false,
                            .checksums = {checksums.begin(), checksums.end()}});
    copy = std::prev(entry.copies.end());
  }
  for (uint32_t t = 0; t < kTiersMax; ++t) {
    if (!tiers.Without(copy->tiers).Has(TierId{t})) continue;
    if (++generation_ == 0) ++generation_;
    copy->generations[t] = generation_;
  }
  copy->tiers = copy->tiers | tiers;
  copy->staged |= staged;
  SortCopies(entry.copies);
}

uint16_t ChunkIndex::GenerationOf(const KeyDigest& key, const ContentId& content,
                                  TierId tier) const {
  KV_CHECK(tier.value < kTiersMax);
  const IndexEntry* entry = Find(key);
  if (entry == nullptr) return 0;
  for (const ContentCopy& copy : entry->copies) {
    if (copy.content == content && copy.tiers.Has(tier)) return copy.generations[tier.value];
  }
  return 0;
}

bool ChunkIndex::RemoveReplica(const KeyDigest& key, const ContentId& content, TierId tier,
                               uint16_t generation) {
  if (generation == 0 || GenerationOf(key, content, tier) != generation) return false;
  return RemoveWhere(key, TierSet::Of(tier), false,
                     [&content](const ContentCopy& copy) { return copy.content == content; });
}

bool ChunkIndex::RemoveReplicas(const KeyDigest& key, TierId tier) {
  KV_CHECK(tier.value < kTiersMax);
  return RemoveWhere(key, TierSet::Of(tier), false, [](const ContentCopy&) { return true; });
}

bool ChunkIndex::RemoveStaged(const KeyDigest& key, const ContentId& content) {
  return RemoveWhere(key, TierSet(), true,
                     [&content](const ContentCopy& copy) { return copy.content == content; });
}

bool ChunkIndex::RemoveWhere(const KeyDigest& key, TierSet tiers, bool staged,
                             absl::FunctionRef<bool(const ContentCopy&)> matches) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return false;
  Copies& copies = found->second.copies;
  for (ContentCopy& copy : copies) {
    if (!matches(copy)) continue;
    copy.tiers = copy.tiers.Without(tiers);
    copy.staged &= !staged;
  }
  const auto gone = std::remove_if(copies.begin(), copies.end(), [](const ContentCopy& copy) {
    return !copy.staged && copy.tiers.empty();
  });
  copies.erase(gone, copies.end());
  if (copies.empty()) {
    const auto usage = usage_.find(found->second.name_space);
    usage->second.chunks -= 1;
    usage->second.bytes -= found->second.shape.payload_bytes;
    if (usage->second.chunks == 0) usage_.erase(usage);
    entries_.erase(found);
    return true;
  }
  SortCopies(copies);
  return false;
}

bool ChunkIndex::AddLease(const KeyDigest& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return false;
  ++found->second.leases;
  return true;
}

void ChunkIndex::DropLease(const KeyDigest& key) {
  const auto found = entries_.find(key);
  if (found != entries_.end() && found->second.leases > 0) --found->second.leases;
}

}  // namespace kvstream::store
