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
  // Handoff connections and streams refused because too many are open; namespaces because there are
  // too many.
  Counter sessions_refused;
  Counter streams_refused;
  Counter namespaces_refused;
  // Sessions that were ended because their client left too many events unread.
  Counter sessions_overrun;
  // Times that the handoff socket could not accept; 1 while it does not try.
  Counter accept_failures;
  Gauge accept_paused;
};

// Counts one, and warns of the first: `what`, which clients can bring about as often as they like.
void CountAndWarnOnce(Counter& counter, std::string_view what);

}  // namespace kvstream::rpc
