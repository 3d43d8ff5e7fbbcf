// From the validated configuration to each room's options.
#pragma once

#include <vector>

#include "server/config/options.h"
#include "server/engine/engine.h"
#include "server/rpc/facts.h"
#include "server/store/namespace.h"
#include "server/tier/tier.h"

namespace kvstream {

store::NamespaceLimits NamespaceLimitsOf(const config::Options& options);
// `open`: the tiers that did open, by TierId.
engine::EngineOptions EngineOptionsOf(const config::Options& options,
                                      const std::vector<config::TierOptions>& open);
tier::TierOptions TierOptionsOf(const config::Options& options, const config::TierOptions& tier,
                                TierId id, bool register_memory);
rpc::Limits LimitsOf(const config::Options& options);

}  // namespace kvstream
