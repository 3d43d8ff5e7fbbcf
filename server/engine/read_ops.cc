#include "server/engine/read_ops.h"

#include <algorithm>
#include <utility>

#include "server/base/check.h"
#include "server/base/logging.h"
#include "server/store/chunk_format.h"

namespace kvstream::engine {
namespace {

// Ranks of one model agree on step ids; two models must not meet in one.
uint64_t StepKey(const ReadStep& step) {
  if (step.step_id == 0) return 0;
  uint64_t key = absl::HashOf(step.requests.front().name_space->id.bytes, step.step_id);
  return key == 0 ? 1 : key;
}

std::string Describe(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return "";
    case absl::StatusCode::kNotFound:
      return "a chunk is not on any tier";
    case absl::StatusCode::kDataLoss:
      return "a chunk failed verification on every replica";
    case absl::StatusCode::kUnavailable:
      return "no tier in service could read a chunk, or its GPU does not work";
    case absl::StatusCode::kDeadlineExceeded:
      return "the deadline passed";
    case absl::StatusCode::kCancelled:
      return "cancelled";
    default:
      return "failed";
  }
}

}  // namespace

ReadOps::ReadOps(const Parts& parts, const sched::RouterOptions& options)
    : parts_(parts),
      kept_(parts.slots),
      router_(options, parts.slots, parts.staging->has_cache() ? this : nullptr),
      to_submit_(parts.tiers.size()) {}

absl::Status ReadOps::Begin(Session& session, OperationId id, ReadStep step, TimeNs now) {
  now_ = now;
  Operation operation;
  operation.session = session.id;
  operation.client_op = step.client_op;
  operation.began = now;
  operation.unsent.client_op = step.client_op;
  if (auto status = PlaceItems(session, &step, &operation); !status.ok()) return status;
  Sessions::Hold(session, &operation.memory);
  sched::BatchSpec batch{.id = id,
                         .joint = step.joint,
                         .step_key = StepKey(step),
                         .ranks = step.ranks,
                         .join_deadline = step.join_deadline,
                         .deadline = step.deadline,
                         .requests = {}};
  for (size_t r = 0; r < step.requests.size(); ++r) {
    auto& items = batch.requests.emplace_back();
    const ReadRequest& request = step.requests[r];
    items.reserve(request.chunks.size());
    for (size_t i = 0; i < request.chunks.size(); ++i) {
      items.push_back(PlanItem(request, request.chunks[i], &operation.requests[r].items[i]));
    }
    if (!request.chunks.empty()) {
      parts_.index->Touch(request.chunks.back().key, now, /*force=*/false);
    }
  }
  session.operations[step.client_op] = id;
  operations_.emplace(id, std::move(operation));
  parts_.stats->read_steps.Add();
  router_.Admit(std::move(batch), now);
  return absl::OkStatus();
}

absl::Status ReadOps::PlaceItems(Session& session, ReadStep* step, Operation* operation) {
  for (size_t r = 0; r < step->requests.size(); ++r) {
    ReadRequest& request = step->requests[r];
    Request& placed = operation->requests.emplace_back();
    placed.request_id = request.request_id;
    placed.items.resize(request.chunks.size());
    for (size_t i = 0; i < request.chunks.size(); ++i) {
      ReadChunk& chunk = request.chunks[i];
      const uint64_t bytes = request.name_space->spec.groups[chunk.group].chunk_bytes;
      Sessions::Note(chunk.place, &operation->memory);
      auto place =
          Sessions::Locate(session, std::move(chunk.place), bytes, gpu::Direction::kToDevice);
      if (!place.ok()) {
        return absl::Status(place.status().code(), "requests[" + std::to_string(r) + "].chunks[" +
                                                       std::to_string(i) + "].placement." +
                                                       std::string(place.status().message()));
      }
      placed.items[i].key = chunk.key;
      placed.items[i].place = *std::move(place);
    }
  }
  return absl::OkStatus();
}

sched::Item ReadOps::PlanItem(const ReadRequest& request, const ReadChunk& chunk,
                              ItemPlace* place) {
  sched::Item item;
  item.shape = {request.name_space->spec.groups[chunk.group].chunk_bytes,
                request.name_space->spec.segment_bytes};
  item.sources = PlanSources(place, request.name_space->id, item.shape, /*pin=*/false);
  return item;
}

