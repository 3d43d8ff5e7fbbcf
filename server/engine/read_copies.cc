// How what a tier has read gets to the client: verified, then copied to host buffers in the same
// pass, or to GPU memory after it.
#include <algorithm>
#include <utility>

#include "server/base/check.h"
#include "server/base/logging.h"
#include "server/engine/read_ops.h"

namespace kvstream::engine {

void ReadOps::OnRead(const tier::Completion& completion, TimeNs now) {
  now_ = now;
  const auto it = reads_.find(completion.ticket);
  KV_CHECK(it != reads_.end());
  if (completion.code == absl::StatusCode::kDataLoss) NoteDamage(it->second);
  // The use that the read had passes to its copy, if the router asks for one: take it again there.
  const ContentId content = it->second.content;
  if (completion.code == absl::StatusCode::kOk) {
    parts_.stats->tiers[completion.tier.value].segments_read.Add();
  }
  router_.OnRead(completion.ticket, completion.code, now);
  Pump(now);
  MaybeForget(completion.ticket);
  EndUse(content);
}

void ReadOps::NoteDamage(const ReadInFlight& read) {
  parts_.stats->tiers[read.tier.value].corrupt_reads.Add();
  if (!damage_quiet_[read.tier.value].IsOver(now_)) return;
  spdlog::warn("files are damaged, is the device sound? tier={} file={} segment={}",
               parts_.tiers[read.tier.value]->options().name, plans_.at(read.content).path,
               read.segment);
}

void ReadOps::MaybeForget(Ticket read) {
  const auto it = reads_.find(read);
  if (it != reads_.end() && it->second.copies == 0) reads_.erase(it);
}

const Place* ReadOps::PlaceOf(const sched::ItemRef& ref) const {
  const Operation& operation = operations_.at(ref.batch);
  return operation.ended_early ? nullptr : &operation.requests[ref.request].items[ref.item].place;
}

void ReadOps::OnSegmentCopied(const CopyResult& result, TimeNs now) {
  now_ = now;
  SegmentCopy& copy = segment_copies_.at(result.id);
  const ReadInFlight& read = reads_.at(copy.ticket);
  const ContentPlan& plan = plans_.at(read.content);
  if (result.checksum != plan.checksums[read.segment]) {
    NoteDamage(read);
    const auto items = std::move(copy.items);
    return EndCopies(result.id, items, absl::StatusCode::kDataLoss, now);
  }
  absl::InlinedVector<sched::ItemRef, 2> ended;
  for (const sched::ItemRef& ref : copy.items) {
    const Place* place = PlaceOf(ref);
    if (place == nullptr || place->host != nullptr) {
      ended.push_back(ref);
      continue;
    }
    auto group = std::find_if(copy.to_device.begin(), copy.to_device.end(),
                              [&ref](const auto& g) { return g.operation == ref.batch; });
    if (group == copy.to_device.end()) {
      copy.to_device.push_back({ref.batch, 0});
      group = std::prev(copy.to_device.end());
    }
    group->left += 1;
    const auto part = static_cast<uint32_t>(group - copy.to_device.begin());
    CopyToDevice(CopyKind::kSegment, result.id, part, ref, read.segment * plan.shape.segment_bytes,
                 {parts_.pool + read.slot.offset, plan.shape.BytesOf(read.segment)});
  }
  EndCopies(result.id, ended, absl::StatusCode::kOk, now);
}

void ReadOps::EndCopies(uint64_t id, std::span<const sched::ItemRef> items, absl::StatusCode code,
                        TimeNs now) {
  SegmentCopy& copy = segment_copies_.at(id);
  const Ticket ticket = copy.ticket;
  ReadInFlight& read = reads_.at(ticket);
  const ContentId content = read.content;
  if (code == absl::StatusCode::kOk) {
    const uint64_t bytes = plans_.at(content).shape.BytesOf(read.segment);
    parts_.stats->tiers[read.tier.value].bytes_delivered.Add(bytes * items.size());
  }
  copy.left -= items.size();
  const bool over = copy.left == 0;
  if (over) {
    segment_copies_.erase(id);
    read.copies -= 1;
  }
  router_.OnCopy(ticket, items, code, now);
  Pump(now);
  if (!over) return;
  MaybeForget(ticket);
  EndUse(content);
}

void ReadOps::OnStagedCopied(const CopyResult& result, TimeNs now) {
  now_ = now;
  StagedCopy& copy = staged_copies_.at(result.id);
  const StagedChunk& chunk = parts_.staging->Get(copy.chunk);
  const Operation& operation = operations_.at(copy.item.batch);
  const Place& place = operation.requests[copy.item.request].items[copy.item.item].place;
  const bool verified = result.checksum == chunk.checksums[result.part];
  copy.unverified -= 1;
  if (!verified || place.region == nullptr || operation.ended_early) {
    return EndStagedPart(result.id, verified, now);
  }
  CopyToDevice(CopyKind::kStaged, result.id, result.part, copy.item,
               result.part * chunk.shape.segment_bytes,
               {parts_.pool + chunk.slots[result.part].offset, chunk.shape.BytesOf(result.part)});
  if (copy.unverified > 0 || !copy.ok) return;
  // A worker that is slow keeps no copy thread busy. Last: others begin, and move the table.
  const sched::ItemRef item = copy.item;
  router_.OnStagedVerified(item, now);
  Pump(now);
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
    parts_.staging->Condemn(ended.chunk, now);
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
  Operation& operation = operations_.at(result.operation);
  if (result.code != absl::StatusCode::kOk && !operation.ended_early) {
    // The bytes were right, and there is no way to have them delivered.
    operation.ended_early = true;
    parts_.device->EndOperation(operation.session, result.operation, result.code, now);
    router_.Fail(result.operation, result.code, now);
    Pump(now);
  }
  if (result.kind == CopyKind::kStaged) return EndStagedPart(result.id, true, now);
  SegmentCopy& copy = segment_copies_.at(result.id);
  SegmentCopy::ToDevice& group = copy.to_device[result.part];
  group.left -= 1;
  if (group.left > 0) return;
  absl::InlinedVector<sched::ItemRef, 2> ended;
  for (const sched::ItemRef& ref : copy.items) {
    if (ref.batch != group.operation) continue;
    const auto& request = operations_.at(ref.batch).requests[ref.request];
    if (request.items[ref.item].place.region != nullptr) ended.push_back(ref);
  }
  EndCopies(result.id, ended, absl::StatusCode::kOk, now);
}

void ReadOps::Execute(const sched::CopySegment& command) {
  const ContentPlan& plan = plans_.at(command.content);
  Use(command.content);
  ReadInFlight& read = reads_.at(command.ticket);
  read.copies += 1;
  const uint64_t id = next_copy_++;
  SegmentCopy& copy = segment_copies_[id];
  copy.ticket = command.ticket;
  copy.items = command.items;
  copy.left = command.items.size();
  CopyJob job{.kind = CopyKind::kSegment,
              .id = id,
              .part = 0,
              .key = plan.key,
              .segment = command.segment,
              .source = {parts_.pool + command.slot.offset, plan.shape.BytesOf(command.segment)},
              .destinations = {},
              .pad_bytes = 0};
  for (const sched::ItemRef& ref : command.items) {
    const Place& place = operations_.at(ref.batch).requests[ref.request].items[ref.item].place;
    if (place.host == nullptr) continue;  // Once it has verified.
    job.destinations.push_back(place.host + command.segment * plan.shape.segment_bytes);
  }
  parts_.copies->Submit(std::move(job));
}

void ReadOps::Execute(const sched::CopyStaged& command) {
  const sched::ItemRef& ref = command.item;
  ItemPlace& item = operations_.at(ref.batch).requests[ref.request].items[ref.item];
  const StagedChunk* const found = parts_.staging->FindId(item.staged);
  if (found == nullptr) {
    // It has made room meanwhile. What there is now is kept for it, if the pool has it.
    const auto& plan = plans_.at(item.contents.front());
    const auto [name_space, shape] = std::pair(plan.name_space, plan.shape);
    LetGo(item);
    return router_.OnStagedGone(ref, PlanSources(&item, name_space, shape, /*pin=*/true), now_);
  }
  const StagedChunk& chunk = *found;
  parts_.staging->Pin(item.staged);
  const uint64_t id = next_copy_++;
  const uint32_t segments = chunk.shape.segments();
  staged_copies_[id] = StagedCopy{ref, item.staged, segments, segments, true};
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
