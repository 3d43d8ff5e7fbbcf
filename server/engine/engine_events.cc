// What the engine does with each event of the rpc room.
#include <algorithm>
#include <utility>
#include <variant>

#include "server/base/logging.h"
#include "server/engine/engine.h"
#include "server/engine/engine_state.h"

namespace kvstream::engine {

void Engine::Handle(Event& event, TimeNs now) {
  std::visit([this, now](auto& e) { On(e, now); }, event);
}

void Engine::On(SessionConnected& event, TimeNs now) {
  state_->sessions.Connect(event.session);
  if (ending_) {
    EndSession(*state_->sessions.Find(event.session), absl::UnavailableError("the daemon stops"),
               now);
  }
}

void Engine::On(BufferAttached& event, TimeNs) {
  state_->sessions.Attach(event.session, event.buffer_id, std::move(event.memory));
}

void Engine::On(DropBuffer& event, TimeNs) { state_->sessions.Drop(std::move(event)); }

void Engine::On(HandoffClosed& event, TimeNs now) {
  Session* session = state_->sessions.Find(event.session);
  if (session == nullptr) return;
  EndSession(*session, absl::CancelledError("the handoff connection closed"), now);
}

void Engine::On(StreamOpened& event, TimeNs) {
  Session* session = state_->sessions.Find(event.session);
  if (draining_) {
    event.sink->End(absl::UnavailableError("the daemon is draining"));
  } else if (session == nullptr || session->ending) {
    event.sink->End(absl::FailedPreconditionError("hello: the session is over"));
  } else if (session->had_stream) {
    event.sink->End(absl::FailedPreconditionError("hello: the session already has a stream"));
  } else {
    session->had_stream = true;
    session->client_name = event.client_name;
    session->sink = event.sink;
    spdlog::debug("session opened: session={} client={}", session->id.value, session->client_name);
    state_->sessions.Send(session->id, SessionOpened{session->id});
  }
}

void Engine::On(StreamClosed& event, TimeNs now) {
  Session* session = state_->sessions.Find(event.session);
  if (session == nullptr || session->sink == nullptr || session->sink.get() != event.sink) return;
  session->sink = nullptr;
  EndSession(*session, absl::CancelledError("the stream closed"), now);
}

void Engine::On(MessageArrived& event, TimeNs now) {
  Session* session = state_->sessions.Find(event.session);
  if (session == nullptr || session->sink == nullptr || session->sink.get() != event.sink) return;
  std::visit([&](auto& message) { OnMessage(*session, message, now); }, event.message);
}

void Engine::On(Lookup& event, TimeNs now) { state_->lookups.Begin(std::move(event), now); }

void Engine::On(RegisterMemory& event, TimeNs) { state_->regions.Register(std::move(event)); }

void Engine::On(RegionOpened& event, TimeNs) { state_->regions.OnOpened(std::move(event)); }

void Engine::On(RegionClosed& event, TimeNs) { state_->regions.OnClosed(event); }

void Engine::On(UnregisterMemory& event, TimeNs) { state_->regions.Unregister(std::move(event)); }

void Engine::On(DeviceMemoryAttached& event, TimeNs) { state_->regions.Attach(std::move(event)); }

void Engine::On(ListUsage& event, TimeNs) { state_->index_walks.Begin(std::move(event)); }

void Engine::On(EvictChunks& event, TimeNs) { state_->index_walks.Begin(std::move(event)); }

void Engine::On(SetTierInService& event, TimeNs now) {
  state_->controls.Begin(std::move(event), now);
}

void Engine::On(Drain& event, TimeNs now) {
  draining_ = true;
  if (event.timeout == 0) event.timeout = options_.drain;
  state_->controls.Begin(std::move(event), now);
}

void Engine::On(BeginScrub& event, TimeNs) {
  if (draining_) {
    if (event.sink != nullptr) {
      event.sink->End(absl::UnavailableError("the daemon is draining"));
    }
    return;
  }
  state_->scrubber.Begin(std::move(event));
}

void Engine::On(FileDamaged& event, TimeNs) { state_->scrubber.OnDamaged(std::move(event)); }

void Engine::On(FileRepaired& event, TimeNs) { state_->scrubber.OnRepaired(event); }

void Engine::On(TierScrubbed&, TimeNs) { state_->scrubber.OnTierScrubbed(); }

void Engine::On(SnapshotOpened& event, TimeNs) { state_->restorer.OnOpened(event); }

void Engine::On(FilesFound& event, TimeNs now) { state_->restorer.OnFound(event, now); }

void Engine::On(TierRestored& event, TimeNs) { state_->restorer.OnRestored(event); }

void Engine::On(HintsHeard& event, TimeNs now) { state_->cataloguer.OnHeard(event, now); }

absl::Status Engine::MayBegin(const Session& session) const {
  if (draining_) return absl::UnavailableError("the daemon is draining");
  if (session.operations.size() >= options_.operations_per_session_max) {
    return absl::ResourceExhaustedError("operations: " + std::to_string(session.operations.size()) +
                                        " are running, the limit of operations_per_session_max");
  }
  return absl::OkStatus();
}

bool Engine::TakesFreshId(Session& session, uint64_t client_op, TimeNs now) {
  if (!session.operations.contains(client_op)) return true;
  stats_.rejected.Add();
  EndSession(session,
             absl::InvalidArgumentError("operation_id " + std::to_string(client_op) +
                                        ": in use by a running operation"),
             now);
  return false;
}

void Engine::Reject(const Session& session, uint64_t client_op, const absl::Status& status) {
  stats_.rejected.Add();
  state_->sessions.Send(session.id, Quiesced{client_op, status});
}

void Engine::OnMessage(Session& session, ReadStep& step, TimeNs now) {
  const uint64_t client_op = step.client_op;
  if (!TakesFreshId(session, client_op, now)) return;
  absl::Status status = MayBegin(session);
  const OperationId id{state_->next_operation++};
  if (status.ok()) status = state_->reads.Begin(session, id, std::move(step), now);
  if (!status.ok()) Reject(session, client_op, status);
  state_->reads.Pump(now);
}

void Engine::OnMessage(Session& session, Store& store, TimeNs now) {
  const uint64_t client_op = store.client_op;
  if (!TakesFreshId(session, client_op, now)) return;
  absl::Status status = MayBegin(session);
  const OperationId id{state_->next_operation++};
  if (status.ok()) status = state_->stores.Begin(session, id, std::move(store), now);
  if (!status.ok()) Reject(session, client_op, status);
}

void Engine::OnMessage(Session& session, Refused& refused, TimeNs now) {
  if (!TakesFreshId(session, refused.client_op, now)) return;
  Reject(session, refused.client_op, refused.status);
}

void Engine::OnMessage(Session& session, Cancel& cancel, TimeNs now) {
  const auto it = session.operations.find(cancel.client_op);
  if (it != session.operations.end()) CancelOperation(it->second, now);
}

void Engine::OnMessage(Session&, ForwardBegan&, TimeNs) { state_->staging.OpenGate(); }

void Engine::OnMessage(Session& session, Release& release, TimeNs) {
  state_->leases.Release(session.id, release.lease_id);
}

void Engine::OnMessage(Session& session, PartAcknowledged& acknowledged, TimeNs now) {
  const absl::Status status = state_->device.OnAcknowledged(session, acknowledged, now);
  if (!status.ok()) EndSession(session, status, now);
}

void Engine::OnMessage(Session& session, Heartbeat& heartbeat, TimeNs) {
  state_->sessions.Send(session.id, HeartbeatReply{heartbeat.sequence});
}

void Engine::CancelOperation(OperationId id, TimeNs now) {
  state_->reads.Cancel(id, now);
  state_->reads.Pump(now);
  state_->stores.Cancel(id, now);
}

void Engine::EndSession(Session& session, const absl::Status& why, TimeNs now) {
  const SessionId id = session.id;
  if (session.ending) return;
  state_->sessions.BeginEnd(session, why);
  state_->leases.ReleaseAllOf(id);
  state_->regions.EndSession(id);
  std::vector<OperationId> running;
  for (const auto& [client_op, operation] : session.operations) running.push_back(operation);
  std::sort(running.begin(), running.end());  // Not in the order of a table, which varies by run.
  for (const OperationId operation : running) CancelOperation(operation, now);
  state_->sessions.MaybeForget(id);
}

}  // namespace kvstream::engine
