#include "server/rpc/translate_admin.h"

#include <string>

#include "server/rpc/field_error.h"

namespace kvstream::rpc {
namespace {

constexpr uint64_t kDrainMsMax = 3600000;
constexpr FieldRange kIntervalMs = {100, 3600000};
constexpr uint64_t kIntervalMsDefault = 1000;
constexpr FieldRange kScrubRate = {kMiB, 16 * kGiB};

}  // namespace

absl::StatusOr<TimeNs> TranslateDrain(const v1::DrainRequest& request) {
  if (auto s = CheckRange("timeout_ms", request.timeout_ms(), {0, kDrainMsMax}); !s.ok()) return s;
  return static_cast<TimeNs>(request.timeout_ms()) * kMillisecond;
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
