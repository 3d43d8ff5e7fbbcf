#include "server/engine/store_ops.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "server/base/check.h"
#include "server/store/chunk_key.h"

namespace kvstream::engine {

absl::Status StoreOps::Begin(Session& session, OperationId id, Store store, TimeNs now) {
  Operation operation;
  operation.session = session.id;
  operation.client_op = store.client_op;
  operation.name_space = store.name_space;
  operation.began = now;
  operation.admission_deadline = store.admission_deadline;
  operation.deadline = store.deadline;
  operation.want_durable = store.want_durable;
  std::optional<SiblingsId> before = store.after;
  operation.unreleased = static_cast<uint32_t>(store.chunks.size());
  operation.released.client_op = store.client_op;
  operation.durable.client_op = store.client_op;
  for (size_t i = 0; i < store.chunks.size(); ++i) {
    StoreChunk& chunk = store.chunks[i];
    const uint64_t bytes = store.name_space->spec.groups[chunk.key.group].chunk_bytes;
    Sessions::Note(chunk.place, &operation.memory);
    auto place = Sessions::Locate(session, std::move(chunk.place), bytes, gpu::Direction::kToHost);
    if (!place.ok()) {
      return absl::Status(place.status().code(), "chunks[" + std::to_string(i) + "].placement." +
                                                     std::string(place.status().message()));
    }
    const SiblingsId siblings = store::SiblingsOf(chunk.key);
    if (!operation.chunks.empty() && operation.chunks.back().siblings != siblings) {
      before = operation.chunks.back().siblings;
    }
    operation.chunks.push_back(Chunk{store::EncodeKey(chunk.key), chunk.digest, siblings, before,
                                     bytes, *std::move(place), store.want_durable});
  }
  if (store.want_durable) operation.durable_open = operation.unreleased;
  Sessions::Hold(session, &operation.memory);
  session.operations[store.client_op] = id;
  parts_.stats->stores.Add();
  waiting_.push_back(id);
  Operation& running = operations_.emplace(id, std::move(operation)).first->second;
  SetTimer(id, running);
  return absl::OkStatus();
}

void StoreOps::SetTimer(OperationId id, Operation& operation) {
  if (operation.timer != kNever) timers_.erase({operation.timer, id});
  operation.timer = operation.deadline;
  // Admission may be over on arrival: then what has no room at the first try is dropped.
  if (operation.next < operation.chunks.size()) {
    operation.timer = std::min(operation.timer, operation.admission_deadline);
  }
  if (operation.timer != kNever) timers_.emplace(operation.timer, id);
}

void StoreOps::Admit(TimeNs now) {
  no_room_ = false;
  while (!waiting_.empty()) {
    const OperationId id = waiting_.front();
    const auto it = operations_.find(id);
    if (it == operations_.end() || it->second.next == it->second.chunks.size()) {
      waiting_.pop_front();
      continue;
    }
    Operation& operation = it->second;
    if (AdmitChunk(id, operation, now) == Admission::kNoRoom) {
      no_room_ = true;
      return;
    }
    operation.next += 1;
    if (operation.next < operation.chunks.size()) continue;
    waiting_.pop_front();
    SetTimer(id, operation);
    MaybeEnd(id, now);
  }
}

StoreOps::Admission StoreOps::AdmitChunk(OperationId id, Operation& operation, TimeNs now) {
  const uint32_t index = operation.next;
  const Chunk& chunk = operation.chunks[index];
  // What only a tier out of service holds is stored anew: it is a miss for who reads it. So is what
  // only the cache has, which may let it go, and what only another node has told of.
  const StagedChunk* const staged = parts_.staging->Find(chunk.key);
  const ChunkShape shape{chunk.bytes, operation.name_space->spec.segment_bytes};
  parts_.index->WithdrawOthers(chunk.key, operation.name_space->id, shape);
  const bool kept = (staged != nullptr && !staged->retained) ||
                    parts_.index->OwnOnTiers(chunk.key, parts_.router->InService());
  if (kept || arriving_by_key_.contains(chunk.key)) {
    Existing(id, operation, index);
    return Admission::kDone;
  }
  if (!CanEverFit(shape)) {
    parts_.staging->WarnOfNoRoom(now);
    Release(id, operation, index, absl::StatusCode::kResourceExhausted, false);
    return Admission::kDone;
  }
  if (operation.deadline <= now) return Admission::kNoRoom;  // Tick ends it.
  const auto why_not = parts_.device->WhyNot(operation.session, chunk.source);
  if (why_not != absl::StatusCode::kOk) {
    Release(id, operation, index, why_not, false);
    return Admission::kDone;
  }
  auto slots = TakeSlots(shape);
  if (!slots) return Admission::kNoRoom;
  Copy(id, operation, std::move(*slots), shape, now);
  return Admission::kDone;
}

bool StoreOps::CanEverFit(const ChunkShape& shape) const {
  uint64_t bytes = 0;
  for (uint32_t s = 0; s < shape.segments(); ++s) bytes += std::bit_ceil(shape.PaddedBytesOf(s));
  return bytes <= parts_.slots->shared_bytes();
}

std::optional<std::vector<sched::Slot>> StoreOps::TakeSlots(const ChunkShape& shape) {
  std::vector<sched::Slot> slots;
  for (uint32_t s = 0; s < shape.segments(); ++s) {
    const auto slot = parts_.slots->AllocateWrite(shape.PaddedBytesOf(s));
    if (!slot) {
      for (const auto& taken : slots) parts_.slots->Free(taken);
      return std::nullopt;
    }
    slots.push_back(*slot);
  }
  return slots;
}

void StoreOps::Copy(OperationId id, const Operation& operation, std::vector<sched::Slot> slots,
                    const ChunkShape& shape, TimeNs now) {
  const Chunk& chunk = operation.chunks[operation.next];
  const uint64_t arriving_id = next_arriving_++;
  Arriving& arriving = arriving_[arriving_id];
  arriving.operation = id;
  arriving.chunk_index = operation.next;
  arriving.parts_left = shape.segments();
  arriving.chunk = NewChunk{chunk.encoded_key,
                            chunk.key,
                            chunk.siblings,
                            operation.name_space->id,
                            shape,
                            std::move(slots),
                            std::vector<uint64_t>(shape.segments())};
  arriving_by_key_[chunk.key] = arriving_id;
  if (chunk.source.host == nullptr) return CopyFromDevice(arriving_id, operation, now);
  for (uint32_t s = 0; s < shape.segments(); ++s) {
    parts_.copies->Submit(
        CopyJob{.kind = CopyKind::kStore,
                .id = arriving_id,
                .part = s,
                .key = chunk.key,
                .segment = s,
                .source = {chunk.source.host + s * shape.segment_bytes, shape.BytesOf(s)},
                .destinations = {parts_.pool + arriving.chunk.slots[s].offset},
                .pad_bytes = shape.PaddedBytesOf(s) - shape.BytesOf(s)});
  }
}

void StoreOps::CopyFromDevice(uint64_t arriving_id, const Operation& operation, TimeNs now) {
  const Arriving& arriving = arriving_.at(arriving_id);
  const ChunkShape& shape = arriving.chunk.shape;
  for (uint32_t s = 0; s < shape.segments(); ++s) {
    std::byte* slot = parts_.pool + arriving.chunk.slots[s].offset;
    std::memset(slot + shape.BytesOf(s), 0, shape.PaddedBytesOf(s) - shape.BytesOf(s));
    parts_.device->Submit(DeviceJob{.kind = CopyKind::kStore,
                                    .id = arriving_id,
                                    .part = s,
                                    .direction = gpu::Direction::kToHost,
                                    .session = operation.session,
                                    .operation = arriving.operation,
                                    .client_op = operation.client_op,
                                    .request_index = 0,
                                    .chunk_index = arriving.chunk_index,
                                    .place = &operation.chunks[arriving.chunk_index].source,
                                    .offset = s * shape.segment_bytes,
                                    .bytes = shape.BytesOf(s),
                                    .host = slot},
                          now);
  }
}

void StoreOps::OnDeviceCopied(const DeviceResult& result, TimeNs now) {
  Arriving& arriving = arriving_.at(result.id);
  if (result.code != absl::StatusCode::kOk && arriving.code == absl::StatusCode::kOk) {
    arriving.code = result.code;
    // What comes after it would most likely wait in vain, and hold the engine up.
    Operation& operation = operations_.at(arriving.operation);
    DropUnadmitted(arriving.operation, operation, result.code);
    SetTimer(arriving.operation, operation);
    parts_.device->EndOperation(operation.session, arriving.operation, result.code, now);
  }
  if (arriving.code != absl::StatusCode::kOk) return EndPart(result.id, now);
  const ChunkShape& shape = arriving.chunk.shape;
  parts_.copies->Submit(CopyJob{.kind = CopyKind::kStore,
                                .id = result.id,
                                .part = result.part,
                                .key = arriving.chunk.key,
                                .segment = result.part,
                                .source = {parts_.pool + arriving.chunk.slots[result.part].offset,
                                           shape.BytesOf(result.part)},
                                .destinations = {},
                                .pad_bytes = 0});
}

void StoreOps::Existing(OperationId id, Operation& operation, uint32_t index) {
  const KeyDigest key = operation.chunks[index].key;
  const DurableWaiter waiter{id, index};
  if (const auto arriving = arriving_by_key_.find(key); arriving != arriving_by_key_.end()) {
    arriving_.at(arriving->second).followers.push_back(waiter);
    return;
  }
  Release(id, operation, index, absl::StatusCode::kOk, true);
  if (!operation.want_durable) return;
  StagedChunk* staged = parts_.staging->Find(key);
  if (staged != nullptr && !staged->durable) {
    staged->waiters.push_back(waiter);
  } else {
    Durable(id, operation, index, absl::StatusCode::kOk);
  }
}

void StoreOps::OnCopied(const CopyResult& result, TimeNs now) {
  const auto it = arriving_.find(result.id);
  KV_CHECK(it != arriving_.end());
  it->second.chunk.checksums[result.part] = result.checksum;
  EndPart(result.id, now);
}

void StoreOps::EndPart(uint64_t arriving_id, TimeNs now) {
  const auto it = arriving_.find(arriving_id);
  it->second.parts_left -= 1;
  if (it->second.parts_left > 0) return;
  Arriving arriving = std::move(it->second);
  arriving_.erase(it);
  arriving_by_key_.erase(arriving.chunk.key);
  const auto op = operations_.find(arriving.operation);
  KV_CHECK(op != operations_.end());
  Operation& operation = op->second;
  const DurableWaiter self{arriving.operation, arriving.chunk_index};
  if (arriving.code != absl::StatusCode::kOk) {
    for (const auto& slot : arriving.chunk.slots) parts_.slots->Free(slot);
    Release(arriving.operation, operation, arriving.chunk_index, arriving.code, false);
    ReleaseFollowers(arriving.followers, absl::StatusCode::kUnavailable, now);
  } else {
    parts_.stats->chunks_stored.Add();
    parts_.stats->bytes_stored.Add(arriving.chunk.shape.payload_bytes);
    const StagedId id = parts_.staging->Add(std::move(arriving.chunk), now);
    const Chunk& chunk = operation.chunks[arriving.chunk_index];
    if (chunk.before.has_value()) parts_.index->Follow(chunk.key, *chunk.before);
    StagedChunk& staged = parts_.staging->Get(id);
    if (operation.want_durable) staged.waiters.push_back(self);
    for (const DurableWaiter& follower : arriving.followers) {
      if (operations_.at(follower.operation).want_durable) staged.waiters.push_back(follower);
    }
    Release(arriving.operation, operation, arriving.chunk_index, absl::StatusCode::kOk, false);
    ReleaseFollowers(arriving.followers, absl::StatusCode::kOk, now);
  }
  MaybeEnd(arriving.operation, now);
}

void StoreOps::ReleaseFollowers(const std::vector<DurableWaiter>& followers, absl::StatusCode code,
                                TimeNs now) {
  for (const DurableWaiter& follower : followers) {
    Release(follower.operation, operations_.at(follower.operation), follower.chunk_index, code,
            code == absl::StatusCode::kOk);
    MaybeEnd(follower.operation, now);
  }
}

}  // namespace kvstream::engine
