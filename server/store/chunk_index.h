// The index: which chunks exist, with which content, on which tiers or in the staging pool.
//
// Owned by the engine loop: not thread-safe. An entry exists while at least one copy does; "visible
// means readable". A chunk may have copies of more than one content id (recomputed KV differs in
// its last bits); replicas combine only within one.
//
// It is built for millions of chunks: a record of 80 bytes for each content of a chunk, its only
// checksum in it and more beside it, what many chunks share said once, and keys found by a table of
// numbers of records.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "server/base/chunk_shape.h"
#include "server/base/types.h"
#include "server/store/prefix_order.h"

namespace kvstream::store {

// Copies of one content id. What it says holds until the next call that changes the index.
struct ContentCopy {
  ContentId content;
  // Tiers with a published file of it.
  TierSet tiers;
  // Complete in the staging pool.
  bool staged = false;
  // Of its segments.
  std::span<const uint64_t> checksums;
};

struct IndexEntry {
  NamespaceId name_space;
  ChunkShape shape;
  // Never empty. Staged copies first, then by number of tiers.
  absl::InlinedVector<ContentCopy, 1> copies;
  uint32_t leases = 0;
  // Tiers whose file of it is another node's.
  TierSet hints;
};

// What a lookup asks of a key.
struct Presence {
  // With a file of it.
  TierSet tiers;
  bool staged = false;
  // A tier's file is another node's.
  bool hinted = false;
  // Of its siblings, for Follow; holds until the next other call that changes the index.
  PrefixOrder::Set place = PrefixOrder::kNone;
};

// A copy that there is.
struct ChunkFacts {
  KeyDigest key;
  SiblingsId siblings;
  NamespaceId name_space;
  ChunkShape shape;
  ContentId content;
  // One for each segment.
  std::span<const uint64_t> checksums;
};

// A file of our own on a tier, and its place in the order of use.
struct OwnFile {
  // Its checksums lie with whoever gave it.
  ChunkFacts chunk;
  // What comes right before it in its prefix, as far as that is known.
  std::optional<SiblingsId> before;
  uint32_t unused_seconds = 0;
};

// One content of a chunk, and where it is.
struct KnownContent {
  KeyDigest key;
  uint64_t file_bytes = 0;
  // With a published file of it, and those of them whose file is our own.
  TierSet tiers;
  TierSet own;
  bool staged = false;
};

// What differs only in group and shard.
struct KnownSiblings {
  SiblingsId id;
  NamespaceId name_space;
  // Nothing where they were not used here since they are known.
  std::optional<uint32_t> unused_seconds;
  // A lease protects one of them.
  bool leased = false;
  std::vector<KnownContent> contents;
};

// A file that a tier gives up.
struct EvictedFile {
  KeyDigest key;
  NamespaceId name_space;
  uint64_t bytes = 0;
};

class ChunkIndex {
 public:
  ChunkIndex();
  ChunkIndex(const ChunkIndex&) = delete;
  ChunkIndex& operator=(const ChunkIndex&) = delete;

  // Nothing when unknown.
  std::optional<IndexEntry> Find(const KeyDigest& key) const;
  // Of a key that is not known: no tier, not staged.
  Presence Look(const KeyDigest& key) const;
  // Has the processor fetch what Look will read first.
  void Prefetch(const KeyDigest& key) const { by_key_.prefetch(key); }
  // Whether one of these tiers has a file of it, which may be another node's.
  bool OnTiers(const KeyDigest& key, TierSet tiers) const;
  // Whether one of these tiers has a file of our own of it.
  bool OwnOnTiers(const KeyDigest& key, TierSet tiers) const;
  bool IsLeased(const KeyDigest& key) const;

