// How what a tier has read gets to the client: verified, then copied to host buffers in the same
// pass, or to GPU memory after it.
#include <utility>

#include "server/base/check.h"
#include "server/base/logging.h"
#include "server/engine/read_ops.h"

namespace kvstream::engine {

void ReadOps::OnRead(const tier::Completion& completion, TimeNs now) {
  now_ = now;
  const auto it = reads_.find(completion.ticket);
  KV_CHECK(it != reads_.end());
  // The use that the read had passes to its copy, if the router asks for one: take it again there.
  const ContentId content = it->second.content;
  if (completion.code == absl::StatusCode::kOk) {
    parts_.stats->tiers[completion.tier.value].segments_read.Add();
  }
  landed_ = completion.ticket;
  router_.OnRead(completion.ticket, completion.code, now);
  Pump(now);
  if (landed_ == completion.ticket)
    reads_.erase(completion.ticket);  // No copy of it was asked for.
  landed_ = Ticket{};
  EndUse(content);
}

void ReadOps::OnSegmentCopied(const CopyResult& result, TimeNs now) {
  now_ = now;
  const Ticket ticket{result.id};
  ReadInFlight& read = reads_.at(ticket);
  const ContentPlan& plan = plans_.at(read.content);
  const bool verified = result.checksum == plan.checksums[read.segment];
  if (!verified) {
    spdlog::warn("a segment failed verification: tier={} file={} segment={}",
                 parts_.tiers[read.tier.value]->options().name, plan.path, read.segment);
    parts_.stats->tiers[read.tier.value].corrupt_reads.Add();
    return EndSegmentCopy(ticket, false, now);
  }
  const auto items = std::move(read.device_items);
  read.device_items.clear();
  const uint64_t bytes = plan.shape.BytesOf(read.segment);
  for (const sched::ItemRef& ref : items) {
    if (operations_.at(ref.batch).ended_early) continue;
    read.device_copies += 1;
    CopyToDevice(CopyKind::kSegment, ticket.value, 0, ref, read.segment * plan.shape.segment_bytes,
                 {parts_.pool + read.slot.offset, bytes});
  }
  if (read.device_copies == 0) EndSegmentCopy(ticket, true, now);
}

void ReadOps::EndSegmentCopy(Ticket ticket, bool verified, TimeNs now) {
  const ReadInFlight& read = reads_.at(ticket);
  const ContentId content = read.content;
  if (verified) parts_.stats->tiers[read.tier.value].bytes_delivered.Add(read.delivers);
  landed_ = ticket;
  router_.OnCopy(ticket, verified ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss, now);
  Pump(now);
  if (landed_ == ticket) reads_.erase(ticket);
  landed_ = Ticket{};
  EndUse(content);
}

void ReadOps::OnStagedCopied(const CopyResult& result, TimeNs now) {
  now_ = now;
  const StagedCopy& copy = staged_copies_.at(result.id);
  const StagedChunk& chunk = parts_.staging->Get(copy.chunk);
  const Operation& operation = operations_.at(copy.item.batch);
  const Place& place = operation.requests[copy.item.request].items[copy.item.item].place;
  const bool verified = result.checksum == chunk.checksums[result.part];
  if (!verified || place.region == nullptr || operation.ended_early) {
    return EndStagedPart(result.id, verified, now);
  }
  CopyToDevice(CopyKind::kStaged, result.id, result.part, copy.item,
               result.part * chunk.shape.segment_bytes,
               {parts_.pool + chunk.slots[result.part].offset, chunk.shape.BytesOf(result.part)});
}

void ReadOps::EndStagedPart(uint64_t id, bool verified, TimeNs now) {
  const auto it = staged_copies_.find(id);
  KV_CHECK(it != staged_copies_.end());
  StagedCopy& copy = it->second;
  copy.ok = copy.ok && verified;
  copy.left -= 1;
  if (copy.left > 0) return;
  const StagedCopy ended = copy;
  const StagedChunk& chunk = parts_.staging->Get(ended.chunk);
  staged_copies_.erase(it);
  if (ended.ok) {
    parts_.stats->bytes_from_pool.Add(chunk.shape.payload_bytes);
  } else {
    spdlog::error("a staged chunk failed verification in memory: file={}", chunk.path);
  }
  parts_.staging->Unpin(ended.chunk);
  router_.OnStagedCopy(ended.item, ended.ok ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss,
                       now);
  Pump(now);
}

void ReadOps::CopyToDevice(CopyKind kind, uint64_t id, uint32_t part, const sched::ItemRef& ref,
                           uint64_t offset, std::span<std::byte> bytes) {
  const Operation& operation = operations_.at(ref.batch);
  parts_.device->Submit(DeviceJob{.kind = kind,
                                  .id = id,
                                  .part = part,
                                  .direction = gpu::Direction::kToDevice,
                                  .session = operation.session,
                                  .operation = ref.batch,
                                  .client_op = operation.client_op,
                                  .request_index = ref.request,
                                  .chunk_index = ref.item,
                                  .place = &operation.requests[ref.request].items[ref.item].place,
                                  .offset = offset,
                                  .bytes = bytes.size(),
                                  .host = bytes.data()},
                        now_);
}

void ReadOps::OnDeviceCopied(const DeviceResult& result, TimeNs now) {
  now_ = now;
  if (result.code != absl::StatusCode::kOk) {
    // The bytes were right, and there is no way to have them delivered.
    Operation& operation = operations_.at(result.operation);
    operation.ended_early = true;
    // Also what was asked for since it ended there.
    parts_.device->EndOperation(operation.session, result.operation, result.code, now);
    router_.Fail(result.operation, result.code, now);
    Pump(now);
  }
  if (result.kind == CopyKind::kStaged) return EndStagedPart(result.id, true, now);
  ReadInFlight& read = reads_.at(Ticket{result.id});
  read.device_copies -= 1;
  if (read.device_copies == 0) EndSegmentCopy(Ticket{result.id}, true, now);
}

void ReadOps::Execute(const sched::CopySegment& command) {
  const ContentPlan& plan = plans_.at(command.content);
  Use(command.content);
  if (landed_ == command.ticket) landed_ = Ticket{};  // Its entry lives on until the copy ended.
  ReadInFlight& read = reads_.at(command.ticket);
  const uint64_t bytes = plan.shape.BytesOf(command.segment);
  read.delivers = bytes * command.items.size();
  CopyJob job{.kind = CopyKind::kSegment,
              .id = command.ticket.value,
              .part = 0,
              .key = plan.key,
              .segment = command.segment,
              .source = {parts_.pool + command.slot.offset, bytes},
              .destinations = {},
              .pad_bytes = 0};
  for (const sched::ItemRef& ref : command.items) {
    const Place& place = operations_.at(ref.batch).requests[ref.request].items[ref.item].place;
    if (place.host == nullptr) {
      read.device_items.push_back(ref);
    } else {
      job.destinations.push_back(place.host + command.segment * plan.shape.segment_bytes);
    }
  }
  parts_.copies->Submit(std::move(job));
}

void ReadOps::Execute(const sched::CopyStaged& command) {
  const sched::ItemRef& ref = command.item;
  const ItemPlace& item = operations_.at(ref.batch).requests[ref.request].items[ref.item];
  const StagedChunk& chunk = parts_.staging->Get(item.staged);
  parts_.staging->Pin(item.staged);
  const uint64_t id = next_staged_copy_++;
  const uint32_t segments = chunk.shape.segments();
  staged_copies_[id] = StagedCopy{ref, item.staged, segments, true};
  for (uint32_t s = 0; s < segments; ++s) {
    CopyJob job{.kind = CopyKind::kStaged,
                .id = id,
                .part = s,
                .key = chunk.key,
                .segment = s,
                .source = {parts_.pool + chunk.slots[s].offset, chunk.shape.BytesOf(s)},
                .destinations = {},
                .pad_bytes = 0};
    if (item.place.host != nullptr) {
      job.destinations.push_back(item.place.host + s * chunk.shape.segment_bytes);
    }
    parts_.copies->Submit(std::move(job));
  }
}

}  // namespace kvstream::engine
