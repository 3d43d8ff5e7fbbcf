// Which chunk a cache of so many bytes lets go of next: the least recently used (LRU), by three
// queues first in, first out (S3-FIFO: Yang et al., SOSP 2023), or between what was used once and
// what was used more often, by what was missed (ARC: Megiddo and Modha, FAST 2003). A policy knows
// keys and sizes alone; whoever holds the bytes makes room by Evict before it inserts.
//
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "server/base/types.h"

namespace kvstream::sched {

enum class CachePolicyKind : uint8_t { kLru, kS3Fifo, kArc };

class CachePolicy {
 public:
  virtual ~CachePolicy() = default;

  // REQUIRES: not in the cache.
  virtual void Insert(const KeyDigest& key, uint64_t bytes) = 0;
  // It was used. No-op for what is not in the cache.
  virtual void Touch(const KeyDigest& key) = 0;
  // It is gone without an eviction, and leaves no memory of itself. No-op as above.
  virtual void Remove(const KeyDigest& key) = 0;
  // Takes the next one out of the cache, of those that `may_go`; nullopt when there is none. Looks
  // at each at most a bounded number of times.
  virtual std::optional<KeyDigest> Evict(absl::FunctionRef<bool(const KeyDigest&)> may_go) = 0;

  virtual bool Contains(const KeyDigest& key) const = 0;
  virtual size_t size() const = 0;
  virtual uint64_t bytes() const = 0;
};

// `capacity_bytes` is what the cache can hold at most: how long a policy remembers what it has let
// go of, and the sizes of its queues, follow from it.
std::unique_ptr<CachePolicy> MakeCachePolicy(CachePolicyKind kind, uint64_t capacity_bytes);

}  // namespace kvstream::sched
