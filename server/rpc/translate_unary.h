// Requests of the unary calls, from protobuf to plain structs, validated as in translate.h.
//
// Thread rule: stateless; any thread. Ownership: results own their bytes. Errors: INVALID_ARGUMENT
// names the field, unless said otherwise.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kvstream/v1/kvstream.pb.h"
#include "server/engine/api.h"
#include "server/gpu/gpu.h"
#include "server/rpc/facts.h"
#include "server/store/namespace.h"

namespace kvstream::rpc {

// Refuses lists longer than any namespace has, before anything is made of them.
absl::Status CheckRegistration(const v1::RegisterNamespaceRequest& request);

// The message as it is; the registry checks the fields and fills in defaults.
store::NamespaceSpec TranslateNamespace(const v1::Namespace& name_space);

std::vector<store::NamespaceRegistry::LocalShards> TranslateLocalShards(
    const v1::RegisterNamespaceRequest& request);

// A lookup without its reply. NOT_FOUND for an unregistered namespace; FAILED_PRECONDITION when no
// shard of the asked groups was registered as local.
absl::StatusOr<engine::Lookup> TranslateLookup(const v1::LookupRequest& request,
                                               const Limits& limits,
                                               const store::NamespaceRegistry& namespaces);

// Checks that every byte of every block lies inside the allocation.
absl::StatusOr<gpu::RegionSpec> TranslateRegion(const v1::RegisterMemoryRequest& request);

}  // namespace kvstream::rpc