  // Adds a published replica, or the staged copy. A tier has one file of a key, so a replica takes
  // the place of what the tier had of another content. A client has said namespace and shape: files
  // that were found with others are withdrawn. REQUIRES: one checksum for each segment. Of a key
  // that is known the siblings are, too. `own`: the tier may give the file up, which counts for
  // what it has.
  void AddReplica(const ChunkFacts& chunk, TierId tier, bool own = true);
  void AddStaged(const ChunkFacts& chunk);
  // So many chunks more will be added soon: the tables grow once, not again and again.
  void Reserve(uint64_t chunks);
  // Adds a file of our own that was on the tier before us: older than all that is known there, so
  // that the first one added is the youngest of them, unless it or what comes after it in its
  // prefix was used since. False, and nothing happens, where the tier has
  // a file of the key, or other copies have another namespace or shape.
  bool AddFound(const OwnFile& file, TierId tier, TimeNs now);
  // Adds another node's file, of which that node has told. False, and nothing happens, where the
  // tier has a file of the key, or other copies have another namespace or shape.
  bool AddHint(const ChunkFacts& chunk, std::optional<SiblingsId> before, TierId tier);
  // Goes on with the hints of a tier, from `*at` on, 0 at the beginning, by so many records; false
  // when it is through with all. One that is added meanwhile may be missed, and those that our own
  // stores have met are.
  bool WalkHints(TierId tier, size_t records, uint32_t* at,
                 absl::FunctionRef<void(const KeyDigest&)> visit) const;
  // Goes on through all that is known, from `*at` on, 0 at the beginning. Takes from `*budget` what
  // it has looked at, which the last siblings may overdraw to 0. Nothing: it is through, or the
  // budget is used up. What is added meanwhile may be missed.
  std::optional<KnownSiblings> NextSiblings(uint32_t* at, size_t* budget, TimeNs now) const;
  bool IsThrough(uint32_t at) const { return at >= order_.bound(); }
  // Nothing when none of them is known any more.
  std::optional<KnownSiblings> FindSiblings(SiblingsId id, TimeNs now) const;
  // Withdraws what the tier holds of the key where it is another node's.
  void RemoveHint(const KeyDigest& key, TierId tier);
  // A client says that the key has this namespace and shape: files that were found with others are
  // withdrawn.
  void WithdrawOthers(const KeyDigest& key, const NamespaceId& name_space, const ChunkShape& shape);

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

  // The chunk, where it is known, comes right after these in its prefix. Whether that is news.
  bool Follow(const KeyDigest& key, SiblingsId before);
  bool Follow(const Presence& chunk, const Presence& before);
  // The chunk, where it is known, and all before it in its prefix are used. At most every ten
  // seconds for each, unless forced, which news asks for.
  void Touch(const KeyDigest& key, TimeNs now, bool force);
  // The same by the siblings, where they are known.
  void Touch(SiblingsId siblings, TimeNs now);
  // What is known of the key's place in its prefix: the chunk's siblings, and those right before.
  // REQUIRES: a key that is known.
  std::pair<SiblingsId, std::optional<SiblingsId>> PlaceOf(const KeyDigest& key) const;
  // What comes right before these in their prefix, as far as that is known.
  std::optional<SiblingsId> BeforeOf(SiblingsId siblings) const;
  // Whether the tier has a file of it that is another node's.
  bool IsHint(const KeyDigest& key, TierId tier) const;
  // Withdraws what the tier gives up next: all of its files of the siblings that nobody has used
  // for longest, the end of a prefix before its beginning. Empty when there is nothing that no
  // lease protects.
  std::vector<EvictedFile> Evict(TierId tier);

  // Of files of our own, but for `hints`.
  struct TierUsage {
    uint64_t files = 0;
    uint64_t bytes = 0;
    // Of these, what no prefix reaches, when that was counted last.
    uint64_t cut_off_bytes = 0;
    // Files of other nodes, as far as they are known.
    uint64_t hints = 0;
  };
  const TierUsage& tier_usage(TierId tier) const { return tier_usage_[tier.value]; }

  // Goes through the tier's own files by so many sets, those that nobody has used for longest
  // first; true at the end. See PrefixOrder::BeginWalk.
  void BeginWalk(TierId tier) { order_.BeginWalk(tier); }
  bool WalkOn(TierId tier, size_t sets, TimeNs now, absl::FunctionRef<void(const OwnFile&)> visit);

  // Withdraws all that the tier holds. Takes as long as there are chunks.
  void ForgetTier(TierId tier);
  // All files of our own on the tier are another node's from now on; how many. As long as that,
  // too.
  uint64_t Disown(TierId tier);
  // Goes on counting what no prefix reaches, by so many sets; true when it is through with all.
  bool SweepCutOff(size_t sets);

  // Counts leases on a chunk; AddLease is false for an unknown key. DropLease of a chunk that is
  // gone is a no-op: leases go with the entry. A chunk that came back may lose a newer lease to an
  // older one's end, which costs at most a miss.
  bool AddLease(const KeyDigest& key);
  void DropLease(const KeyDigest& key);

  uint64_t chunks() const { return by_key_.size(); }
  // What all of it takes up, bytes: the records, their checksums and the table of keys.
  uint64_t memory_bytes() const;

  // Chunks and payload bytes of each namespace; for ListNamespaces.
  struct Usage {
    uint64_t chunks = 0;
    uint64_t bytes = 0;
  };
  const absl::flat_hash_map<NamespaceId, Usage>& usage() const { return usage_; }

