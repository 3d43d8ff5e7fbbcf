// A session without the client library's care: every message is the test's own, sent over the real
// sockets. And what a daemon's answer to anything may be.
#pragma once

#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "client/handoff_connection.h"
#include "kvstream/v1/admin.grpc.pb.h"
#include "kvstream/v1/kvstream.grpc.pb.h"
#include "server/base/unique_fd.h"
#include "tests/support/test_daemon.h"

namespace kvstream {

// How much longer than anything takes a call may take.
void SetPatience(grpc::ClientContext* context);

std::shared_ptr<grpc::Channel> ChannelTo(const TestDaemon& daemon);

// Expects that the code is one of the closed vocabulary, and that a failure says something.
void ExpectInVocabulary(const grpc::Status& status, const std::string& what);
void ExpectInVocabulary(v1::Code code, const std::string& message, const std::string& what);

class RawSession {
 public:
  // With a stream whose first message is `hello`; the token is filled in where it is empty.
  explicit RawSession(const TestDaemon& daemon) : RawSession(daemon, GoodHello()) {}
  RawSession(const TestDaemon& daemon, v1::ClientMessage hello);
  ~RawSession();

  static v1::ClientMessage GoodHello();

  HandoffConnection& handoff() { return *handoff_; }
  v1::KvCache::Stub& stub() { return *stub_; }
  uint64_t id() const { return id_; }

  // False when the stream has ended.
  bool Write(const v1::ClientMessage& message) { return stream_->Write(message); }
  // The next event; nothing when the stream has ended.
  std::optional<v1::Event> Next();
  // Sends the message and, behind it, a heartbeat; takes events until the heartbeat's answer and,
  // unless `operation` is 0, its Quiesced, which is returned. Nothing when the stream has ended.
  std::optional<v1::Quiesced> Try(const v1::ClientMessage& message, uint64_t operation);
  // The status of a stream that has ended, or is ended now.
  grpc::Status Finish();
  void Cancel() { context_.TryCancel(); }

 private:
  std::unique_ptr<HandoffConnection> handoff_;
  std::unique_ptr<v1::KvCache::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ClientMessage, v1::ServerMessage>> stream_;
  std::deque<v1::Event> events_;
  uint64_t id_ = 0;
  uint64_t heartbeats_ = 0;
  bool finished_ = false;
};

// A plain socket connected to `path`; SOCK_STREAM for gRPC, SOCK_SEQPACKET for the handoff socket.
UniqueFd ConnectTo(const std::string& path, int type);

// Descriptors that this process has open.
size_t CountFds();

}  // namespace kvstream
