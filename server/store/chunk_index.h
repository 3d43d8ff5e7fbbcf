// The index: which chunks exist, with which content, on which tiers or in the staging pool.
//
// Owned by the engine loop: not thread-safe. An entry exists while at least one copy does; "visible
// means readable". A chunk may have copies of more than one content id (recomputed KV differs in
// its last bits); replicas combine only within one.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "server/base/chunk_shape.h"
#include "server/base/types.h"

namespace kvstream::store {

// Copies of one content id.
struct ContentCopy {
  ContentId content;
  // Tiers with a published file of it.
  TierSet tiers;
  // By TierId, of those in `tiers`: told from one that was withdrawn before it.
  std::array<uint16_t, kTiersMax> generations{};
  // Complete in the staging pool.
  bool staged = false;
  // Checksums of its segments.
  std::vector<uint64_t> checksums;
};

struct IndexEntry {
  NamespaceId name_space;
  ChunkShape shape;
  // Never empty. Staged copies first, then by number of tiers.
  absl::InlinedVector<ContentCopy, 1> copies;
  uint32_t leases = 0;

  // Whether a copy is staged, or on one of these tiers.
  bool ReadableFrom(TierSet in_service) const;
};

class ChunkIndex {
 public:
  // Null when unknown. The pointer is valid until the next call that changes the index.
  const IndexEntry* Find(const KeyDigest& key) const;

  // Adds a published replica, or the staged copy. A tier has one file of a key, so a replica takes
  // the place of what the tier had of another content. REQUIRES: namespace and shape are those of
  // the key's other copies, and one checksum for each segment: what a disk says is checked before.
  void AddReplica(const KeyDigest& key, const NamespaceId& name_space, const ChunkShape& shape,
                  const ContentId& content, std::span<const uint64_t> checksums, TierId tier);
  void AddStaged(const KeyDigest& key, const NamespaceId& name_space, const ChunkShape& shape,
                 const ContentId& content, std::span<const uint64_t> checksums);

  // Which publication of a content the tier's file is; 0: it has none. 2^16 later a number comes
  // again, which may cost a miss.
  uint16_t GenerationOf(const KeyDigest& key, const ContentId& content, TierId tier) const;

  // Withdraws; a copy that is not there, or of another generation, is ignored, so that an old
  // failure cannot undo a newer success. True when that removed the last copy of the key.
  bool RemoveReplica(const KeyDigest& key, const ContentId& content, TierId tier,
                     uint16_t generation);
  // Withdraws what the tier holds, whatever its content.
  bool RemoveReplicas(const KeyDigest& key, TierId tier);
  bool RemoveStaged(const KeyDigest& key, const ContentId& content);

  // Counts leases on a chunk; AddLease is false for an unknown key. DropLease of a chunk that is
  // gone is a no-op: leases go with the entry. A chunk that came back may lose a newer lease to an
  // older one's end, which costs at most a miss.
  bool AddLease(const KeyDigest& key);
  void DropLease(const KeyDigest& key);

  uint64_t chunks() const { return entries_.size(); }

  // Chunks and payload bytes of each namespace; for ListNamespaces.
  struct Usage {
    uint64_t chunks = 0;
    uint64_t bytes = 0;
  };
  const absl::flat_hash_map<NamespaceId, Usage>& usage() const { return usage_; }

 private:
  void Add(const KeyDigest& key, const NamespaceId& name_space, const ChunkShape& shape,
           const ContentId& content, std::span<const uint64_t> checksums, TierSet tiers,
           bool staged);
  // From the copies that match.
  bool RemoveWhere(const KeyDigest& key, TierSet tiers, bool staged,
                   absl::FunctionRef<bool(const ContentCopy&)> matches);

  absl::flat_hash_map<KeyDigest, IndexEntry> entries_;
  absl::flat_hash_map<NamespaceId, Usage> usage_;  // Of those that have chunks.
  uint16_t generation_ = 0;                        // The last one; never 0 once there is one.
};

}  // namespace kvstream::store