// What the place's chunk may be read from now.
sched::Sources ReadOps::PlanSources(ItemPlace* place, const NamespaceId& name_space,
                                    const ChunkShape& shape, bool pin) {
  sched::Sources sources;
  parts_.index->WithdrawOthers(place->key, name_space, shape);
  const auto entry = parts_.index->Find(place->key);
  if (!entry) return sources;
  for (const store::ContentCopy& copy : entry->copies) {
    const auto [plan, added] = plans_.try_emplace(copy.content);
    if (added) {
      plan->second.key = place->key;
      plan->second.path = store::ChunkPath(entry->name_space, place->key);
      plan->second.name_space = entry->name_space;
      plan->second.shape = entry->shape;
      plan->second.checksums.assign(copy.checksums.begin(), copy.checksums.end());
    }
    // Contents of two keys never meet but by a collision of their digests: that is a miss.
    if (plan->second.key != place->key) continue;
    plan->second.uses += 1;
    place->contents.push_back(copy.content);
    sources.push_back(sched::Source{copy.content, copy.tiers, copy.staged});
    if (!copy.staged) continue;
    const StagedChunk& staged = *parts_.staging->Find(place->key);
    parts_.staging->NoteUse(staged);
    place->staged = staged.id;
    // What the cache has makes room, if need be, until it is this item's turn: steps that wait
    // shall not hold the pool. But for what no tier has.
    place->pinned = pin || !staged.retained || (copy.tiers & router_.InService()).empty();
    if (place->pinned) parts_.staging->Pin(staged.id);
  }
  return sources;
}

void ReadOps::LetGo(ItemPlace& place) {
  for (const ContentId& content : place.contents) EndUse(content);
  place.contents.clear();
  if (std::exchange(place.pinned, false)) parts_.staging->Unpin(place.staged);
}

void ReadOps::EndUse(const ContentId& content) {
  const auto it = plans_.find(content);
  KV_CHECK(it != plans_.end() && it->second.uses > 0);
  it->second.uses -= 1;
  if (it->second.uses > 0) return;
  plans_.erase(it);
  kept_.Forget(content);
}

bool ReadOps::Keep(const ContentId& content, uint32_t segment, const sched::Slot& slot) {
  const ContentPlan& plan = plans_.at(content);
  std::vector<sched::Slot> slots;
  if (!kept_.Add(content, segment, plan.shape.segments(), slot, &slots)) return false;
  if (!slots.empty()) {
    parts_.staging->Retain(plan.key, plan.shape, content, plan.checksums, std::move(slots));
  }
  return true;
}

void ReadOps::SetTierInService(TierId tier, bool in_service, TimeNs now) {
  router_.SetTierInService(tier, in_service, now);
  parts_.staging->SetTierInService(tier, router_.lane(tier).usable());
  WarnIfNoneInService();
  Pump(now);
}

void ReadOps::Pump(TimeNs now) {
  now_ = now;
  router_.TakeCommands(&commands_);
  while (!commands_.empty()) {
    for (const auto& command : commands_) {
      std::visit([this](const auto& c) { Execute(c); }, command);
    }
    router_.TakeCommands(&commands_);
  }
}

void ReadOps::SubmitReads() {
  for (size_t t = 0; t < to_submit_.size(); ++t) {
    if (to_submit_[t].empty()) continue;
    parts_.tiers[t]->Read(to_submit_[t]);
    to_submit_[t].clear();
  }
  for (const OperationId id : with_unsent_) {
    const auto it = operations_.find(id);
    if (it != operations_.end()) SendResults(it->second);
  }
  with_unsent_.clear();
}

void ReadOps::Execute(const sched::ReadSegment& command) {
  const ContentPlan& plan = plans_.at(command.content);
  Use(command.content);
  ReadInFlight& read = reads_[command.ticket];
  read.content = command.content;
  read.segment = command.segment;
  read.tier = command.tier;
  read.slot = command.slot;
  read.generation = parts_.index->GenerationOf(plan.key, command.content, command.tier);
  to_submit_[command.tier.value].push_back(tier::ReadRequest{
      command.ticket, &plan.path, plan.shape.FileOffsetOf(command.segment),
      plan.shape.PaddedBytesOf(command.segment), parts_.pool + command.slot.offset});
}

void ReadOps::Execute(const sched::ReplicaFailed& command) {
  const ContentPlan& plan = plans_.at(command.content);
  TierEngineStats& stats = parts_.stats->tiers[command.tier.value];
  const uint16_t generation = reads_.at(command.read).generation;
  // Else it read what another file has taken the place of by now.
  const bool is_there =
      generation == parts_.index->GenerationOf(plan.key, command.content, command.tier);
  // What the daemon itself was short of says nothing of the replica.
  if (command.code != absl::StatusCode::kResourceExhausted) {
    parts_.index->RemoveReplica(plan.key, command.content, command.tier, generation);
  }
  if (command.code == absl::StatusCode::kNotFound) {
    stats.missing_files.Add();
  } else if (command.code == absl::StatusCode::kDataLoss) {
    if (is_there) parts_.asides->Begin(command.tier, plan.path, plan.key, [] {});
  } else {
    stats.failed_reads.Add();
    if (!failures_quiet_[command.tier.value].IsOver(now_)) return;
    spdlog::warn("a read failed: tier={} file={} code={}",
                 parts_.tiers[command.tier.value]->options().name, plan.path,
                 absl::StatusCodeToString(command.code));
  }
}

