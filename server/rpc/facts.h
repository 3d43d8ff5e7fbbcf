// What is fixed for a boot and goes into every answer: limits, boot id, version, tier names.
// Plain values, set before the servers start and never changed, so any thread reads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/base/types.h"

namespace kvstream::rpc {

// The Limits of kvstream.v1, and those that only the daemon needs to know.
struct Limits {
  uint64_t segment_bytes_min = 0;
  uint64_t segment_bytes_max = 0;
  uint64_t segment_bytes_default = 0;
  uint64_t chunk_bytes_max = 0;
  uint64_t lookup_keys_max = 0;
  uint64_t chunks_per_operation_max = 0;
  uint64_t operations_per_session_max = 0;
  uint64_t host_buffers_per_session_max = 0;
  uint64_t host_buffer_bytes_per_session_max = 0;
  TimeNs deadline_max = 0;
  TimeNs lease_max = 0;
  uint64_t message_bytes_max = 0;
  // Handoff connections at once.
  uint64_t sessions_max = 0;
  // Events that a session may leave unread before it is ended.
  uint64_t unread_events_bytes_max = 0;
  // What the engine may leave unhandled of a stream before it is read no further.
  uint64_t unhandled_messages_max = 0;
  uint64_t unhandled_bytes_max = 0;
  // Unary calls that wait for the engine, and keys of lookups among them, of all clients.
  uint64_t calls_max = 0;
  uint64_t lookup_keys_waiting_max = 0;
  // A connection or stream that has said no Hello by then ends.
  TimeNs hello_max = 0;
};

struct Facts {
  BootId boot_id;
  std::string version;
  Limits limits;
  // Indexed by TierId.
  std::vector<std::string> tier_names;
};

}  // namespace kvstream::rpc
