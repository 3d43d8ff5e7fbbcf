// kvstreamctl evict.
#include <cstdio>
#include <optional>

#include "client/admin.h"
#include "client/commands/command.h"
#include "client/output.h"

namespace kvstream::ctl {
namespace {

constexpr uint64_t kSecondsMax = uint64_t{100} * 365 * 24 * 3600;

struct EvictOptions {
  std::string namespace_id;
  std::vector<std::string> prefixes;
  std::string salt;
  uint64_t older_than_s = 0;
  bool all = false;
  bool dry_run = false;
};

// An error says what is wrong.
absl::StatusOr<v1::EvictRequest> ToRequest(const EvictOptions& options) {
  v1::EvictRequest request;
  if (!options.namespace_id.empty()) {
    const auto id = ParseHex(options.namespace_id);
    if (!id.has_value()) {
      return absl::InvalidArgumentError("option --namespace-id: not hexadecimal digits");
    }
    request.set_namespace_id(*id);
  }
  for (const std::string& prefix : options.prefixes) {
    const auto hash = ParseHex(prefix);
    if (!hash.has_value()) {
      return absl::InvalidArgumentError("option --prefix: not hexadecimal digits");
    }
    request.add_prefix_hashes(*hash);
  }
  if (options.namespace_id.empty() && !options.prefixes.empty()) {
    return absl::InvalidArgumentError("option --prefix: needs --namespace-id");
  }
  // A variable of a script that is empty shall not mean every namespace.
  if (options.namespace_id.empty() != options.all) {
    return absl::InvalidArgumentError("needs one of --namespace-id and --all");
  }
  if (!options.salt.empty() && options.prefixes.empty()) {
    return absl::InvalidArgumentError("option --salt: needs --prefix, of which it is");
  }
  request.set_salt(options.salt);
  request.set_older_than_ms(options.older_than_s * 1000);
  request.set_dry_run(options.dry_run);
  return request;
}

}  // namespace

int RunEvict(const Command& command, Globals globals, const std::vector<std::string>& arguments) {
  EvictOptions options;
  std::vector<std::string> rest;
  if (auto code = ParseCommand(
          command, &globals, arguments,
          {TextOption("--namespace-id", "HEX", "of this namespace alone", &options.namespace_id),
           ListOption("--prefix", "HEX", "this chunk and what comes after it; may be repeated",
                      &options.prefixes),
           TextOption("--salt", "TEXT", "of the prefixes", &options.salt),
           NumberOption("--older-than", "SECONDS", "only what nobody has used for so long",
                        {1, kSecondsMax}, &options.older_than_s),
           FlagOption("--all", "of every namespace", &options.all),
           FlagOption("--dry-run", "only tell what would go", &options.dry_run)},
          &rest)) {
    return *code;
  }
  if (!rest.empty()) return UsageError(command, "takes no argument \"" + rest[0] + "\"");
  const auto request = ToRequest(options);
  if (!request.ok()) return UsageError(command, std::string(request.status().message()));
  const auto reply = Admin(globals.socket, absl::Seconds(globals.timeout_s)).Evict(*request);
  if (!reply.ok()) return Fail(command, reply.status(), CodeForCall(reply.status()));
  if (globals.json) {
    std::printf("%s\n", ToJson(*reply).c_str());
  } else {
    std::printf("%s %s chunks, %s; %s are leased or still to be written, and stay\n",
                options.dry_run ? "would evict" : "evicted", FormatCount(reply->chunks()).c_str(),
                FormatBytes(reply->bytes()).c_str(), FormatCount(reply->kept()).c_str());
  }
  return kDone;
}

}  // namespace kvstream::ctl
