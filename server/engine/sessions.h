// Sessions: a worker's stream and its handoff connection, its host buffers and its operations.
// A session ends when either of the two ends; it is forgotten once no operation of it can touch
// its memory any more, and its handoff connection is closed last. Its buffers may be unmapped
// later.
//
// Thread rule: the engine loop. The operations themselves live in ReadOps and StoreOps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/types.h"
#include "server/engine/api.h"
#include "server/engine/stats.h"
#include "server/memory/unmapper.h"

namespace kvstream::engine {

struct Buffer {
  std::unique_ptr<memory::SealedMemory> memory;
  uint32_t operations = 0;  // Running ones that name it.
};

struct Session {
  SessionId id;
  std::string client_name;
  std::shared_ptr<SessionSink> sink;  // Null before StreamOpened and once the stream is over.
  bool had_stream = false;
  bool handoff_open = true;
  bool ending = false;
  bool unflushed = false;
  absl::flat_hash_map<uint64_t, Buffer> buffers;
  // Running operations by the client's id.
  absl::flat_hash_map<uint64_t, OperationId> operations;
};

class Sessions {
 public:
  Sessions(EngineStats* stats, HandoffPeer* handoff, memory::Unmapper* unmapper)
      : stats_(stats), handoff_(handoff), unmapper_(unmapper) {}

  // Null when it has ended or never was.
  Session* Find(SessionId id);

  void Connect(SessionId id);
  void Attach(SessionId id, uint64_t buffer_id, std::unique_ptr<memory::SealedMemory> memory);
  void Drop(DropBuffer drop);

  // The memory of [offset, offset + bytes) of a buffer. NOT_FOUND or INVALID_ARGUMENT names it.
  static absl::StatusOr<std::byte*> Locate(Session& session, const HostRange& range,
                                           uint64_t bytes);

  // Queues an event on the session's stream; nothing when the stream is over.
  void Send(SessionId id, SessionEvent event);
  void Flush();

  // Marks the session as ending and ends its stream with `why` if it still has one. The caller
  // cancels its operations.
  void BeginEnd(Session& session, const absl::Status& why);
  // Forgets the session if it is ending and no operation of it runs.
  void MaybeForget(SessionId id);

  std::vector<SessionId> Ids() const;

 private:
  // OK when the buffer may go.
  static absl::Status MayDrop(const Session* session, uint64_t buffer_id);
  EngineStats* const stats_;
  HandoffPeer* const handoff_;
  memory::Unmapper* const unmapper_;
  absl::flat_hash_map<SessionId, std::unique_ptr<Session>> sessions_;
  std::vector<SessionId> unflushed_;
};

}  // namespace kvstream::engine
