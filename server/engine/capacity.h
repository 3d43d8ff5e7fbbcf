// How much of a tier chunks may take.
#pragma once

#include <cstdint>
#include <vector>

#include "server/base/types.h"

namespace kvstream::engine {

struct CapacityOptions {
  // Most bytes of chunk files; 0: no limit but the file system's.
  uint64_t bytes_max = 0;
  // What of the file system stays free, bytes and inodes each, percent. 0: nothing.
  uint32_t free_percent_min = 0;
  // Other nodes have files there, too: only what this daemon has written is given up.
  bool shared = false;
  // Of a shared tier: how many files of other nodes are remembered. 0: this node neither tells the
  // others of its files nor hears of theirs.
  uint64_t hints_max = 0;
  // Of a shared tier: after how long without a word another node is taken for gone; 0: never.
  TimeNs gone_after = 0;
};

// By TierId.
inline TierSet SharedOf(const std::vector<CapacityOptions>& capacities) {
  TierSet shared;
  for (uint32_t t = 0; t < capacities.size(); ++t) {
    if (capacities[t].shared) shared.Add(TierId{t});
  }
  return shared;
}

}  // namespace kvstream::engine
