#include "server/engine/regions.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvstream::engine {

void Regions::Attach(DeviceMemoryAttached attached) {
  Session* session = parts_.sessions->Find(attached.session);
  if (session == nullptr || session->ending) return;
  if (session->handoff_memory.size() >= kHandoffMemoryMax) return;  // Register will not find it.
  session->handoff_memory[attached.handoff_memory_id] = std::move(attached.memory);
}

absl::Status Regions::MayRegister(const Session* session) const {
  if (session == nullptr || session->ending) {
    return absl::FailedPreconditionError("session_id: the session is over");
  }
  const size_t regions = session->regions.size() + session->regions_opening;
  if (regions < kRegionsMax) return absl::OkStatus();
  return absl::ResourceExhaustedError("regions: the session has " + std::to_string(regions) +
                                      ", the most there may be");
}

void Regions::Register(RegisterMemory request) {
  Session* session = parts_.sessions->Find(request.session);
  if (auto status = MayRegister(session); !status.ok()) return request.reply(status);
  if (request.handoff_memory_id != 0) {
    const auto memory = session->handoff_memory.find(request.handoff_memory_id);
    if (memory == session->handoff_memory.end()) {
      return request.reply(
          absl::NotFoundError("handoff_memory_id " + std::to_string(request.handoff_memory_id) +
                              ": the session has handed over no such memory, or more than " +
                              std::to_string(kHandoffMemoryMax)));
    }
    if (memory->second->gpu_uuid != request.spec.gpu_uuid ||
        memory->second->allocation_bytes != request.spec.allocation_bytes) {
      return request.reply(absl::InvalidArgumentError(
          "gpu_uuid, allocation_bytes: not those of the memory that was handed over"));
    }
    request.spec.handoff = memory->second;
  }
  session->regions_opening += 1;
  parts_.gpus->Open(
      std::move(request.spec),
      [poster = parts_.poster, id = request.session, memory_id = request.handoff_memory_id,
       reply = std::move(request.reply)](auto region) mutable {
        poster->Post(RegionOpened{id, memory_id, std::move(region), std::move(reply)});
      });
}

void Regions::OnOpened(RegionOpened opened) {
  Session* session = parts_.sessions->Find(opened.session);
  if (session != nullptr) session->regions_opening -= 1;
  if (!opened.region.ok()) return opened.reply(opened.region.status());
  if (session == nullptr || session->ending) {
    return opened.reply(absl::FailedPreconditionError("session_id: the session is over"));
  }
  const gpu::Region& memory = **opened.region;
  if (const uint64_t landing = LandingOn(*session, memory.device());
      memory.layout() == nullptr && landing != 0) {
    return opened.reply(
        absl::FailedPreconditionError("landing_parts: region " + std::to_string(landing) +
                                      " is the session's landing buffer on this GPU already"));
  }
  opened.reply(Keep(*session, *std::move(opened.region), opened.handoff_memory_id));
}

uint64_t Regions::LandingOn(const Session& session, uint32_t device) {
  for (const auto& [id, region] : session.regions) {
    if (region.parts != nullptr && region.memory->device() == device) return id;
  }
  return 0;
}

RegisteredRegion Regions::Keep(Session& session, gpu::RegionRef memory,
                               uint64_t handoff_memory_id) {
  const uint64_t id = next_region_++;
  WorkerRegion region;
  if (memory->layout() == nullptr) {
    region.parts = std::make_unique<Landing>(memory->landing_parts(), memory->part_bytes(),
                                             &parts_.stats->landing_parts_overdue);
  } else if (memory->layout()->fragment_bytes() < parts_.direct_bytes_min) {
    region.landing = LandingOn(session, memory->device());
  }
  region.memory = std::move(memory);
  region.handoff_memory_id = handoff_memory_id;
  const RegisteredRegion registered{id, region.landing != 0};
  parts_.sessions->CountRegion(region, true);
  session.regions.emplace(id, std::move(region));
  return registered;
}

void Regions::Unregister(UnregisterMemory request) {
  Session* session = parts_.sessions->Find(request.session);
  const std::string name = "region_id " + std::to_string(request.region_id);
  if (session == nullptr || !session->regions.contains(request.region_id)) {
    return request.reply(absl::NotFoundError(name + ": the session has no such region"));
  }
  const auto region = session->regions.find(request.region_id);
  if (region->second.operations > 0) {
    return request.reply(absl::FailedPreconditionError(
        name + ": " + std::to_string(region->second.operations) + " running operations use it"));
  }
  if (region->second.parts != nullptr && region->second.parts->WithWorker()) {
    return request.reply(absl::FailedPreconditionError(
        name + ": the worker has not said Scattered or Gathered for all of its parts"));
  }
  for (const auto& [id, other] : session->regions) {
    if (other.landing != request.region_id) continue;
    return request.reply(absl::FailedPreconditionError(name + ": region " + std::to_string(id) +
                                                       " goes through this landing buffer"));
  }
  const uint64_t memory_id = region->second.handoff_memory_id;
  parts_.sessions->CountRegion(region->second, false);
  session->regions.erase(region);
  // The descriptor keeps the memory from going back to the device.
  if (std::none_of(session->regions.begin(), session->regions.end(), [memory_id](const auto& r) {
        return r.second.handoff_memory_id == memory_id;
      })) {
    session->handoff_memory.erase(memory_id);
  }
  parts_.gpus->WhenClosed(
      [reply = std::move(request.reply)]() mutable { reply(absl::OkStatus()); });
}

}  // namespace kvstream::engine
