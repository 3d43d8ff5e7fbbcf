// What the tests of the rpc room share: a poster that records, clients of both sockets, and a
// daemon's two servers in a folder of their own. The test itself plays the engine.
#pragma once

#include <grpcpp/channel.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kvstream/v1/admin.grpc.pb.h"
#include "kvstream/v1/handoff.pb.h"
#include "kvstream/v1/kvstream.grpc.pb.h"
#include "server/base/unique_fd.h"
#include "server/engine/events.h"
#include "server/rpc/handoff_server.h"
#include "server/rpc/rpc_server.h"
#include "tests/support/fake_tier.h"

namespace kvstream::rpc {

// How long a test waits for what must come.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// A fresh folder, removed with all that is in it.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  std::string Path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class RecordingPoster final : public engine::EventPoster {
 public:
  // Sees each event first, on the posting thread; true: the event is dealt with.
  using Answerer = std::function<bool(engine::Event&)>;

  void Post(engine::Event event) override;
  void Answer(Answerer answerer);

  // Takes the oldest event, which must be a T.
  template <typename T>
  T Next() {
    absl::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(&NotEmpty, &events_), kPatience);
    if (events_.empty()) {
      ADD_FAILURE() << "no event came";
      return T();
    }
    engine::Event event = std::move(events_.front());
    events_.pop_front();
    if (T* wanted = std::get_if<T>(&event)) return std::move(*wanted);
    ADD_FAILURE() << "another event came: alternative " << event.index();
    return T();
  }

  // Takes the oldest event, whatever it is, and lets go of it.
  void Drop();

  bool empty() const {
    absl::MutexLock lock(&mu_);
    return events_.empty();
  }

 private:
  static bool NotEmpty(std::deque<engine::Event>* events) { return !events->empty(); }

  mutable absl::Mutex mu_;
  std::deque<engine::Event> events_;
  Answerer answerer_;
};

// A client of the handoff socket.
class HandoffClient {
 public:
  explicit HandoffClient(const std::string& path);

  void Send(const v1::HandoffRequest& request, const std::vector<int>& fds = {});
  // Sends these bytes, without waiting. False when the socket does not take them.
  bool TrySend(const std::string& bytes, const std::vector<int>& fds = {});
  // The next reply; nothing at end of file.
  std::optional<v1::HandoffReply> Receive();
  // What rode on the last reply.
  UniqueFd TakeFd() { return std::move(fd_); }
  v1::HandoffReply Call(const v1::HandoffRequest& request, const std::vector<int>& fds = {});
  void Close() { socket_.Reset(); }

 private:
  UniqueFd socket_;
  UniqueFd fd_;
};

// A memfd of 8192 bytes.
UniqueFd MakeMemfd(bool sealed);
// Descriptors that this process has open.
size_t CountFds();

Limits TestLimits();
v1::Namespace TestNamespace();

// Calls a method by name with raw bytes, and returns the first answer's bytes.
std::string CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                    const std::string& request);

// Of a tier that nobody asks for anything.
struct NoCompletions final : tier::CompletionSink {
  void OnCompletions(std::span<tier::Completion>) override {}
};

// Both servers and a channel.
struct Rig {
  explicit Rig(const Limits& limits = TestLimits(), bool reflection = true,
               const gpu::Gpus* gpus = nullptr);
  ~Rig();

  RpcOptions Options() const;
  // A handoff connection whose SessionConnected was taken; returns its token.
  std::string Connect(std::unique_ptr<HandoffClient>* client, SessionId* session);
  // The id that registering the namespace answers.
  std::string Register();

  TempDir dir;
  Limits limits;
  bool reflection;
  const gpu::Gpus* gpus;
  engine::EngineStats stats;
  RpcStats rpc_stats;
  RecordingPoster poster;
  // Shown as the second tier, which opened; the first did not.
  NoCompletions no_completions;
  test::FakeTier pfs{{}, &no_completions};
  store::NamespaceRegistry namespaces;
  std::unique_ptr<HandoffServer> handoff;
  std::unique_ptr<RpcServer> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::KvCache::Stub> kvcache;
  std::unique_ptr<v1::Admin::Stub> admin;
};

}  // namespace kvstream::rpc
