// Requests of the operator's calls, from protobuf to plain values, validated as in translate.h.
//
// Thread rule: stateless; any thread. Ownership: results are values. Errors: INVALID_ARGUMENT names
// the field.
#pragma once

#include "absl/status/statusor.h"
#include "kvstream/v1/admin.pb.h"
#include "server/base/types.h"
#include "server/engine/index_api.h"
#include "server/rpc/facts.h"

namespace kvstream::rpc {

// How long to wait; 0 means the config's time.
absl::StatusOr<TimeNs> TranslateDrain(const v1::DrainRequest& request);

// Which chunks shall go, without the reply.
absl::StatusOr<engine::EvictChunks> TranslateEvict(const v1::EvictRequest& request,
                                                   const Limits& limits);

// Bytes per second; 0 means the config's rate.
absl::StatusOr<uint64_t> TranslateScrubRate(const v1::ScrubRequest& request);

// Whether the tier is to be in service. Which tier is not looked at.
absl::StatusOr<bool> TranslateTierState(const v1::SetTierStateRequest& request);

// The interval between two statuses.
absl::StatusOr<TimeNs> TranslateWatch(const v1::WatchRequest& request);

}  // namespace kvstream::rpc
