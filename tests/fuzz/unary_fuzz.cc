// Requests of the unary calls: RegisterNamespace, RegisterMemory, Lookup, and the operator's. The
// first byte says which, the others are the message. What is accepted is within the limits that
// kvstream.proto and admin.proto state.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kvstream/v1/kvstream.pb.h"
#include "server/base/check.h"
#include "server/gpu/layout.h"
#include "server/rpc/encode.h"
#include "server/rpc/translate_admin.h"
#include "server/rpc/translate_unary.h"
#include "tests/fuzz/registered_namespace.h"

namespace kvstream::rpc {
namespace {

constexpr uint64_t kLookupKeysMax = 12;
constexpr TimeNs kLeaseMax = 20 * kSecond;

void CheckSpec(const store::NamespaceSpec& spec) {
  KV_CHECK(!spec.model.empty() && spec.model.size() <= 512);
  KV_CHECK(!spec.weights_fingerprint.empty() && spec.weights_fingerprint.size() <= 512);
  KV_CHECK(!spec.kv_dtype.empty() && spec.kv_dtype.size() <= 64);
  KV_CHECK(!spec.layout.empty() && spec.layout.size() <= 256);
  KV_CHECK(spec.quantization.size() <= 256 && spec.rope.size() <= 1024);
  KV_CHECK(spec.strides.size() <= 16 && std::ranges::count(spec.strides, 0u) == 0);
  KV_CHECK(spec.page_tokens <= 65536);
  KV_CHECK(spec.chunk_tokens >= 1 && spec.chunk_tokens <= 1048576);
  KV_CHECK(spec.tensor_parallel >= 1 && spec.pipeline_parallel >= 1 && spec.context_parallel >= 1);
  KV_CHECK(spec.segment_bytes >= fuzz::kNamespaceLimits.segment_bytes_min &&
           spec.segment_bytes <= fuzz::kNamespaceLimits.segment_bytes_max &&
           spec.segment_bytes % 4096 == 0);
  KV_CHECK(!spec.groups.empty() && spec.groups.size() <= 64);
  for (const store::GroupSpec& group : spec.groups) {
    KV_CHECK(group.name.size() <= 128 && group.shards >= 1 && group.shards <= 4096);
    KV_CHECK(!group.replicated || group.shards == 1);
    KV_CHECK(group.chunk_bytes >= 1 && group.chunk_bytes <= fuzz::kNamespaceLimits.chunk_bytes_max);
    KV_CHECK((group.chunk_bytes - 1) / spec.segment_bytes < 480);
  }
  size_t extra_bytes = 0;
  for (const auto& [key, value] : spec.extra) extra_bytes += key.size() + value.size();
  KV_CHECK(extra_bytes <= 4096);
}

void CheckNamespace(const v1::RegisterNamespaceRequest& request) {
  if (!CheckRegistration(request).ok()) return;
  store::NamespaceRegistry registry(fuzz::kNamespaceLimits);
  const auto shards = TranslateLocalShards(request);
  const auto info = registry.Register(TranslateNamespace(request.namespace_()), shards);
  if (!info.ok()) {
    KV_CHECK(absl::IsInvalidArgument(info.status()) && registry.List().empty());
    return;
  }
  CheckSpec((*info)->spec);
  KV_CHECK((*info)->local_shards.size() == (*info)->spec.groups.size());
  for (size_t group = 0; group < (*info)->local_shards.size(); ++group) {
    const std::vector<uint32_t>& local = (*info)->local_shards[group];
    KV_CHECK(std::ranges::adjacent_find(local, std::ranges::greater_equal()) == local.end());
    KV_CHECK(local.empty() || local.back() < (*info)->spec.groups[group].shards);
  }
  // What the daemon tells of a namespace names the same one.
  v1::Namespace told;
  EncodeNamespace((*info)->spec, &told);
  const auto again = registry.Register(TranslateNamespace(told), shards);
  KV_CHECK(again.ok() && (*again)->id == (*info)->id && (*again)->spec == (*info)->spec);
}

void CheckRegion(const v1::RegisterMemoryRequest& request) {
  const auto spec = TranslateRegion(request);
  if (!spec.ok()) {
    KV_CHECK(absl::IsInvalidArgument(spec.status()));
    return;
  }
  KV_CHECK(!spec->gpu_uuid.empty() && spec->gpu_uuid.size() <= 128);
  KV_CHECK(spec->ipc_handle.size() == (request.has_cuda_ipc_handle() ? 64 : 0));
  KV_CHECK(request.session_id() != 0 && spec->allocation_bytes > 0);
  if (spec->tensors.empty()) {
    KV_CHECK(spec->landing_parts >= 1 && spec->landing_parts <= 64);
    KV_CHECK(spec->allocation_bytes / spec->landing_parts >= 4096);
    return;
  }
  KV_CHECK(spec->landing_parts == 0 && spec->block_count > 0);
  size_t runs = 0;
  for (const gpu::TensorLayout& tensor : spec->tensors) {
    for (const gpu::ByteRun& run : tensor.runs) {
      const auto end = static_cast<unsigned __int128>(spec->block_count - 1) * tensor.block_stride +
                       tensor.offset + run.offset + run.length;
      KV_CHECK(run.length > 0 && end <= spec->allocation_bytes);
      ++runs;
    }
  }
  KV_CHECK(runs > 0 && runs <= 65536);
  // Whatever else it refuses, blocks that overlap say, it must not fall over.
  const auto layout =
      gpu::BlockLayout::Make(spec->tensors, spec->block_count, spec->allocation_bytes);
  KV_CHECK(layout.ok() ? layout->block_bytes() > 0 : absl::IsInvalidArgument(layout.status()));
}

void CheckLookup(v1::LookupRequest request) {
  Limits limits;
  limits.lookup_keys_max = kLookupKeysMax;
  limits.lease_max = kLeaseMax;
  fuzz::MakeRight(request.mutable_namespace_id());
  const auto lookup = TranslateLookup(request, limits, fuzz::Namespaces());
  if (!lookup.ok()) {
    KV_CHECK(absl::IsInvalidArgument(lookup.status()) || absl::IsNotFound(lookup.status()));
    return;
  }
  const std::string& asked = request.prefix_hashes();
  const size_t hashes = asked.empty() ? 0 : asked.size() / request.prefix_hash_bytes();
  KV_CHECK(hashes == 0 || asked.size() == hashes * request.prefix_hash_bytes());
  KV_CHECK(lookup->members >= 1 && lookup->members <= 2);
  KV_CHECK(lookup->digests.size() == lookup->members * hashes);
  KV_CHECK(lookup->digests.size() <= kLookupKeysMax);
  KV_CHECK(lookup->lease_for >= 0 && lookup->lease_for <= kLeaseMax);
  KV_CHECK(lookup->lease_for == 0 || lookup->session.value != 0);
}

void CheckEvict(const v1::EvictRequest& request) {
  Limits limits;
  limits.lookup_keys_max = kLookupKeysMax;
  const auto evict = TranslateEvict(request, limits);
  if (!evict.ok()) {
    KV_CHECK(absl::IsInvalidArgument(evict.status()));
    return;
  }
  // What narrows an eviction is never lost on the way.
  KV_CHECK(evict->name_space.has_value() == !request.namespace_id().empty());
  KV_CHECK(evict->prefixes.size() == static_cast<size_t>(request.prefix_hashes_size()));
  KV_CHECK(evict->prefixes.empty() || evict->name_space.has_value());
  KV_CHECK(evict->unused_seconds_min > 0 || request.older_than_ms() == 0);
  KV_CHECK(evict->dry_run == request.dry_run());
}

void CheckDrain(const v1::DrainRequest& request) {
  const auto timeout = TranslateDrain(request);
  KV_CHECK(timeout.ok() == (request.timeout_ms() <= 3600000));
  KV_CHECK(!timeout.ok() || *timeout == static_cast<TimeNs>(request.timeout_ms()) * kMillisecond);
}

void CheckWatch(const v1::WatchRequest& request) {
  const auto interval = TranslateWatch(request);
  KV_CHECK(interval.ok() ||
           (request.interval_ms() != 0 && absl::IsInvalidArgument(interval.status())));
  KV_CHECK(!interval.ok() || (*interval >= 100 * kMillisecond && *interval <= 3600 * kSecond));
}

void CheckTierState(const v1::SetTierStateRequest& request) {
  const auto in_service = TranslateTierState(request);
  KV_CHECK(in_service.ok() ==
           (request.state() == v1::TIER_STATE_OK || request.state() == v1::TIER_STATE_OUT));
  KV_CHECK(!in_service.ok() || *in_service == (request.state() == v1::TIER_STATE_OK));
}

}  // namespace
}  // namespace kvstream::rpc

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstream;
  if (size == 0) return -1;
  const auto parse = [data, size](auto message, auto check) {
    if (!message.ParseFromArray(data + 1, static_cast<int>(size - 1))) return -1;
    check(std::move(message));
    return 0;
  };
  switch (data[0] % 7) {
    case 0:
      return parse(v1::RegisterNamespaceRequest(), rpc::CheckNamespace);
    case 1:
      return parse(v1::RegisterMemoryRequest(), rpc::CheckRegion);
    case 2:
      return parse(v1::LookupRequest(), rpc::CheckLookup);
    case 3:
      return parse(v1::DrainRequest(), rpc::CheckDrain);
    case 4:
      return parse(v1::WatchRequest(), rpc::CheckWatch);
    case 5:
      return parse(v1::EvictRequest(), rpc::CheckEvict);
    default:
      return parse(v1::SetTierStateRequest(), rpc::CheckTierState);
  }
}
