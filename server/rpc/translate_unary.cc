#include "server/rpc/translate_unary.h"

#include <string>
#include <string_view>
#include <utility>

#include "server/rpc/field_error.h"
#include "server/rpc/translate.h"
#include "server/store/chunk_key.h"

namespace kvstream::rpc {
namespace {

constexpr size_t kIpcHandleBytes = 64;
constexpr size_t kGpuUuidBytesMax = 128;
constexpr uint64_t kLandingPartBytesMin = 4096;
// Of all tensors of a region, which keeps 32 bytes of each.
constexpr uint64_t kRunsMax = 1 << 16;
constexpr uint32_t kLandingPartsMax = 64;
// As many as a namespace has groups.
constexpr uint64_t kLocalShardsMax = 64;
// As many as a group has shards; the other lists of a namespace have lower limits of their own.
constexpr uint64_t kListMax = 4096;

// What a lookup asks of each key: a shard of a group.
struct Member {
  uint32_t group;
  uint32_t shard;
};

absl::StatusOr<std::vector<Member>> MembersOf(const v1::LookupRequest& request,
                                              const store::NamespaceInfo& info) {
  const size_t groups = info.spec.groups.size();
  std::vector<bool> chosen(groups, request.groups_size() == 0);
  for (int i = 0; i < request.groups_size(); ++i) {
    const uint32_t group = request.groups(i);
    if (auto s = CheckRange(Element("groups", i), group, {0, groups - 1}); !s.ok()) return s;
    if (chosen[group]) {
      return InvalidField(Element("groups", i), "group " + std::to_string(group) + " twice");
    }
    chosen[group] = true;
  }
  std::vector<Member> members;
  for (uint32_t group = 0; group < groups; ++group) {
    if (!chosen[group]) continue;
    for (uint32_t shard : info.local_shards[group]) members.push_back({group, shard});
  }
  // Without a member every key would count as present.
  if (members.empty()) {
    return absl::FailedPreconditionError(
        "groups: no shard of them was registered as local to this node");
  }
  return members;
}

absl::Status CheckLookup(const v1::LookupRequest& request, const Limits& limits) {
  if (request.mode() != v1::LookupRequest::MODE_UNSPECIFIED &&
      request.mode() != v1::LookupRequest::MODE_LEADING_RUN &&
      request.mode() != v1::LookupRequest::MODE_PER_KEY) {
    return InvalidField("mode", std::to_string(request.mode()) + " is not a mode");
  }
  if (auto s = CheckRange("salt", request.salt().size(), {0, kSaltBytesMax}, " bytes"); !s.ok()) {
    return s;
  }
  if (auto s = CheckRange("lease_ms", request.lease_ms(),
                          {0, static_cast<uint64_t>(limits.lease_max / kMillisecond)}, " ms");
      !s.ok()) {
    return s;
  }
  if (request.lease_ms() != 0 && request.session_id() == 0) {
    return InvalidField("session_id", "missing, a lease needs an owner");
  }
  return absl::OkStatus();
}

// The end of the tensor's last byte, in 128 bits because every term is a client's.
unsigned __int128 EndOf(const v1::TensorLayout& tensor, const v1::ByteRun& run, uint32_t blocks) {
  return static_cast<unsigned __int128>(blocks - 1) * tensor.block_stride() +
         tensor.tensor_offset() + run.offset() + run.length();
}

absl::Status CheckTensor(const v1::TensorLayout& tensor, const v1::RegisterMemoryRequest& request) {
  if (tensor.runs_size() == 0) return InvalidField("runs", "missing");
  for (int i = 0; i < tensor.runs_size(); ++i) {
    const v1::ByteRun& run = tensor.runs(i);
    if (run.length() == 0) return InsideElement("runs", i, InvalidField("length", "missing"));
    if (EndOf(tensor, run, request.block_count()) > request.allocation_bytes()) {
      return InvalidField(Element("runs", i), "ends outside the allocation of " +
                                                  std::to_string(request.allocation_bytes()) +
                                                  " bytes");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRegion(const v1::RegisterMemoryRequest& request) {
  if (request.session_id() == 0) return InvalidField("session_id", "missing");
  if (auto s = CheckRange("gpu_uuid", request.gpu_uuid().size(), {1, kGpuUuidBytesMax}, " bytes");
      !s.ok()) {
    return s;
  }
  switch (request.memory_case()) {
    case v1::RegisterMemoryRequest::kCudaIpcHandle:
      if (auto s = CheckRange("cuda_ipc_handle", request.cuda_ipc_handle().size(),
                              {kIpcHandleBytes, kIpcHandleBytes}, " bytes");
          !s.ok()) {
        return s;
      }
      break;
    case v1::RegisterMemoryRequest::kHandoffMemoryId:
      if (request.handoff_memory_id() == 0) return InvalidField("handoff_memory_id", "missing");
      break;
    case v1::RegisterMemoryRequest::MEMORY_NOT_SET:
      return InvalidField("memory", "missing");
  }
  if (request.allocation_bytes() == 0) return InvalidField("allocation_bytes", "missing");
  if (request.tensors_size() == 0) {
    if (auto s = CheckRange("landing_parts", request.landing_parts(), {1, kLandingPartsMax});
        !s.ok()) {
      return s;
    }
    if (request.allocation_bytes() / request.landing_parts() >= kLandingPartBytesMin) {
      return absl::OkStatus();
    }
    return InvalidField("allocation_bytes", std::to_string(request.allocation_bytes()) + " make " +
                                                std::to_string(request.landing_parts()) +
                                                " parts of less than " +
                                                std::to_string(kLandingPartBytesMin) + " bytes");
  }
  if (request.landing_parts() != 0) {
    return InvalidField("landing_parts", "must be 0 for a region with tensors");
  }
  if (request.block_count() == 0) return InvalidField("block_count", "missing");
  uint64_t runs = 0;
  for (const v1::TensorLayout& tensor : request.tensors()) {
    runs += static_cast<uint64_t>(tensor.runs_size());
  }
  if (auto s = CheckRange("tensors", runs, {1, kRunsMax}, " runs in all"); !s.ok()) return s;
  for (int i = 0; i < request.tensors_size(); ++i) {
    if (auto s = CheckTensor(request.tensors(i), request); !s.ok()) {
      return InsideElement("tensors", i, s);
    }
  }
  return absl::OkStatus();
}

// How many hashes there are, at most `max`.
absl::StatusOr<size_t> SplitHashes(const v1::LookupRequest& request, size_t max) {
  const std::string& hashes = request.prefix_hashes();
  if (hashes.empty()) return 0;
  if (auto s = CheckRange("prefix_hash_bytes", request.prefix_hash_bytes(),
                          {store::kPrefixHashBytesMin, store::kPrefixHashBytesMax}, " bytes");
      !s.ok()) {
    return s;
  }
  if (hashes.size() % request.prefix_hash_bytes() != 0) {
    return InvalidField("prefix_hashes", std::to_string(hashes.size()) +
                                             " bytes, not a multiple of prefix_hash_bytes, " +
                                             std::to_string(request.prefix_hash_bytes()));
  }
  const size_t count = hashes.size() / request.prefix_hash_bytes();
  if (auto s = CheckRange("prefix_hashes", count, {0, max}, " hashes"); !s.ok()) return s;
  return count;
}

}  // namespace

absl::Status CheckRegistration(const v1::RegisterNamespaceRequest& request) {
  if (!request.has_namespace_()) return InvalidField("namespace", "missing");
  const v1::Namespace& name_space = request.namespace_();
  const auto check = [](std::string_view field, auto size, uint64_t max) {
    return CheckRange(field, static_cast<uint64_t>(size), {0, max}, " entries");
  };
  absl::Status status = check("strides", name_space.strides_size(), kListMax);
  if (status.ok()) status = check("groups", name_space.groups_size(), kListMax);
  if (status.ok()) status = check("extra", name_space.extra_size(), kListMax);
  if (status.ok()) status = check("local_shards", request.local_shards_size(), kLocalShardsMax);
  for (int i = 0; status.ok() && i < request.local_shards_size(); ++i) {
    status = check("shards", request.local_shards(i).shards_size(), kListMax);
    if (!status.ok()) status = InsideElement("local_shards", i, status);
  }
  return status;
}

store::NamespaceSpec TranslateNamespace(const v1::Namespace& name_space) {
  store::NamespaceSpec spec;
  spec.model = name_space.model();
  spec.weights_fingerprint = name_space.weights_fingerprint();
  spec.kv_dtype = name_space.kv_dtype();
  spec.quantization = name_space.quantization();
  spec.rope = name_space.rope();
  spec.layout = name_space.layout();
  spec.strides.assign(name_space.strides().begin(), name_space.strides().end());
  spec.page_tokens = name_space.page_tokens();
  spec.chunk_tokens = name_space.chunk_tokens();
  spec.tensor_parallel = name_space.tensor_parallel();
  spec.pipeline_parallel = name_space.pipeline_parallel();
  spec.context_parallel = name_space.context_parallel();
  for (const v1::Group& group : name_space.groups()) {
    spec.groups.push_back({group.name(), group.chunk_bytes(), group.shards(), group.replicated()});
  }
  spec.segment_bytes = name_space.segment_bytes();
  spec.extra.insert(name_space.extra().begin(), name_space.extra().end());
  return spec;
}

std::vector<store::NamespaceRegistry::LocalShards> TranslateLocalShards(
    const v1::RegisterNamespaceRequest& request) {
  std::vector<store::NamespaceRegistry::LocalShards> out;
  for (const v1::LocalShards& local : request.local_shards()) {
    out.push_back({local.group(), {local.shards().begin(), local.shards().end()}});
  }
  return out;
}

absl::StatusOr<engine::Lookup> TranslateLookup(const v1::LookupRequest& request,
                                               const Limits& limits,
                                               const store::NamespaceRegistry& namespaces) {
  if (auto s = CheckLookup(request, limits); !s.ok()) return s;
  auto name_space = FindNamespace(request.namespace_id(), namespaces);
  if (!name_space.ok()) return name_space.status();
  auto members = MembersOf(request, **name_space);
  if (!members.ok()) return members.status();
  const auto hashes = SplitHashes(request, limits.lookup_keys_max / members->size());
  if (!hashes.ok()) return hashes.status();

  engine::Lookup out;
  out.members = static_cast<uint32_t>(members->size());
  out.per_key = request.mode() == v1::LookupRequest::MODE_PER_KEY;
  out.lease_for = static_cast<TimeNs>(request.lease_ms()) * kMillisecond;
  out.session = SessionId{request.session_id()};
  out.digests.reserve(members->size() * *hashes);
  store::ChunkKey key;
  key.name_space = (*name_space)->id;
  key.salt = store::DigestOfSalt(request.salt());
  for (size_t i = 0; i < *hashes; ++i) {
    key.prefix_hash.assign(request.prefix_hashes(), i * request.prefix_hash_bytes(),
                           request.prefix_hash_bytes());
    for (const Member& member : *members) {
      key.group = member.group;
      key.shard = member.shard;
      key.shards = (*name_space)->spec.groups[member.group].shards;
      out.digests.push_back(store::DigestOfKey(key));
    }
  }
  return out;
}

absl::StatusOr<gpu::RegionSpec> TranslateRegion(const v1::RegisterMemoryRequest& request) {
  if (auto s = CheckRegion(request); !s.ok()) return s;
  gpu::RegionSpec spec;
  spec.gpu_uuid = request.gpu_uuid();
  spec.ipc_handle = request.cuda_ipc_handle();
  spec.allocation_bytes = request.allocation_bytes();
  spec.block_count = request.block_count();
  spec.landing_parts = request.landing_parts();
  for (const v1::TensorLayout& tensor : request.tensors()) {
    gpu::TensorLayout layout{tensor.tensor_offset(), tensor.block_stride(), {}};
    for (const v1::ByteRun& run : tensor.runs())
      layout.runs.push_back({run.offset(), run.length()});
    spec.tensors.push_back(std::move(layout));
  }
  return spec;
}

}  // namespace kvstream::rpc
