#include "client/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

namespace kvstream {
namespace {

constexpr int kMessageBytesMax = 64 << 20;

}  // namespace

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& socket, absl::Duration keepalive) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  // Channels of one address share their connection and its back-off by default: a new session
  // would wait for the failures of the lost one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (keepalive < absl::InfiniteDuration()) {
    const auto ms = static_cast<int>(absl::ToInt64Milliseconds(keepalive));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, ms);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ms);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // However many.
  }
  return grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace kvstream
