// The rpc room's own numbers: what it holds back, refuses and gives up. Written by gRPC's threads
// and the handoff thread, read by the metrics room.
#pragma once

#include <string_view>

#include "server/base/stats.h"

namespace kvstream::rpc {

struct RpcStats {
  Gauge streams_open;
  // Unary calls that wait for the engine, and the keys of lookups among them.
  Gauge calls_waiting;
  Gauge lookup_keys_waiting;
  Counter calls_refused;
  // Times that a stream was read no further because the engine had not handled what came before.
  Counter streams_held;
  // Streams and handoff connections that never said Hello.
  Counter hellos_missed;
};

// Counts one, and warns of the first.
void CountMissedHello(RpcStats& stats, std::string_view who);

}  // namespace kvstream::rpc
