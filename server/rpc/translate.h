// What arrives on a session's stream, from protobuf to the engine's plain structs. Every value that
// needs no engine state is validated here: lengths, ranges against the limits, enums, groups and
// shards against the namespace. Nothing is allocated or hashed for a list before its length is
// known to be within the limits.
//
// Thread rule: stateless; any thread. Ownership: results own their bytes.
#pragma once

#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "kvstream/v1/kvstream.pb.h"
#include "server/base/types.h"
#include "server/engine/api.h"
#include "server/rpc/facts.h"
#include "server/store/namespace.h"

namespace kvstream::rpc {

struct TranslateContext {
  const Limits& limits;
  const store::NamespaceRegistry& namespaces;
  // When the message arrived: durations become absolute from here.
  TimeNs now = 0;
};

// Whether Hello is one that this version can serve; not whether its token is known.
absl::Status CheckHello(const v1::Hello& hello);

// An operation that is refused becomes engine::Refused, and the stream goes on. Fails when the
// stream must end with that status: a message of no kind, a second Hello (INVALID_ARGUMENT), or a
// kind that this version never asks for (UNIMPLEMENTED).
absl::StatusOr<engine::SessionMessage> TranslateMessage(const v1::ClientMessage& message,
                                                        const TranslateContext& context);

// The namespace of a 16-byte id. INVALID_ARGUMENT for another length; NOT_FOUND, naming the id in
// hex, when it was not registered in this boot. Messages begin with "namespace_id".
absl::StatusOr<store::NamespaceRef> FindNamespace(const std::string& id,
                                                  const store::NamespaceRegistry& namespaces);

// Longest salt of a request.
inline constexpr uint64_t kSaltBytesMax = 256;

}  // namespace kvstream::rpc
