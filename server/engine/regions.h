// Workers' GPU memory: opened on behalf of a session, closed with it or before. A region is used
// directly when its runs are long enough for the copy engines, else through the session's landing
// buffer on the same GPU, if it has one by then.
//
// Thread rule: the engine loop.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/base/types.h"
#include "server/engine/api.h"
#include "server/engine/events.h"
#include "server/engine/sessions.h"
#include "server/engine/stats.h"
#include "server/gpu/gpu.h"

namespace kvstream::engine {

class Regions {
 public:
  // Of a session; each costs a mapping at most.
  static constexpr size_t kRegionsMax = 1024;

  struct Parts {
    gpu::Gpus* gpus = nullptr;
    EventPoster* poster = nullptr;
    Sessions* sessions = nullptr;
    EngineStats* stats = nullptr;
    DirectBytesMin direct_bytes_min;
  };
  explicit Regions(const Parts& parts) : parts_(parts) {}

  void Attach(DeviceMemoryAttached attached);
  void Register(RegisterMemory request);
  void OnOpened(RegionOpened opened);
  void OnClosed(const RegionClosed& closed) { Answer(closed.request, RegisteredRegion()); }
  void Unregister(UnregisterMemory request);
  // Answers what waits for a driver, which may not return.
  void EndSession(SessionId session);

 private:
  // A call that waits for a driver.
  struct Waiting {
    SessionId session;
    absl::AnyInvocable<void(absl::StatusOr<RegisteredRegion>)> registered;
    absl::AnyInvocable<void(absl::Status)> unregistered;
  };
  // Whichever it is; nothing when it was answered before.
  void Answer(uint64_t request, absl::StatusOr<RegisteredRegion> answer);
  absl::Status MayRegister(const Session* session) const;
  // The session's landing buffer on a device; 0: none.
  static uint64_t LandingOn(const Session& session, uint32_t device);
  RegisteredRegion Keep(Session& session, gpu::RegionRef memory, uint64_t handoff_memory_id);

  const Parts parts_;
  uint64_t next_region_ = 1;
  uint64_t next_request_ = 1;
  absl::flat_hash_map<uint64_t, Waiting> waiting_;
};

}  // namespace kvstream::engine
