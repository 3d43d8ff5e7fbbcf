#include "server/rpc/translate_admin.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "server/rpc/field_error.h"
#include "server/rpc/translate.h"
#include "server/store/chunk_key.h"

namespace kvstream::rpc {
namespace {

constexpr uint64_t kDrainMsMax = 3600000;
constexpr FieldRange kIntervalMs = {100, 3600000};
constexpr uint64_t kIntervalMsDefault = 1000;
constexpr FieldRange kNamespaceIdBytes = {16, 16};
constexpr FieldRange kScrubRate = {kMiB, 16 * kGiB};

}  // namespace

absl::StatusOr<TimeNs> TranslateDrain(const v1::DrainRequest& request) {
  if (auto s = CheckRange("timeout_ms", request.timeout_ms(), {0, kDrainMsMax}); !s.ok()) return s;
  return static_cast<TimeNs>(request.timeout_ms()) * kMillisecond;
}

absl::StatusOr<engine::EvictChunks> TranslateEvict(const v1::EvictRequest& request,
                                                   const Limits& limits) {
  engine::EvictChunks out;
  out.dry_run = request.dry_run();
  const uint64_t seconds =
      request.older_than_ms() / 1000 + (request.older_than_ms() % 1000 + 999) / 1000;
  out.unused_seconds_min = static_cast<uint32_t>(std::min<uint64_t>(seconds, UINT32_MAX));
  store::ChunkKey key;
  if (!request.namespace_id().empty()) {
    if (auto s =
            CheckRange("namespace_id", request.namespace_id().size(), kNamespaceIdBytes, " bytes");
        !s.ok()) {
      return s;
    }
    std::memcpy(key.name_space.bytes.data(), request.namespace_id().data(),
                key.name_space.bytes.size());
    out.name_space = key.name_space;
  } else if (request.prefix_hashes_size() > 0) {
    return InvalidField("namespace_id", "missing, prefix hashes are of one");
  }
  if (auto s = CheckRange("salt", request.salt().size(), {0, kSaltBytesMax}, " bytes"); !s.ok()) {
    return s;
  }
  if (!request.salt().empty() && request.prefix_hashes_size() == 0) {
    return InvalidField("salt", "without prefix hashes, of which alone it says something");
  }
  if (auto s = CheckRange("prefix_hashes", static_cast<uint64_t>(request.prefix_hashes_size()),
                          {0, limits.lookup_keys_max}, " hashes");
      !s.ok()) {
    return s;
  }
  key.salt = store::DigestOfSalt(request.salt());
  for (int i = 0; i < request.prefix_hashes_size(); ++i) {
    key.prefix_hash = request.prefix_hashes(i);
    if (auto s = CheckRange(Element("prefix_hashes", i), key.prefix_hash.size(),
                            {store::kPrefixHashBytesMin, store::kPrefixHashBytesMax}, " bytes");
        !s.ok()) {
      return s;
    }
    out.prefixes.push_back(store::SiblingsOf(key));
  }
  return out;
}

absl::StatusOr<uint64_t> TranslateScrubRate(const v1::ScrubRequest& request) {
  const uint64_t rate = request.bytes_per_second();
  if (rate == 0) return rate;
  if (auto s = CheckRange("bytes_per_second", rate, kScrubRate); !s.ok()) return s;
  return rate;
}

absl::StatusOr<bool> TranslateTierState(const v1::SetTierStateRequest& request) {
  if (request.state() == v1::TIER_STATE_OK) return true;
  if (request.state() == v1::TIER_STATE_OUT) return false;
  return InvalidField(
      "state", std::to_string(request.state()) + ", must be TIER_STATE_OK or TIER_STATE_OUT");
}

absl::StatusOr<TimeNs> TranslateWatch(const v1::WatchRequest& request) {
  const uint64_t interval_ms =
      request.interval_ms() == 0 ? kIntervalMsDefault : request.interval_ms();
  if (auto s = CheckRange("interval_ms", interval_ms, kIntervalMs); !s.ok()) return s;
  return static_cast<TimeNs>(interval_ms) * kMillisecond;
}

}  // namespace kvstream::rpc
