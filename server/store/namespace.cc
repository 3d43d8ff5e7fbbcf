#include "server/store/namespace.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "server/base/chunk_shape.h"
#include "server/store/chunk_format.h"
#include "server/store/encoding.h"

namespace kvstream::store {
namespace {

constexpr uint8_t kNamespaceEncodingVersion = 1;
constexpr size_t kStridesMax = 16;
constexpr size_t kGroupsMax = 64;
constexpr uint64_t kSiblingsMax = 4096;
constexpr uint64_t kExtraBytesMax = 4096;

struct Range {
  uint64_t min;
  uint64_t max;
};

absl::Status Invalid(std::string_view field, std::string_view cause) {
  std::string message(field);
  message.append(": ").append(cause);
  return absl::InvalidArgumentError(message);
}

// `unit` follows the numbers: " bytes", or nothing.
absl::Status CheckRange(std::string_view field, uint64_t value, Range range,
                        std::string_view unit = "") {
  if (value >= range.min && value <= range.max) return absl::OkStatus();
  std::string cause = std::to_string(value);
  cause.append(unit).append(" is outside ").append(std::to_string(range.min));
  cause.append(" .. ").append(std::to_string(range.max)).append(unit);
  return Invalid(field, cause);
}

absl::Status CheckStrings(const NamespaceSpec& spec) {
  struct Field {
    std::string_view name;
    const std::string& value;
    Range bytes;
  };
  const Field fields[] = {
      {"model", spec.model, {1, 512}},
      {"weights_fingerprint", spec.weights_fingerprint, {1, 512}},
      {"kv_dtype", spec.kv_dtype, {1, 64}},
      {"quantization", spec.quantization, {0, 256}},
      {"rope", spec.rope, {0, 1024}},
      {"layout", spec.layout, {1, 256}},
  };
  for (const Field& field : fields) {
    absl::Status status = CheckRange(field.name, field.value.size(), field.bytes, " bytes");
    if (!status.ok()) return status;
  }
  uint64_t extra_bytes = 0;
  for (const auto& [key, value] : spec.extra) extra_bytes += key.size() + value.size();
  return CheckRange("extra", extra_bytes, {0, kExtraBytesMax}, " bytes");
}

absl::Status CheckNumbers(const NamespaceLimits& limits, const NamespaceSpec& spec) {
  absl::Status status = CheckRange("strides", spec.strides.size(), {0, kStridesMax}, " entries");
  for (size_t i = 0; status.ok() && i < spec.strides.size(); ++i) {
    if (spec.strides[i] == 0) {
      status = Invalid("strides[" + std::to_string(i) + "]", "0 is not a stride");
    }
  }
  if (status.ok()) status = CheckRange("page_tokens", spec.page_tokens, {0, 65536});
  if (status.ok()) status = CheckRange("chunk_tokens", spec.chunk_tokens, {1, 1048576});
  if (status.ok()) {
    status = CheckRange("segment_bytes", spec.segment_bytes,
                        {limits.segment_bytes_min, limits.segment_bytes_max});
  }
  if (status.ok() && spec.segment_bytes % kPayloadAlignment != 0) {
    status =
        Invalid("segment_bytes", std::to_string(spec.segment_bytes) + " is not a multiple of " +
                                     std::to_string(kPayloadAlignment));
  }
  return status;
}

absl::Status CheckGroup(const NamespaceLimits& limits, const NamespaceSpec& spec, size_t index) {
  const GroupSpec& group = spec.groups[index];
  const std::string prefix = "groups[" + std::to_string(index) + "].";
  absl::Status status = CheckRange(prefix + "name", group.name.size(), {0, 128}, " bytes");
  if (status.ok()) {
    status = CheckRange(prefix + "chunk_bytes", group.chunk_bytes, {1, limits.chunk_bytes_max});
  }
  if (status.ok()) status = CheckRange(prefix + "shards", group.shards, {1, 4096});
  if (!status.ok()) return status;
  if (group.replicated && group.shards != 1) {
    return Invalid(prefix + "shards",
                   std::to_string(group.shards) + " contradicts replicated, which allows 0 or 1");
  }
  const uint64_t segments = group.chunk_bytes / spec.segment_bytes +
                            (group.chunk_bytes % spec.segment_bytes != 0 ? 1 : 0);
  if (segments > kSegmentsMax) {
    return Invalid(prefix + "chunk_bytes", std::to_string(group.chunk_bytes) + " makes " +
                                               std::to_string(segments) + " segments of " +
                                               std::to_string(spec.segment_bytes) +
                                               " bytes, more than " + std::to_string(kSegmentsMax));
  }
  return absl::OkStatus();
}

void FillDefaults(const NamespaceLimits& limits, NamespaceSpec* spec) {
  for (uint32_t* size :
       {&spec->tensor_parallel, &spec->pipeline_parallel, &spec->context_parallel}) {
    if (*size == 0) *size = 1;
  }
  for (GroupSpec& group : spec->groups) {
    if (group.shards == 0) group.shards = 1;
  }
  if (spec->segment_bytes == 0) spec->segment_bytes = limits.segment_bytes_default;
}

std::string EncodeNamespace(const NamespaceSpec& spec) {
  std::string out;
  AppendLe(kNamespaceEncodingVersion, &out);
  AppendString(spec.model, &out);
  AppendString(spec.weights_fingerprint, &out);
  AppendString(spec.kv_dtype, &out);
  AppendString(spec.quantization, &out);
  AppendString(spec.rope, &out);
  AppendString(spec.layout, &out);
  AppendLe(static_cast<uint32_t>(spec.strides.size()), &out);
  for (uint64_t stride : spec.strides) AppendLe(stride, &out);
  AppendLe(spec.page_tokens, &out);
  AppendLe(spec.chunk_tokens, &out);
  AppendLe(spec.tensor_parallel, &out);
  AppendLe(spec.pipeline_parallel, &out);
  AppendLe(spec.context_parallel, &out);
  AppendLe(static_cast<uint32_t>(spec.groups.size()), &out);
  for (const GroupSpec& group : spec.groups) {
    AppendString(group.name, &out);
    AppendLe(group.chunk_bytes, &out);
    AppendLe(group.shards, &out);
    AppendLe(static_cast<uint8_t>(group.replicated), &out);
  }
  AppendLe(spec.segment_bytes, &out);
  AppendLe(static_cast<uint32_t>(spec.extra.size()), &out);
  for (const auto& [key, value] : spec.extra) {
    AppendString(key, &out);
    AppendString(value, &out);
  }
  return out;
}

absl::Status CheckLocalShards(const NamespaceSpec& spec,
                              const std::vector<NamespaceRegistry::LocalShards>& local_shards) {
  for (size_t i = 0; i < local_shards.size(); ++i) {
    const std::string prefix = "local_shards[" + std::to_string(i) + "].";
    const uint32_t group = local_shards[i].group;
    absl::Status status = CheckRange(prefix + "group", group, {0, spec.groups.size() - 1});
    if (!status.ok()) return status;
    const std::vector<uint32_t>& shards = local_shards[i].shards;
    for (size_t j = 0; j < shards.size(); ++j) {
      status = CheckRange(prefix + "shards[" + std::to_string(j) + "]", shards[j],
                          {0, spec.groups[group].shards - 1});
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

// An empty list adds every shard of the group.
void AddShards(const GroupSpec& group, const std::vector<uint32_t>& shards,
               std::vector<uint32_t>* merged) {
  if (shards.empty()) {
    merged->resize(group.shards);
    std::iota(merged->begin(), merged->end(), 0u);
    return;
  }
  merged->insert(merged->end(), shards.begin(), shards.end());
  std::sort(merged->begin(), merged->end());
  merged->erase(std::unique(merged->begin(), merged->end()), merged->end());
}

}  // namespace

absl::Status NormalizeNamespace(const NamespaceLimits& limits, NamespaceSpec* spec) {
  FillDefaults(limits, spec);
  absl::Status status = CheckStrings(*spec);
  if (status.ok()) status = CheckNumbers(limits, *spec);
  if (status.ok()) status = CheckRange("groups", spec->groups.size(), {1, kGroupsMax}, " entries");
  uint64_t siblings = 0;
  for (size_t i = 0; status.ok() && i < spec->groups.size(); ++i) {
    status = CheckGroup(limits, *spec, i);
    siblings += spec->groups[i].shards;
  }
  // They are given up together.
  if (status.ok()) status = CheckRange("groups", siblings, {1, kSiblingsMax}, " shards in all");
  return status;
}

NamespaceId DigestOfNamespace(const NamespaceSpec& spec) {
  return {Xxh3Digest(EncodeNamespace(spec))};
}

absl::StatusOr<NamespaceRef> NamespaceRegistry::Register(
    NamespaceSpec spec, const std::vector<LocalShards>& local_shards) {
  absl::Status status = NormalizeNamespace(limits_, &spec);
  if (status.ok()) status = CheckLocalShards(spec, local_shards);
  if (!status.ok()) return status;
  const NamespaceId id = DigestOfNamespace(spec);

  MutexLock lock(&mu_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() && by_id_.size() >= kNamespacesMax) {
    return absl::ResourceExhaustedError("register namespace " + ToHex(id) + ": " +
                                        std::to_string(kNamespacesMax) + " are registered already");
  }
  auto info = found == by_id_.end() ? std::make_shared<NamespaceInfo>()
                                    : std::make_shared<NamespaceInfo>(*found->second);
  if (found == by_id_.end()) {
    info->id = id;
    info->local_shards.resize(spec.groups.size());
    info->spec = std::move(spec);
  }
  for (size_t group = 0; local_shards.empty() && group < info->spec.groups.size(); ++group) {
    AddShards(info->spec.groups[group], {}, &info->local_shards[group]);
  }
  for (const LocalShards& local : local_shards) {
    AddShards(info->spec.groups[local.group], local.shards, &info->local_shards[local.group]);
  }
  if (found != by_id_.end() && found->second->local_shards == info->local_shards) {
    return found->second;
  }
  NamespaceRef ref = std::move(info);
  by_id_[id] = ref;
  return ref;
}

NamespaceRef NamespaceRegistry::Find(const NamespaceId& id) const {
  MutexLock lock(&mu_);
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

std::vector<NamespaceRef> NamespaceRegistry::List() const {
  MutexLock lock(&mu_);
  std::vector<NamespaceRef> all;
  all.reserve(by_id_.size());
  for (const auto& [id, info] : by_id_) all.push_back(info);
  return all;
}

}  // namespace kvstream::store
