#include "server/engine/sessions.h"

#include <utility>

#include "server/base/check.h"

namespace kvstream::engine {

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

absl::StatusOr<std::byte*> Sessions::Locate(Session& session, const HostRange& range,
                                            uint64_t bytes) {
  const auto it = session.buffers.find(range.buffer_id);
  if (it == session.buffers.end()) {
    return absl::NotFoundError("buffer_id " + std::to_string(range.buffer_id) +
                               ": the session has no such buffer");
  }
  const auto memory = it->second.memory->bytes();
  if (range.offset > memory.size() || bytes > memory.size() - range.offset) {
    return absl::InvalidArgumentError("offset " + std::to_string(range.offset) + " + " +
                                      std::to_string(bytes) + " bytes: outside buffer " +
                                      std::to_string(range.buffer_id) + " of " +
                                      std::to_string(memory.size()) + " bytes");
  }
  return memory.data() + range.offset;
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
  if (it == sessions_.end() || !it->second->ending || !it->second->operations.empty()) return;
  for (auto& [buffer_id, buffer] : it->second->buffers) {
    KV_CHECK(buffer.operations == 0);
    stats_->host_buffers.Sub();
    stats_->host_buffer_bytes.Sub(buffer.memory->size());
    unmapper_->Give(std::move(buffer.memory));
  }
  sessions_.erase(it);
  stats_->sessions_open.Sub();
  handoff_->Close(id);  // Last: the client may reuse its memory once it sees this.
}

std::vector<SessionId> Sessions::Ids() const {
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_) ids.push_back(id);
  return ids;
}

}  // namespace kvstream::engine
