// The config's tiers, checked and in the daemon's units.
#pragma once

#include "kvstream/config/v1/config.pb.h"
#include "server/config/options.h"
#include "server/config/problems.h"

namespace kvstream::config {

// Appends to out.tiers; what is wrong goes into `problems`, with the name of its field.
void ConvertTiers(const v1::DaemonConfig& in, Problems& problems, Options& out);

}  // namespace kvstream::config
