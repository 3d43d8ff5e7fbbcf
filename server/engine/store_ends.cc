// What a store's client is told of its chunks, and how stores end: well, by cancel or deadline.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "server/base/check.h"
#include "server/engine/store_ops.h"

namespace kvstream::engine {

void StoreOps::Release(OperationId id, Operation& operation, uint32_t index, absl::StatusCode code,
                       bool existed) {
  KV_CHECK(operation.unreleased > 0);
  operation.unreleased -= 1;
  if (operation.released.results.empty() && operation.durable.results.empty()) {
    with_unsent_.push_back(id);
  }
  operation.released.results.push_back({index, code, existed});
  if (existed) parts_.stats->chunks_existed.Add();
  if (code != absl::StatusCode::kOk) {
    parts_.stats->chunks_dropped.Add();
    Fail(operation, index, code);
    if (operation.chunks[index].durable_open) {  // It will never be published: nothing to await.
      operation.chunks[index].durable_open = false;
      operation.durable_open -= 1;
    }
  }
  if (operation.unreleased > 0) return;
  operation.released.all_released = true;
  Session* session = parts_.sessions->Find(operation.session);
  Sessions::LetGo(*session, operation.memory);
  operation.memory = {};
  // Its regions may be closed now, though it may be long until it is durable.
  for (Chunk& chunk : operation.chunks) chunk.source = {};
}

void StoreOps::Durable(OperationId id, Operation& operation, uint32_t index,
                       absl::StatusCode code) {
  Chunk& chunk = operation.chunks[index];
  if (!chunk.durable_open) return;
  chunk.durable_open = false;
  operation.durable_open -= 1;
  if (operation.released.results.empty() && operation.durable.results.empty()) {
    with_unsent_.push_back(id);
  }
  operation.durable.results.push_back({index, code});
  if (code != absl::StatusCode::kOk) Fail(operation, index, code);
}

void StoreOps::OnDurable(const DurableNotice& notice, TimeNs now) {
  const auto it = operations_.find(notice.waiter.operation);
  if (it == operations_.end()) return;  // It ended early.
  Durable(it->first, it->second, notice.waiter.chunk_index, notice.code);
  MaybeEnd(notice.waiter.operation, now);
}

void StoreOps::Fail(Operation& operation, uint32_t index, absl::StatusCode code) {
  if (index >= operation.first_failed_chunk) return;
  operation.first_failed_chunk = index;
  operation.first_failure = code;
}

void StoreOps::DropUnadmitted(OperationId id, Operation& operation, absl::StatusCode code) {
  while (operation.next < operation.chunks.size()) {
    Release(id, operation, operation.next, code, false);
    operation.next += 1;
  }
}

void StoreOps::DropFollowing(OperationId id, Operation& operation, absl::StatusCode code) {
  std::vector<uint32_t> dropped;
  for (auto& [arriving_id, arriving] : arriving_) {
    std::erase_if(arriving.followers, [&](const DurableWaiter& follower) {
      if (follower.operation != id) return false;
      dropped.push_back(follower.chunk_index);
      return true;
    });
  }
  std::ranges::sort(dropped);
  for (const uint32_t index : dropped) Release(id, operation, index, code, false);
}

void StoreOps::EndEarly(OperationId id, absl::StatusCode code, TimeNs now) {
  const auto it = operations_.find(id);
  if (it == operations_.end()) return;
  Operation& operation = it->second;
  DropUnadmitted(id, operation, code);
  DropFollowing(id, operation, code);
  parts_.device->EndOperation(operation.session, id, code, now);
  if (code == absl::StatusCode::kCancelled) {
    for (auto& [arriving_id, arriving] : arriving_) {
      if (arriving.operation == id) arriving.code = code;
    }
  }
  for (uint32_t i = 0; i < operation.chunks.size(); ++i) {
    if (!operation.chunks[i].durable_open) continue;
    operation.chunks[i].durable_open = false;
    operation.durable_open -= 1;
    Fail(operation, i, code);
  }
  SetTimer(id, operation);
  MaybeEnd(id, now);
}

void StoreOps::Cancel(OperationId id, TimeNs now) {
  EndEarly(id, absl::StatusCode::kCancelled, now);
}

void StoreOps::Tick(TimeNs now) {
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const OperationId id = timers_.begin()->second;
    Operation& operation = operations_.at(id);
    if (operation.deadline <= now) {
      operation.deadline = kNever;
      EndEarly(id, absl::StatusCode::kDeadlineExceeded, now);
    } else {
      DropUnadmitted(id, operation, absl::StatusCode::kResourceExhausted);
      parts_.staging->WarnOfNoRoom(now);
      SetTimer(id, operation);
      MaybeEnd(id, now);
    }
  }
}

void StoreOps::Send(Operation& operation) {
  if (!operation.released.results.empty()) {
    StoreReleased released = std::move(operation.released);
    operation.released = StoreReleased{.client_op = operation.client_op, .results = {}};
    parts_.sessions->Send(operation.session, std::move(released));
  }
  if (!operation.durable.results.empty()) {
    StoreDurable durable = std::move(operation.durable);
    operation.durable = StoreDurable{.client_op = operation.client_op, .results = {}};
    parts_.sessions->Send(operation.session, std::move(durable));
  }
}

void StoreOps::SendResults() {
  for (const OperationId id : with_unsent_) {
    const auto it = operations_.find(id);
    if (it != operations_.end()) Send(it->second);
  }
  with_unsent_.clear();
}

void StoreOps::MaybeEnd(OperationId id, TimeNs now) {
  const auto it = operations_.find(id);
  if (it == operations_.end()) return;
  Operation& operation = it->second;
  if (operation.unreleased > 0) return;
  if (operation.released.all_released) {
    parts_.index->Touch(operation.chunks.back().key, now, /*force=*/false);
    parts_.stats->store_release_us.Observe(
        static_cast<uint64_t>((now - operation.began) / kMicrosecond));
    Send(operation);
  }
  if (operation.durable_open > 0) return;
  Send(operation);
  if (operation.timer != kNever) timers_.erase({operation.timer, id});
  const absl::StatusCode code = operation.first_failure;
  std::string message;
  if (code != absl::StatusCode::kOk) {
    message = "chunks[" + std::to_string(operation.first_failed_chunk) + "] was not kept";
  }
  if (code == absl::StatusCode::kCancelled) parts_.stats->cancelled.Add();
  if (code == absl::StatusCode::kDeadlineExceeded) parts_.stats->deadlines_exceeded.Add();
  const SessionId session_id = operation.session;
  const uint64_t client_op = operation.client_op;
  operations_.erase(it);
  parts_.sessions->Find(session_id)->operations.erase(client_op);
  parts_.sessions->Send(session_id, Quiesced{client_op, absl::Status(code, message)});
  parts_.sessions->MaybeForget(session_id);
}

}  // namespace kvstream::engine
