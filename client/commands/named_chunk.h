// Chunks named by people, for put, get and lookup: a namespace of a name and a size, a key of a
// text. Stateless; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvstream/v1/kvstream.pb.h"

namespace kvstream::ctl {

// Chunks of exactly `chunk_bytes`: other sizes are other namespaces.
v1::Namespace NamedNamespace(const std::string& name, uint64_t chunk_bytes);

// The XXH3-128 digest of the text, 16 bytes, as `xxh128sum` prints it.
std::string NamedKey(std::string_view text);

// The chunk's key, and its place at the start of a host buffer.
void SetNamedChunk(std::string_view text, uint64_t buffer_id, v1::ChunkAt* chunk);

}  // namespace kvstream::ctl