 private:
  using Number = uint32_t;
  static constexpr Number kNone = UINT32_MAX;
  // What was used before this machine's clock began to count has its second, too.
  static constexpr uint32_t kEpoch = 1u << 30;
  static constexpr uint32_t SecondsAt(TimeNs now) {
    return kEpoch + static_cast<uint32_t>(now / kSecond);
  }
  // REQUIRES: it has members.
  KnownSiblings Describe(PrefixOrder::Set set, TimeNs now) const;
  std::optional<uint32_t> UnusedSeconds(PrefixOrder::Set set, TimeNs now) const;

  // One content of a chunk.
  struct Record {
    KeyDigest key;
    ContentId content;
    // Where there are several, theirs are in more_.
    uint64_t checksum = 0;
    uint32_t kind = 0;
    // Another content of the same key; of a free record, the next free one.
    Number next = kNone;
    // Of the key, in the record that by_key_ has.
    uint32_t leases = 0;
    PrefixOrder::Set set = PrefixOrder::kNone;
    Number next_of_set = kNone;
    // By TierId: told from one that was withdrawn before it.
    std::array<uint16_t, kTiersMax> generations{};
    uint8_t tiers = 0;
    uint8_t own = 0;  // Of `tiers`.
    uint8_t met = 0;  // Of those that are not: by a store of our own.
    bool staged = false;
  };
  // What chunks have in common.
  struct Kind {
    NamespaceId name_space;
    ChunkShape shape;
    uint64_t records = 0;
  };
  struct KeyHash {
    using is_transparent = void;
    const std::deque<Record>* records;
    size_t operator()(const KeyDigest& key) const;
    size_t operator()(Number number) const { return (*this)((*records)[number].key); }
  };
  struct KeyEqual {
    using is_transparent = void;
    const std::deque<Record>* records;
    const KeyDigest& Of(const KeyDigest& key) const { return key; }
    const KeyDigest& Of(Number number) const { return (*records)[number].key; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return Of(a) == Of(b);
    }
  };

  Number First(const KeyDigest& key) const;
  // Of this content, from `first` on.
  Number FindContent(Number first, const ContentId& content) const;
  std::span<const uint64_t> ChecksumsOf(Number number) const;
  Number Add(const ChunkFacts& chunk);
  // The same: `first` is the key's first record, or kNone, of the chunk's namespace and shape.
  Number AddTo(Number first, const ChunkFacts& chunk);
  void JoinSet(Number number, PrefixOrder::Set set);
  void LeaveSet(Number number);
  // Gives the record the tier's file.
  void Publish(Number number, TierId tier, bool own, bool oldest);
  // Whether a file of it that was found may be added; `first` as in AddTo, of whichever namespace.
  bool MayBeFound(Number first, const ChunkFacts& chunk, TierId tier) const;
  // Notes that the tier has a file of it that is our own, or no longer has.
  void NoteFile(Record& record, TierId tier, bool has, bool oldest = false);
  // The record of the key that has the tier's file; kNone: it has none.
  Number OnTier(const KeyDigest& key, TierId tier) const;
  bool AnyLeased(PrefixOrder::Set set) const;
  Number NewRecord();
  void FreeRecord(Number number);
  uint32_t KindOf(const NamespaceId& name_space, const ChunkShape& shape);
  void DropKind(uint32_t kind);
  // From the copies that match.
  bool RemoveWhere(const KeyDigest& key, TierSet tiers, bool staged,
                   absl::FunctionRef<bool(const Record&)> matches);

  std::deque<Record> records_;
  Number free_ = kNone;
  absl::flat_hash_set<Number, KeyHash, KeyEqual> by_key_;  // The first record of each key.
  // Of records with more than one segment.
  absl::flat_hash_map<Number, std::unique_ptr<uint64_t[]>> more_;
  uint64_t more_checksums_ = 0;
  std::vector<Kind> kinds_;
  std::vector<uint32_t> free_kinds_;
  absl::flat_hash_map<std::pair<NamespaceId, std::pair<uint64_t, uint64_t>>, uint32_t>
      kind_numbers_;
  PrefixOrder order_;
  std::vector<Number> first_of_set_;
  std::array<TierUsage, kTiersMax> tier_usage_;
  std::array<uint64_t, kTiersMax> cut_off_{};  // So far in this round.
  PrefixOrder::Set sweep_ = 0;                 // The next one.
  uint16_t sweep_round_ = 1;
  absl::flat_hash_map<NamespaceId, Usage> usage_;  // Of those that have chunks.
  uint16_t generation_ = 0;                        // The last one; never 0 once there is one.
};

}  // namespace kvstream::store
