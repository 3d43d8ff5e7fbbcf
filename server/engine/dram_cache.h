// Which chunks stay in the staging pool though nobody needs them there, and which of them makes
// room next. Chunks with a slot in the shared arena are kept apart from those with none: a write,
// which may have shared slots alone, looks at no chunk that does not help it.
//
// Thread rule: the engine loop. Ownership: it knows keys and sizes; the chunks are Staging's.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "server/base/types.h"
#include "server/sched/cache_policy.h"
#include "server/sched/slot_allocator.h"

namespace kvstream::engine {

class DramCache {
 public:
  DramCache(sched::CachePolicyKind kind, const sched::SlotAllocator& slots)
      : policies_{sched::MakeCachePolicy(kind, slots.reserved_bytes()),
                  sched::MakeCachePolicy(kind, slots.shared_bytes())} {}

  // `shared`: it has a slot in the shared arena. The same for the same chunk.
  void Insert(const KeyDigest& key, uint64_t bytes, bool shared) {
    policies_[shared]->Insert(key, bytes);
    nothing_goes_[shared] = false;
  }
  void Touch(const KeyDigest& key, bool shared) { policies_[shared]->Touch(key); }
  // No-op for what was evicted.
  void Remove(const KeyDigest& key, bool shared) { policies_[shared]->Remove(key); }

  // Takes out the next one with a slot in the arena, of those that `may_go`. Where none may it is
  // not looked again before the next turn, or something comes.
  std::optional<KeyDigest> Evict(sched::Arena arena,
                                 absl::FunctionRef<bool(const KeyDigest&)> may_go);
  void NewTurn() { nothing_goes_ = {}; }

  uint64_t chunks() const { return policies_[0]->size() + policies_[1]->size(); }
  uint64_t bytes() const { return policies_[0]->bytes() + policies_[1]->bytes(); }

 private:
  // Of chunks without, and with, a slot in the shared arena.
  std::array<std::unique_ptr<sched::CachePolicy>, 2> policies_;
  std::array<bool, 2> nothing_goes_{};
};

}  // namespace kvstream::engine
