// Which tier reads what of a step: ours, and those to compare it with. Plain data.
#pragma once

#include <cstdint>

#include "server/base/types.h"

namespace kvstream::sched {

enum class Policy : uint8_t {
  // Whichever tier has room claims next, from both ends of the step, near the end narrowed and
  // hedged.
  kCompletion,
  // The same, but a request begins when the one before it has ended.
  kRequestAtATime,
  // Those below know neither narrowing nor reading again what is merely slow.
  // One tier reads all that it holds.
  kSingle,
  // The first tier reads so many percent of the chunks, evenly spread, the others equal parts of
  // the rest.
  kFixed,
  // As in the publication of completion routing: each tier takes whole chunks from its end, so many
  // at a time, and the next ones when all of those have arrived.
  kPublished,
};

struct PolicyOptions {
  Policy policy = Policy::kCompletion;
  // kSingle.
  TierId single;
  // kFixed.
  uint32_t fixed_percent = 50;
  // kPublished; the window has to hold them.
  uint32_t chunks_at_a_time = 8;
  // kCompletion and kRequestAtATime. Near the end of a list, a tier leaves segments to another that
  // would have them sooner.
  bool narrowing = true;
  // The same. A tier reads again what another would have later than it.
  bool hedging = true;

  bool routes_by_completion() const {
    return policy == Policy::kCompletion || policy == Policy::kRequestAtATime;
  }
  bool narrows() const { return narrowing && routes_by_completion(); }
  bool hedges() const { return hedging && routes_by_completion(); }
};

}  // namespace kvstream::sched
