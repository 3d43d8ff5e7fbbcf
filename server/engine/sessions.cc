#include "server/engine/sessions.h"

#include <algorithm>
#include <string>
#include <utility>

#include "server/base/check.h"

namespace kvstream::engine {
namespace {

// Once what was mapped on these devices is closed.
void CloseHandoff(gpu::Gpus* gpus, std::vector<uint32_t> devices, HandoffPeer* handoff,
                  SessionId session) {
  if (devices.empty()) return handoff->Close(session);
  const uint32_t device = devices.back();
  devices.pop_back();
  gpus->WhenClosed(device, [gpus, devices = std::move(devices), handoff, session]() mutable {
    CloseHandoff(gpus, std::move(devices), handoff, session);
  });
}

}  // namespace

Session* Sessions::Find(SessionId id) {
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : it->second.get();
}

void Sessions::Connect(SessionId id) {
  auto session = std::make_unique<Session>();
  session->id = id;
  KV_CHECK(sessions_.emplace(id, std::move(session)).second);
  stats_->sessions_open.Add();
  stats_->sessions_opened.Add();
}

void Sessions::Attach(SessionId id, uint64_t buffer_id,
                      std::unique_ptr<memory::SealedMemory> memory) {
  Session* session = Find(id);
  if (session == nullptr || session->ending) return unmapper_->Give(std::move(memory));
  stats_->host_buffers.Add();
  stats_->host_buffer_bytes.Add(memory->size());
  session->buffers.emplace(buffer_id, Buffer{std::move(memory), 0});
}

absl::Status Sessions::MayDrop(const Session* session, uint64_t buffer_id) {
  if (session == nullptr) return absl::FailedPreconditionError("drop buffer: the session is over");
  const auto it = session->buffers.find(buffer_id);
  if (it == session->buffers.end()) {
    return absl::NotFoundError("drop buffer " + std::to_string(buffer_id) + ": no such buffer");
  }
  if (it->second.operations > 0) {
    return absl::FailedPreconditionError("drop buffer " + std::to_string(buffer_id) + ": " +
                                         std::to_string(it->second.operations) +
                                         " running operations use it");
  }
  return absl::OkStatus();
}

void Sessions::Drop(DropBuffer drop) {
  Session* session = Find(drop.session);
  if (auto status = MayDrop(session, drop.buffer_id); !status.ok()) return drop.reply(status);
  const auto it = session->buffers.find(drop.buffer_id);
  stats_->host_buffers.Sub();
  stats_->host_buffer_bytes.Sub(it->second.memory->size());
  // The answer comes last: until then the bytes count against the session's limit.
  unmapper_->Give(std::move(it->second.memory),
                  [reply = std::move(drop.reply)]() mutable { reply(absl::OkStatus()); });
  session->buffers.erase(it);
}

absl::StatusOr<Place> Sessions::Locate(Session& session, Placement placement, uint64_t bytes,
                                       gpu::Direction direction) {
  if (auto* device = std::get_if<DeviceBlocks>(&placement)) {
    return LocateDevice(session, std::move(*device), bytes, direction);
  }
  const auto host = LocateHost(session, std::get<HostRange>(placement), bytes);
  if (!host.ok()) return host.status();
  Place place;
  place.host = *host;
  return place;
}

absl::StatusOr<std::byte*> Sessions::LocateHost(Session& session, const HostRange& range,
                                                uint64_t bytes) {
  const auto it = session.buffers.find(range.buffer_id);
  if (it == session.buffers.end()) {
    return absl::NotFoundError("host: buffer_id " + std::to_string(range.buffer_id) +
                               ": the session has no such buffer");
  }
  const auto memory = it->second.memory->bytes();
  if (range.offset > memory.size() || bytes > memory.size() - range.offset) {
    return absl::InvalidArgumentError("host: offset " + std::to_string(range.offset) + " + " +
                                      std::to_string(bytes) + " bytes: outside buffer " +
                                      std::to_string(range.buffer_id) + " of " +
                                      std::to_string(memory.size()) + " bytes");
  }
  return memory.data() + range.offset;
}

absl::StatusOr<Place> Sessions::LocateDevice(Session& session, DeviceBlocks device, uint64_t bytes,
                                             gpu::Direction direction) {
  const std::string region_id = "device: region_id " + std::to_string(device.region_id);
  const auto it = session.regions.find(device.region_id);
  if (it == session.regions.end()) {
    return absl::NotFoundError(region_id + ": the session has no such region");
  }
  const gpu::BlockLayout* layout = it->second.memory->layout();
  if (layout == nullptr) {
    return absl::InvalidArgumentError(region_id + ": a landing buffer has no blocks");
  }
  if (bytes % layout->block_bytes() != 0 || bytes / layout->block_bytes() != device.blocks.size()) {
    return absl::InvalidArgumentError("device: " + std::to_string(device.blocks.size()) +
                                      " blocks of " + std::to_string(layout->block_bytes()) +
                                      " bytes, and the chunk has " + std::to_string(bytes));
  }
  for (const uint32_t block : device.blocks) {
    if (block < layout->block_count()) continue;
    return absl::InvalidArgumentError("device: block " + std::to_string(block) +
                                      ": the region has " + std::to_string(layout->block_count()));
  }
  const uint64_t landing =
      direction == gpu::Direction::kToDevice ? it->second.load_landing : it->second.store_landing;
  return Place{nullptr, it->second.memory, landing, std::move(device.blocks)};
}

void Sessions::Note(const Placement& placement, MemoryInUse* memory) {
  if (const auto* host = std::get_if<HostRange>(&placement)) {
    memory->buffers.push_back(host->buffer_id);
  } else {
    memory->regions.push_back(std::get<DeviceBlocks>(placement).region_id);
  }
}

void Sessions::Hold(Session& session, MemoryInUse* memory) {
  for (auto* ids : {&memory->buffers, &memory->regions}) {
    std::sort(ids->begin(), ids->end());
    ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
  }
  for (const uint64_t id : memory->buffers) session.buffers.at(id).operations += 1;
  for (const uint64_t id : memory->regions) session.regions.at(id).operations += 1;
}

void Sessions::LetGo(Session& session, const MemoryInUse& memory) {
  for (const uint64_t id : memory.buffers) session.buffers.at(id).operations -= 1;
  for (const uint64_t id : memory.regions) session.regions.at(id).operations -= 1;
}

void Sessions::Send(SessionId id, SessionEvent event) {
  Session* session = Find(id);
  if (session == nullptr || session->sink == nullptr) return;
  session->sink->Send(std::move(event));
  if (session->unflushed) return;
  session->unflushed = true;
  unflushed_.push_back(id);
}

void Sessions::Flush() {
  for (const SessionId id : unflushed_) {
    Session* session = Find(id);
    if (session == nullptr) continue;
    session->unflushed = false;
    if (session->sink != nullptr) session->sink->Flush();
  }
  unflushed_.clear();
}

void Sessions::BeginEnd(Session& session, const absl::Status& why) {
  session.ending = true;
  if (session.sink == nullptr) return;
  session.sink->End(why);
  session.sink = nullptr;
}

void Sessions::MaybeForget(SessionId id) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end() || !it->second->ending || !it->second->operations.empty() ||
      it->second->regions_opening > 0) {
    return;
  }
  for (auto& [buffer_id, buffer] : it->second->buffers) {
    KV_CHECK(buffer.operations == 0);
    stats_->host_buffers.Sub();
    stats_->host_buffer_bytes.Sub(buffer.memory->size());
    unmapper_->Give(std::move(buffer.memory));
  }
  for (const auto& [region_id, region] : it->second->regions) CountRegion(region, false);
  std::vector<uint32_t> devices(it->second->devices.begin(), it->second->devices.end());
  sessions_.erase(it);  // With its regions: no DMA of them is running.
  stats_->sessions_open.Sub();
  // Last: the client may reuse its memory once it sees this.
  CloseHandoff(gpus_, std::move(devices), handoff_, id);
}

void Sessions::CountRegion(const WorkerRegion& region, bool more) {
  for (Gauge* gauge : {&stats_->regions, &stats_->landing_regions}) {
    if (gauge == &stats_->landing_regions && region.parts == nullptr) continue;
    more ? gauge->Add() : gauge->Sub();
  }
}

std::vector<SessionId> Sessions::Ids() const {
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_) ids.push_back(id);
  return ids;
}

}  // namespace kvstream::engine