void ReadOps::Execute(const sched::ItemDone& command) {
  const sched::ItemRef& ref = command.item;
  Operation& operation = operations_.at(ref.batch);
  ItemPlace& place = operation.requests[ref.request].items[ref.item];
  const bool ok = command.code == absl::StatusCode::kOk;
  if (ok) {
    parts_.stats->chunks_delivered.Add();
    parts_.stats->bytes_delivered.Add(plans_.at(place.contents.front()).shape.payload_bytes);
  } else {
    parts_.stats->chunks_failed.Add();
    if (command.code == absl::StatusCode::kNotFound) parts_.stats->chunks_missing.Add();
  }
  LetGo(place);
  if (!operation.ended_early && (command.code == absl::StatusCode::kCancelled ||
                                 command.code == absl::StatusCode::kDeadlineExceeded)) {
    operation.ended_early = true;
    parts_.device->EndOperation(operation.session, ref.batch, command.code, now_);
  }
  if (operation.unsent.results.empty()) with_unsent_.push_back(ref.batch);
  operation.unsent.results.push_back({ref.request, ref.item, command.code});
}

void ReadOps::SendResults(Operation& operation) {
  if (operation.unsent.results.empty()) return;
  ChunkResults results{operation.client_op, std::move(operation.unsent.results)};
  operation.unsent.results.clear();
  parts_.sessions->Send(operation.session, std::move(results));
}

void ReadOps::Execute(const sched::RequestDone& command) {
  Operation& operation = operations_.at(command.batch);
  SendResults(operation);
  RequestDone done;
  done.client_op = operation.client_op;
  done.request_id = operation.requests[command.request].request_id;
  const auto& codes = command.codes;
  const auto failed = std::find_if(codes.begin(), codes.end(),
                                   [](auto code) { return code != absl::StatusCode::kOk; });
  done.leading_valid = static_cast<uint32_t>(failed - codes.begin());
  if (failed != codes.end()) {
    done.code = *failed;
    done.message = Describe(*failed);
    for (auto i = done.leading_valid + 1; i < codes.size(); ++i) {
      if (codes[i] == absl::StatusCode::kOk) done.other_valid.push_back(i);
    }
    if (command.request < operation.first_failed_request) {
      operation.first_failed_request = command.request;
      operation.first_failure = *failed;
    }
  }
  parts_.sessions->Send(operation.session, std::move(done));
}

void ReadOps::Execute(const sched::BatchDone& command) {
  const auto it = operations_.find(command.batch);
  Operation operation = std::move(it->second);
  operations_.erase(it);
  EngineStats& stats = *parts_.stats;
  stats.read_step_us.Observe(static_cast<uint64_t>((now_ - operation.began) / kMicrosecond));
  if (operation.first_failure == absl::StatusCode::kCancelled) stats.cancelled.Add();
  if (operation.first_failure == absl::StatusCode::kDeadlineExceeded) {
    stats.deadlines_exceeded.Add();
  }
  Session* session = parts_.sessions->Find(operation.session);
  KV_CHECK(session != nullptr);
  Sessions::LetGo(*session, operation.memory);
  operation.requests.clear();  // With its regions: they must be gone before the session can be.
  session->operations.erase(operation.client_op);
  parts_.sessions->Send(
      operation.session,
      Quiesced{operation.client_op,
               absl::Status(operation.first_failure, Describe(operation.first_failure))});
  parts_.sessions->MaybeForget(operation.session);
}

void ReadOps::Execute(const sched::TierOut& command) {
  parts_.stats->tiers[command.tier.value].times_out.Add();
  parts_.staging->SetTierInService(command.tier, false);
  spdlog::warn("tier taken out of service: tier={} quarantined_bytes={}",
               parts_.tiers[command.tier.value]->options().name,
               router_.lane(command.tier).quarantined());
  WarnIfNoneInService();
}

void ReadOps::Execute(const sched::TierBack& command) {
  const bool in_service = router_.lane(command.tier).usable();
  parts_.staging->SetTierInService(command.tier, in_service);
  spdlog::info("tier's quarantine is no longer full: tier={} in_service={}",
               parts_.tiers[command.tier.value]->options().name, in_service);
  WarnIfNoneInService();
}

void ReadOps::WarnIfNoneInService() {
  const bool none = router_.InService().empty();
  if (std::exchange(none_in_service_, none) == none) return;
  spdlog::warn("{} tier is in service", none ? "no" : "again a");
}

}  // namespace kvstream::engine
