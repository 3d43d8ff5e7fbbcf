// Numbers of a shared tier's catalog. Thread rule: as Counter.
#pragma once

#include "server/base/stats.h"

namespace kvstream::catalog {

struct CatalogStats {
  // Calls that ask the file system for more than bytes.
  Counter metadata_calls;
  // Frames that were left out, since they are damaged.
  Counter frames_damaged;
  // Times that this node began to lead, and whether it does.
  Counter terms;
  Gauge leads;
  // Logs of nodes that are gone, of which this one has taken over the files.
  Counter nodes_adopted;
};

}  // namespace kvstream::catalog
