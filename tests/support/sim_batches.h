// Batches for tests of the router: simple ones by hand, and whole worlds from a seed.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "server/sched/commands.h"
#include "tests/support/sim_world.h"

namespace kvstream::sched {

// The content with this number.
ContentId ContentOf(uint64_t number);

// The set of these tiers.
TierSet Tiers(std::initializer_list<uint32_t> tiers);

// A chunk of one content on these tiers.
Item ItemOn(uint64_t content, TierSet tiers, ChunkShape shape);

// A batch of one request. A step of its own; joint.
BatchSpec BatchOf(uint64_t id, std::vector<Item> items);

// A world in which anything may happen, ready to run: the same for the same seed.
std::unique_ptr<SimWorld> RandomWorld(uint64_t seed);

}  // namespace kvstream::sched
