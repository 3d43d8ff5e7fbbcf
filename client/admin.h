// The operator's calls to kvstreamd, without a session.
//
// Thread rule: any thread; calls block. Ownership: owns its channel.
// Errors: the words of kvstream.v1, as absl::Status. UNAVAILABLE and DEADLINE_EXCEEDED also say
// that the daemon is gone or does not answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kvstream/v1/admin.grpc.pb.h"

namespace kvstream {

class Admin {
 public:
  // A call takes at most `call_timeout`. Evict, Scrub and Watch take their time; they end with
  // UNAVAILABLE where the daemon does not answer for 40 s.
  Admin(const std::string& grpc_socket, absl::Duration call_timeout);

  // Takes a tier out of service or brings it back. A tier that was brought back is still
  // TIER_STATE_OUT while its quarantine is full.
  absl::StatusOr<v1::TierState> SetTierInService(const std::string& tier, bool in_service);

  // Waits for the drain for at most `timeout`, zero meaning the daemon's own.
  absl::StatusOr<v1::DrainReply> Drain(absl::Duration timeout);

  absl::StatusOr<v1::SetLogLevelReply> SetLogLevel(const std::string& level);

  // Every namespace that is registered or has chunks.
  absl::StatusOr<v1::ListNamespacesReply> ListNamespaces();

  // Gives up chunks; answers when their deletion is under way.
  absl::StatusOr<v1::EvictReply> Evict(const v1::EvictRequest& request);

  // Scrubs a tier, or all where the name is empty, at the config's rate where it is 0. Calls
  // `on_progress` as each tier begins, about every second and when it is done, until it returns
  // false, which ends the scrub: OK then, as when all is done; otherwise why it ended.
  absl::Status Scrub(const std::string& tier, uint64_t bytes_per_second,
                     const std::function<bool(const v1::ScrubProgress&)>& on_progress);

  // Calls `on_status` at once and then every interval until it returns false: OK then, otherwise
  // why the watch ended.
  absl::Status Watch(absl::Duration interval,
                     const std::function<bool(const v1::Status&)>& on_status);

 private:
  void SetDeadline(absl::Duration timeout, grpc::ClientContext* context) const;

  const absl::Duration call_timeout_;
  const std::unique_ptr<v1::Admin::Stub> stub_;
};

}  // namespace kvstream
