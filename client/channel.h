// How this library reaches the daemon's gRPC socket. Stateless; any thread.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace kvstream {

// A channel of its own: it shares no connection, and no back-off after failures, with others.
// `keepalive`: a daemon that says nothing for so long during a call is asked whether it lives; if
// it does not answer in as long again, its calls end with UNAVAILABLE. At least 10 s, which the
// daemon allows.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& socket,
                                           absl::Duration keepalive = absl::InfiniteDuration());

}  // namespace kvstream
