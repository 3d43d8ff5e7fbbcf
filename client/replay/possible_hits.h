// How many leading chunks a cache without bounds would hit, had it begun empty: the most that the
// daemon can be asked for. A chunk counts when it and all before it in its prompt were stored by
// earlier steps.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace kvstream::replay {

class PossibleHits {
 public:
  uint64_t LeadingHits(const std::vector<uint64_t>& ids) const;
  // From now on these are stored. Requests of one step are all looked up before any is added.
  void Add(const std::vector<uint64_t>& ids) { stored_.insert(ids.begin(), ids.end()); }

 private:
  absl::flat_hash_set<uint64_t> stored_;
};

}  // namespace kvstream::replay
