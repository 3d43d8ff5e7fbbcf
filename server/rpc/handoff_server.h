// The handoff socket (kvstream.v1, handoff.proto): passes memory as descriptors, and is each
// session's life line. A connection is a session: it begins here, with a token for the stream, and
// its descriptor is closed only when the engine has stopped touching the session's memory.
//
// Thread rule: one thread of its own does all socket work and never blocks on a client. Close and
// the engine's answers to DropBuffer come from other threads through an inbox and an eventfd.
// Ownership: owns sockets, the thread and the token table; not the poster, which outlives it. The
// engine must have stopped calling Close and replies before this is destroyed.
// Errors: a request that fails is answered with its code; a packet that is no request, or too long,
// and a client that does not read its answers, end the connection. One that opens no stream in time
// is told DEADLINE_EXCEEDED in a reply to request 0, and ended.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kvstream/v1/handoff.pb.h"
#include "server/base/types.h"
#include "server/base/unique_fd.h"
#include "server/engine/events.h"
#include "server/rpc/facts.h"
#include "server/rpc/packet_socket.h"
#include "server/rpc/session_tokens.h"
#include "server/rpc/stats.h"
#include "server/rpc/unix_socket.h"

namespace kvstream::rpc {

struct HandoffOptions {
  UnixSocketOptions socket;
  BootId boot_id;
  Limits limits;
};

class HandoffServer final : public engine::HandoffPeer {
 public:
  // Listens and serves. Errors as UnixSocketPath::Take, or the system call's that failed.
  static absl::StatusOr<std::unique_ptr<HandoffServer>> Start(const HandoffOptions& options,
                                                              engine::EventPoster* poster,
                                                              RpcStats* stats);

  HandoffServer(const HandoffServer&) = delete;
  HandoffServer& operator=(const HandoffServer&) = delete;
  // Ends the thread and closes every connection.
  ~HandoffServer() override;

  void Close(SessionId session) override;

  // Leaves the socket's path to another process: nobody finds this one any more.
  void ReleasePath() { path_.Release(); }

  SessionTokens& tokens() { return tokens_; }

 private:
  struct Connection {
    Connection(SessionId s, std::string t, UniqueFd fd)
        : session(s), token(std::move(t)), socket(std::move(fd)) {}

    SessionId session;
    std::string token;
    PacketSocket socket;
    TimeNs hello_due = 0;
    uint64_t last_buffer_id = 0;
    // Bytes of each buffer that the engine has.
    absl::flat_hash_map<uint64_t, uint64_t> buffers;
    uint64_t buffer_bytes = 0;
    // Those that are gone are still in it.
    std::vector<std::weak_ptr<const gpu::HandoffMemory>> device_memory;
    // Drops that the engine has not answered.
    uint32_t drops_pending = 0;
    // The peer is gone or given up: the descriptor only waits for the engine's Close.
    bool gone = false;
    bool wants_write = false;
  };
  // What other threads ask of the socket thread.
  struct CloseSession {
    SessionId session;
  };
  struct DropAnswered {
    SessionId session;
    uint64_t request_id = 0;
    uint64_t buffer_id = 0;
    absl::Status status;
  };
  struct Stop {};
  using Errand = std::variant<CloseSession, DropAnswered, Stop>;

  HandoffServer(const HandoffOptions& options, UnixSocketPath path, engine::EventPoster* poster,
                RpcStats* stats);
  absl::Status Listen();
  void SendErrand(Errand errand) ABSL_LOCKS_EXCLUDED(mu_);

  // The rest runs on the socket thread.
  void Run();
  // How long the thread may wait for events; -1: for ever.
  int WaitMs() const;
  void EndSilent();
  // False when it is time to stop.
  bool RunErrands() ABSL_LOCKS_EXCLUDED(mu_);
  void Accept();
  void Welcome(UniqueFd fd);
  SessionId NewSessionId() const;
  void PauseAccept(int error);
  void Watch(int operation, int fd, uint32_t events, uint64_t tag);
  void OnReady(Connection& connection, uint32_t events);
  void Serve(Connection& connection, PacketSocket::Packet packet);
  absl::Status CreateBuffer(Connection& connection, uint64_t bytes, v1::HandoffReply* reply,
                            UniqueFd* passed);
  absl::Status AttachBuffer(Connection& connection, UniqueFd fd, uint64_t bytes,
                            v1::HandoffReply* reply);
  absl::Status AttachDeviceMemory(Connection& connection, UniqueFd fd,
                                  const v1::AttachDeviceMemory& request, v1::HandoffReply* reply);
  absl::Status CheckRoom(const Connection& connection, uint64_t bytes) const;
  void Hand(Connection& connection, std::unique_ptr<memory::SealedMemory> memory,
            v1::HandoffReply* reply);
  // False when refused, with the reason in `status`; otherwise the engine answers.
  bool PostDrop(Connection& connection, uint64_t request_id, uint64_t buffer_id,
                absl::Status* status);
  void OnDropAnswered(const DropAnswered& answer);
  void Reply(Connection& connection, const absl::Status& status, v1::HandoffReply reply,
             UniqueFd passed);
  void Lose(Connection& connection);

  // Fixed after Start.
  const HandoffOptions options_;
  UnixSocketPath path_;
  engine::EventPoster& poster_;
  RpcStats& stats_;
  UniqueFd listener_;
  UniqueFd epoll_;
  UniqueFd wake_;

  SessionTokens tokens_;

  // The socket thread's.
  absl::flat_hash_map<SessionId, std::unique_ptr<Connection>> connections_;
  // When those that may have no stream are ended.
  std::set<std::pair<TimeNs, SessionId>> hello_due_;
  uint64_t last_device_memory_ = 0;
  bool accept_paused_ = false;
  bool accept_failed_ = false;

  absl::Mutex mu_;
  std::vector<Errand> errands_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace kvstream::rpc
