#include "tests/e2e/raw_session.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

namespace kvstream {

void SetPatience(grpc::ClientContext* context) {
  context->set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
}

std::shared_ptr<grpc::Channel> ChannelTo(const TestDaemon& daemon) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // The transport takes its 64 KiB and no more: with probes a fast machine's would take megabytes
  // of what the client leaves unread before the daemon's own bound is met.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return grpc::CreateCustomChannel("unix:" + daemon.socket(), grpc::InsecureChannelCredentials(),
                                   arguments);
}

void ExpectInVocabulary(const grpc::Status& status, const std::string& what) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return;
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::DATA_LOSS:
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNIMPLEMENTED:
      EXPECT_FALSE(status.error_message().empty()) << what << ": code " << status.error_code();
      return;
    default:
      ADD_FAILURE() << what << ": code " << status.error_code() << ", " << status.error_message();
  }
}

void ExpectInVocabulary(v1::Code code, const std::string& message, const std::string& what) {
  EXPECT_TRUE(v1::Code_IsValid(code)) << what << ": code " << code;
  EXPECT_TRUE(code == v1::OK || !message.empty()) << what << ": code " << code;
}

v1::ClientMessage RawSession::GoodHello() {
  v1::ClientMessage message;
  message.mutable_hello()->set_protocol_version(1);
  message.mutable_hello()->set_client_name("raw");
  return message;
}

RawSession::RawSession(const TestDaemon& daemon, v1::ClientMessage hello) {
  auto handoff = HandoffConnection::Connect(daemon.options().handoff_socket, kPatience);
  EXPECT_TRUE(handoff.ok()) << handoff.status();
  handoff_ = *std::move(handoff);
  handoff_->Start([] {});
  stub_ = v1::KvCache::NewStub(ChannelTo(daemon));
  SetPatience(&context_);
  stream_ = stub_->Session(&context_);
  if (hello.has_hello() && hello.hello().token().empty()) {
    hello.mutable_hello()->set_token(handoff_->welcome().token());
  }
  Write(hello);
  const auto first = Next();
  if (first.has_value()) id_ = first->session_opened().session_id();
}

RawSession::~RawSession() {
  context_.TryCancel();
  if (!finished_) Finish();
  handoff_->HalfClose();
  EXPECT_TRUE(handoff_->WaitClosed(kPatience));
}

std::optional<v1::Event> RawSession::Next() {
  while (events_.empty()) {
    v1::ServerMessage message;
    if (!stream_->Read(&message)) return std::nullopt;
    for (v1::Event& event : *message.mutable_events()) events_.push_back(std::move(event));
  }
  v1::Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

std::optional<v1::Quiesced> RawSession::Try(const v1::ClientMessage& message, uint64_t operation) {
  v1::ClientMessage heartbeat;
  heartbeat.mutable_heartbeat()->set_sequence(uint64_t{1} << 40 | ++heartbeats_);
  Write(message);
  Write(heartbeat);
  bool answered = false;
  std::optional<v1::Quiesced> quiesced;
  while (!answered || (operation != 0 && !quiesced.has_value())) {
    const auto event = Next();
    if (!event.has_value()) return std::nullopt;
    answered = answered || (event->has_heartbeat() &&
                            event->heartbeat().sequence() == heartbeat.heartbeat().sequence());
    if (event->has_quiesced() && event->quiesced().operation_id() == operation) {
      quiesced = event->quiesced();
    }
  }
  return quiesced.value_or(v1::Quiesced());
}

grpc::Status RawSession::Finish() {
  finished_ = true;
  return stream_->Finish();
}

UniqueFd ConnectTo(const std::string& path, int type) {
  UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  EXPECT_LT(path.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, path.data(), path.size());
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << path;
  return fd;
}

size_t CountFds() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

}  // namespace kvstream
