#include "client/commands/named_chunk.h"

#include <xxhash.h>

namespace kvstream::ctl {

v1::Namespace NamedNamespace(const std::string& name, uint64_t chunk_bytes) {
  v1::Namespace description;
  description.set_model("kvstreamctl/" + name);
  description.set_weights_fingerprint("kvstreamctl");
  description.set_kv_dtype("uint8");
  description.set_layout("file");
  description.set_chunk_tokens(1);
  v1::Group* group = description.add_groups();
  group->set_name("file");
  group->set_chunk_bytes(chunk_bytes);
  return description;
}

std::string NamedKey(std::string_view text) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(text.data(), text.size()));
  return std::string(reinterpret_cast<const char*>(canonical.digest), sizeof canonical.digest);
}

void SetNamedChunk(std::string_view text, uint64_t buffer_id, v1::ChunkAt* chunk) {
  chunk->set_prefix_hash(NamedKey(text));
  chunk->mutable_placement()->mutable_host()->set_buffer_id(buffer_id);
}

}  // namespace kvstream::ctl
