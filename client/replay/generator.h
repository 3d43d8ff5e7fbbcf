// Makes a request trace where none is at hand: conversations of several turns that run at the same
// time. Conversations share one of a few system prompts; each turn repeats all that was said before
// and adds a few blocks. The same seed makes the same trace, everywhere.
//
// Stateless; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "client/replay/trace.h"

namespace kvstream::replay {

std::vector<Request> GenerateTrace(uint64_t requests, uint64_t seed);

}  // namespace kvstream::replay
