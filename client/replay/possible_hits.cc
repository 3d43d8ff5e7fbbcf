#include "client/replay/possible_hits.h"

namespace kvstream::replay {

uint64_t PossibleHits::LeadingHits(const std::vector<uint64_t>& ids) const {
  uint64_t hits = 0;
  while (hits < ids.size() && stored_.contains(ids[hits])) ++hits;
  return hits;
}

}  // namespace kvstream::replay
