// A namespace: all that shapes a model's KV bytes, as a plain struct, and the registry of those
// that clients have registered in this boot.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/mutex.h"
#include "server/base/types.h"

namespace kvstream::store {

struct GroupSpec {
  std::string name;
  uint64_t chunk_bytes = 0;
  uint32_t shards = 1;
  bool replicated = false;

  bool operator==(const GroupSpec&) const = default;
};

// The fields of kvstream.v1.Namespace, with defaults filled in.
struct NamespaceSpec {
  std::string model;
  std::string weights_fingerprint;
  std::string kv_dtype;
  std::string quantization;
  std::string rope;
  std::string layout;
  std::vector<uint64_t> strides;
  uint32_t page_tokens = 0;
  uint32_t chunk_tokens = 0;
  uint32_t tensor_parallel = 1;
  uint32_t pipeline_parallel = 1;
  uint32_t context_parallel = 1;
  std::vector<GroupSpec> groups;
  uint64_t segment_bytes = 0;
  std::map<std::string, std::string> extra;

  bool operator==(const NamespaceSpec&) const = default;
};

struct NamespaceLimits {
  uint64_t segment_bytes_min = 16 * kKiB;
  uint64_t segment_bytes_max = 16 * kMiB;
  uint64_t segment_bytes_default = 4 * kMiB;
  uint64_t chunk_bytes_max = 0;
};

// Checks every field against kvstream.v1.Namespace's documentation; INVALID_ARGUMENT names the
// field and its limit. Fills in the defaults of `segment_bytes`, shards and parallel sizes where
// they are 0, also when it fails.
absl::Status NormalizeNamespace(const NamespaceLimits& limits, NamespaceSpec* spec);

// XXH3-128 of the canonical encoding (FORMAT.md). REQUIRES: normalized.
NamespaceId DigestOfNamespace(const NamespaceSpec& spec);

// A registered namespace. Immutable but for the local shards, which only grow: a new object
// replaces the old one in the registry then.
struct NamespaceInfo {
  NamespaceId id;
  NamespaceSpec spec;
  // For each group, the shards that Lookup asks for, ascending.
  std::vector<std::vector<uint32_t>> local_shards;
};
using NamespaceRef = std::shared_ptr<const NamespaceInfo>;

// What RegisterNamespace has named in this boot. Thread-safe.
class NamespaceRegistry {
 public:
  explicit NamespaceRegistry(const NamespaceLimits& limits) : limits_(limits) {}

  struct LocalShards {
    uint32_t group = 0;
    std::vector<uint32_t> shards;
  };

  // Idempotent. `local_shards` as in RegisterNamespaceRequest: empty adds all shards of all groups.
  // INVALID_ARGUMENT names the field. RESOURCE_EXHAUSTED past kNamespacesMax.
  absl::StatusOr<NamespaceRef> Register(NamespaceSpec spec,
                                        const std::vector<LocalShards>& local_shards);

  // Null when it was not registered in this boot.
  NamespaceRef Find(const NamespaceId& id) const;
  std::vector<NamespaceRef> List() const;

  static constexpr size_t kNamespacesMax = 256;

 private:
  const NamespaceLimits limits_;
  mutable Mutex mu_;
  absl::flat_hash_map<NamespaceId, NamespaceRef> by_id_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvstream::store
