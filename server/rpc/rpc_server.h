// The gRPC server of the daemon on its unix socket: KvCache, Admin, health, and reflection when
// asked for. Health is NOT_SERVING until SetReady, and while a GPU is lost or hangs.
//
// Thread rule: Start, SetReady and Shutdown come from one thread at a time; gRPC has its own, and
// where there is a GPU one looks now and then whether health is still so.
// Ownership: owns the socket, the services and the server; RpcParts are not owned and outlive it.
// The engine keeps running until Shutdown has returned, because streams need it to end well.
#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/base/types.h"
#include "server/engine/events.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/call_gate.h"
#include "server/rpc/facts.h"
#include "server/rpc/kvcache_service.h"
#include "server/rpc/readiness.h"
#include "server/rpc/session_tokens.h"
#include "server/rpc/stats.h"
#include "server/rpc/unix_socket.h"
#include "server/store/namespace.h"

namespace kvstream::rpc {

struct RpcOptions {
  UnixSocketOptions socket;
  // Serve gRPC reflection.
  bool reflection = true;
  Facts facts;
  StatusSource status;
};

struct RpcParts {
  engine::EventPoster& poster;
  store::NamespaceRegistry& namespaces;
  // Of the handoff server.
  SessionTokens& tokens;
  RpcStats& stats;
};

class RpcServer {
 public:
  // Listens and serves. Errors as UnixSocketPath::Take; UNAVAILABLE when gRPC cannot listen.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(RpcOptions options,
                                                          const RpcParts& parts);

  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;
  // Shuts down without grace if that has not happened.
  ~RpcServer();

  // Says whether the daemon serves (health of "" and of kvstream.v1.KvCache, and GetStatus) and in
  // which degraded modes, a sentence each.
  void SetReady(bool ready, std::vector<std::string> conditions);

  // Takes no new calls; calls that have not ended when `grace` is over are cancelled. Returns when
  // every call has ended. Idempotent.
  void Shutdown(TimeNs grace);
  // Leaves the socket's path to another process. REQUIRES: Shutdown.
  void ReleasePath() { socket_.Release(); }

 private:
  RpcServer(RpcOptions options, const RpcParts& parts, UnixSocketPath socket);
  absl::Status Listen();
  void KeepHealth();

  // Fixed after construction.
  const RpcOptions options_;
  UnixSocketPath socket_;

  Readiness readiness_;
  CallGate gate_;
  KvCacheService kvcache_;
  AdminService admin_;
  std::unique_ptr<grpc::Server> server_;
  std::thread health_;
  absl::Mutex health_mu_;
  bool health_ends_ ABSL_GUARDED_BY(health_mu_) = false;
};

}  // namespace kvstream::rpc
