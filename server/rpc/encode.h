// What leaves the daemon, from plain structs to protobuf. Stateless; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kvstream/v1/kvstream.pb.h"
#include "server/base/types.h"
#include "server/engine/api.h"
#include "server/rpc/facts.h"
#include "server/store/namespace.h"

namespace kvstream::rpc {

// Appends one event.
void EncodeEvent(const engine::SessionEvent& event, const Facts& facts, v1::ServerMessage* message);

// What an event takes up while it waits, bytes: close to its size in memory and on the wire.
size_t WeightOf(const engine::SessionEvent& event);

void EncodeLimits(const Limits& limits, v1::Limits* out);
void EncodeNamespace(const store::NamespaceSpec& spec, v1::Namespace* out);

// The raw bytes of a digest.
template <typename Tag>
std::string RawBytes(const Digest128<Tag>& digest) {
  return std::string(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
}

// Whole milliseconds.
inline uint64_t ToMs(TimeNs duration) { return static_cast<uint64_t>(duration / kMillisecond); }

// The protocol that this file and the session stream speak.
inline constexpr uint32_t kProtocolVersion = 1;

}  // namespace kvstream::rpc
