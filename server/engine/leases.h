// Leases: protection from eviction for chunks that a lookup found. A lease has an owner session and
// an expiry; it ends by release, expiry or the end of its session, whichever comes first, and
// ending it again is a no-op.
//
// Thread rule: the engine loop.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "server/base/types.h"
#include "server/store/chunk_index.h"

namespace kvstream::engine {

class Leases {
 public:
  explicit Leases(store::ChunkIndex* index) : index_(index) {}

  // Most leases of a session, and most chunks under them, counted as often as they are leased.
  static constexpr size_t kLeasesMax = 4096;
  static constexpr uint64_t kLeasedChunksMax = 1 << 20;

  // Leases those keys that the index knows; 0 when it knows none, or the owner holds too many.
  uint64_t Grant(SessionId owner, const std::vector<KeyDigest>& keys, TimeNs expiry);
  // False when the lease is unknown or another session's; nothing happens then.
  bool Release(SessionId session, uint64_t lease);
  void ReleaseAllOf(SessionId session);
  // Ends those that are due; returns how many.
  size_t Expire(TimeNs now);
  TimeNs NextDeadline() const { return by_expiry_.empty() ? kNever : by_expiry_.begin()->first; }

  size_t count() const { return leases_.size(); }
  uint64_t chunks() const { return chunks_; }

 private:
  struct Lease {
    SessionId owner;
    TimeNs expiry = 0;
    std::vector<KeyDigest> keys;
  };
  void End(uint64_t id);

  store::ChunkIndex* const index_;
  absl::flat_hash_map<uint64_t, Lease> leases_;
  struct Owner {
    absl::flat_hash_set<uint64_t> leases;
    uint64_t chunks = 0;
  };
  absl::flat_hash_map<SessionId, Owner> by_owner_;
  std::set<std::pair<TimeNs, uint64_t>> by_expiry_;
  uint64_t chunks_ = 0;
  uint64_t next_id_ = 1;
};

}  // namespace kvstream::engine
