// Workers' GPU memory: opened on behalf of a session, closed with it or before. A region is used
// directly when its runs are long enough for the copy engines, else through the session's landing
// buffer on the same GPU, if it has one by then.
//
// Thread rule: the engine loop.
#pragma once

#include <cstdint>

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
  // Descriptors that are kept until no region uses them.
  static constexpr size_t kHandoffMemoryMax = 256;

  struct Parts {
    gpu::Gpus* gpus = nullptr;
    EventPoster* poster = nullptr;
    Sessions* sessions = nullptr;
    EngineStats* stats = nullptr;
    // Regions with a mean run of at least so many bytes are used directly.
    uint64_t direct_bytes_min = 0;
  };
  explicit Regions(const Parts& parts) : parts_(parts) {}

  void Attach(DeviceMemoryAttached attached);
  void Register(RegisterMemory request);
  void OnOpened(RegionOpened opened);
  void Unregister(UnregisterMemory request);

 private:
  absl::Status MayRegister(const Session* session) const;
  // The session's landing buffer on a device; 0: none.
  static uint64_t LandingOn(const Session& session, uint32_t device);
  RegisteredRegion Keep(Session& session, gpu::RegionRef memory, uint64_t handoff_memory_id);

  const Parts parts_;
  uint64_t next_region_ = 1;
};

}  // namespace kvstream::engine
