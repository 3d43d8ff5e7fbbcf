// kvstreamd --preflight: what a configuration needs of the machine, what there is, what happens
// where that is too little, and how to raise it.
#pragma once

#include <string>

#include "server/config/options.h"

namespace kvstream {

struct Preflight {
  // A table, a line each.
  std::string report;
  // No limit keeps the daemon from starting; it may start degraded, and tiers may still fail.
  bool starts = true;
};

Preflight CheckPreflight(const config::Options& options);

}  // namespace kvstream
