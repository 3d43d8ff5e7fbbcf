// Chunks in a memory of so many bytes, the least recently used going first. All chunks are of one
// size.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <list>

#include "absl/container/flat_hash_map.h"

namespace kvstream::sim {

class ChunkCache {
 public:
  explicit ChunkCache(uint64_t chunks_max) : chunks_max_(chunks_max) {}

  bool Has(uint64_t chunk) const { return places_.contains(chunk); }

  // Makes it the most recently used, and room for it if it is new. To keep a prefix's head longer
  // than its tail, use the last chunk first.
  void Use(uint64_t chunk) {
    if (chunks_max_ == 0) return;
    const auto [it, fresh] = places_.try_emplace(chunk);
    if (fresh) {
      order_.push_front(chunk);
      it->second = order_.begin();
      if (places_.size() > chunks_max_) {
        places_.erase(order_.back());
        order_.pop_back();
      }
    } else {
      order_.splice(order_.begin(), order_, it->second);
    }
  }

 private:
  const uint64_t chunks_max_;
  std::list<uint64_t> order_;  // The most recently used first.
  absl::flat_hash_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

}  // namespace kvstream::sim
