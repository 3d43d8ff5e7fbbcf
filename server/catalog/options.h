// The times of a shared tier's catalog.
#pragma once

#include <cstdint>

#include "server/base/types.h"

namespace kvstream::catalog {

struct CatalogTimes {
  // From one sign of life to the next, where there is nothing else to say: of the leader in the
  // merged log, of each node in its own.
  TimeNs leader_sign_every = 2 * kSecond;
  TimeNs node_sign_every = 60 * kSecond;
  // How long a merged log may stand still before another node leads.
  TimeNs leader_patience = 10 * kSecond;
  // How long a node has said nothing, by the file system's own times, when its files are taken
  // over; 0: they never are. And how often the leader looks for such nodes.
  int64_t gone_after_seconds = 0;
  TimeNs gone_look_every = 60 * kSecond;
};

}  // namespace kvstream::catalog
