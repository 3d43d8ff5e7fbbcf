#include "server/engine/regions.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "server/base/check.h"

namespace kvstream::engine {

void Regions::Attach(DeviceMemoryAttached attached) {
  Session* session = parts_.sessions->Find(attached.session);
  if (session == nullptr || session->ending) return;
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
      return request.reply(absl::NotFoundError("handoff_memory_id " +
                                               std::to_string(request.handoff_memory_id) +
                                               ": the session has handed over no such memory"));
    }
    if (memory->second->gpu_uuid != request.spec.gpu_uuid ||
        memory->second->allocation_bytes != request.spec.allocation_bytes) {
      return request.reply(absl::InvalidArgumentError(
          "gpu_uuid, allocation_bytes: not those of the memory that was handed over"));
    }
    request.spec.handoff = memory->second;
  }
  session->regions_opening += 1;
  const uint64_t number = next_request_++;
  waiting_[number] = Waiting{request.session, std::move(request.reply), nullptr};
  parts_.gpus->Open(std::move(request.spec),
                    [poster = parts_.poster, id = request.session,
                     memory_id = request.handoff_memory_id, number](auto region) {
                      poster->Post(RegionOpened{id, memory_id, number, std::move(region)});
                    });
}

void Regions::Answer(uint64_t request, absl::StatusOr<RegisteredRegion> answer) {
  const auto it = waiting_.find(request);
  if (it == waiting_.end()) return;
  Waiting waiting = std::move(it->second);
  waiting_.erase(it);
  if (waiting.registered) return waiting.registered(std::move(answer));
  waiting.unregistered(answer.status());
}

void Regions::EndSession(SessionId session) {
  std::vector<uint64_t> ended;
  for (const auto& [request, waiting] : waiting_) {
    if (waiting.session == session) ended.push_back(request);
  }
  for (const uint64_t request : ended) {
    Answer(request, absl::FailedPreconditionError("session_id: the session is over"));
  }
}

void Regions::OnOpened(RegionOpened opened) {
  Session* session = parts_.sessions->Find(opened.session);
  KV_CHECK(session != nullptr && session->regions_opening > 0);  // It stays for this.
  session->regions_opening -= 1;
  if (opened.region.ok()) session->devices.insert((*opened.region)->device());
  if (session->ending) {  // Its call has been answered.
    opened.region = absl::CancelledError();
    return parts_.sessions->MaybeForget(opened.session);
  }
  if (!opened.region.ok()) return Answer(opened.request, opened.region.status());
  const gpu::Region& memory = **opened.region;
  if (const uint64_t landing = LandingOn(*session, memory.device());
      memory.layout() == nullptr && landing != 0) {
    return Answer(opened.request, absl::FailedPreconditionError(
                                      "landing_parts: region " + std::to_string(landing) +
                                      " is the session's landing buffer on this GPU already"));
  }
  Answer(opened.request, Keep(*session, *std::move(opened.region), opened.handoff_memory_id));
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
  } else if (const uint64_t landing = LandingOn(session, memory->device()); landing != 0) {
    const uint64_t bytes = memory->layout()->fragment_bytes();
    if (bytes < parts_.direct_bytes_min.loads) region.load_landing = landing;
    if (bytes < parts_.direct_bytes_min.stores) region.store_landing = landing;
  }
  region.memory = std::move(memory);
  region.handoff_memory_id = handoff_memory_id;
  const RegisteredRegion registered{id, region.load_landing != 0, region.store_landing != 0};
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
    if (other.load_landing != request.region_id && other.store_landing != request.region_id) {
      continue;
    }
    return request.reply(absl::FailedPreconditionError(name + ": region " + std::to_string(id) +
                                                       " goes through this landing buffer"));
  }
  const uint64_t memory_id = region->second.handoff_memory_id;
  const uint32_t device = region->second.memory->device();
  parts_.sessions->CountRegion(region->second, false);
  session->regions.erase(region);
  // The descriptor keeps the memory from going back to the device.
  if (std::none_of(session->regions.begin(), session->regions.end(), [memory_id](const auto& r) {
        return r.second.handoff_memory_id == memory_id;
      })) {
    session->handoff_memory.erase(memory_id);
  }
  const uint64_t number = next_request_++;
  waiting_[number] = Waiting{request.session, nullptr, std::move(request.reply)};
  parts_.gpus->WhenClosed(device,
                          [poster = parts_.poster, number] { poster->Post(RegionClosed{number}); });
}

}  // namespace kvstream::engine
