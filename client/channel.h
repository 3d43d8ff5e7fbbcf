// How this library reaches the daemon's gRPC socket. Stateless; any thread.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

namespace kvstream {

// A channel of its own: it shares no connection, and no back-off after failures, with others.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& socket);

}  // namespace kvstream
