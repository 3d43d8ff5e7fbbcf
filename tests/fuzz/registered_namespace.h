// A namespace that the messages of a fuzz target can name, in a registry of its own. Any thread.
#pragma once

#include <string>

#include "server/base/check.h"
#include "server/base/types.h"
#include "server/store/namespace.h"

namespace kvstream::fuzz {

inline constexpr store::NamespaceLimits kNamespaceLimits = {.segment_bytes_min = 16 * kKiB,
                                                            .chunk_bytes_max = 64 * kMiB};

// One that is sharded, of which this node has shard 1, and one that is replicated. Chunks are so
// small that a model can look at each of their bytes.
inline store::NamespaceSpec SomeNamespace() {
  store::NamespaceSpec spec;
  spec.model = spec.weights_fingerprint = spec.kv_dtype = spec.layout = "m";
  spec.chunk_tokens = 1;
  spec.groups = {{.name = "", .chunk_bytes = 16, .shards = 3, .replicated = false},
                 {.name = "", .chunk_bytes = 7, .shards = 1, .replicated = true}};
  return spec;
}

inline const store::NamespaceRegistry& Namespaces() {
  static store::NamespaceRegistry* const namespaces = [] {
    auto* made = new store::NamespaceRegistry(kNamespaceLimits);
    KV_CHECK(made->Register(SomeNamespace(), {{0, {1}}, {1, {}}}).ok());
    return made;
  }();
  return *namespaces;
}

// Makes an id of one byte the registered one: random bytes would never be that.
inline void MakeRight(std::string* namespace_id) {
  if (namespace_id->size() != 1) return;
  const NamespaceId id = Namespaces().List().front()->id;
  namespace_id->assign(id.bytes.begin(), id.bytes.end());
}

}  // namespace kvstream::fuzz
