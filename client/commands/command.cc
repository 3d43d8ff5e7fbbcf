#include "client/commands/command.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

namespace kvstream::ctl {
namespace {

// What the daemon may need beyond an operation's deadline to end it.
constexpr absl::Duration kGrace = absl::Seconds(10);

}  // namespace

std::vector<Option> GlobalOptions(Globals* globals) {
  return {
      TextOption("--socket", "PATH",
                 "the daemon's gRPC socket; else KVSTREAMD_SOCKET from the environment, else\n"
                 "/run/kvstreamd/kvstreamd.sock",
                 &globals->socket),
      TextOption("--handoff", "PATH",
                 "its handoff socket; else the gRPC socket's path with .handoff appended",
                 &globals->handoff),
      FlagOption("--json", "print one JSON object instead of text", &globals->json),
      NumberOption("--timeout", "SECONDS", "most that one call to the daemon may take; 10",
                   {1, 3600}, &globals->timeout_s),
      FlagOption("--help", "print this help", &globals->help),
  };
}

std::optional<int> ParseCommand(const Command& command, Globals* globals,
                                const std::vector<std::string>& arguments,
                                std::vector<Option> options,
                                std::vector<std::string>* positionals) {
  if (globals->described != nullptr) {
    *globals->described = std::move(options);
    return kDone;
  }
  std::vector<Option> shared = GlobalOptions(globals);
  const std::string own_help = OptionsHelp(options);
  std::move(shared.begin(), shared.end(), std::back_inserter(options));
  auto parsed = ParseOptions(arguments, options, Positionals::kMixed);
  if (!parsed.ok()) return UsageError(command, std::string(parsed.status().message()));
  if (globals->help) {
    std::printf("kvstreamctl %s%s%s\n\n%s.\n%s\n%s%sOptions of every command:\n%s", command.name,
                command.arguments[0] == '\0' ? "" : " ", command.arguments, command.summary,
                command.details, own_help.c_str(), own_help.empty() ? "" : "\n",
                OptionsHelp(GlobalOptions(globals)).c_str());
    return kDone;
  }
  *positionals = *std::move(parsed);
  return std::nullopt;
}

int UsageError(const Command& command, const std::string& cause) {
  std::fprintf(stderr, "kvstreamctl %s: %s (see kvstreamctl %s --help)\n", command.name,
               cause.c_str(), command.name);
  return kUsage;
}

int Fail(const Command& command, const absl::Status& status, ExitCode code) {
  std::fprintf(stderr, "kvstreamctl %s: %s\n", command.name, status.ToString().c_str());
  return code;
}

ClientOptions ToClientOptions(const Globals& globals) {
  ClientOptions options;
  options.grpc_socket = globals.socket;
  options.handoff_socket = globals.handoff;
  options.client_name = "kvstreamctl";
  options.call_timeout = absl::Seconds(globals.timeout_s);
  options.connect_timeout = std::min(options.connect_timeout, options.call_timeout);
  return options;
}

ExitCode CodeForCall(const absl::Status& status) {
  const bool no_answer = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  return no_answer ? kUnreachable : kFailed;
}

ExitCode CodeForCall(const absl::Status& status, const Client& client) {
  const ExitCode code = CodeForCall(status);
  return code == kFailed ? CodeForOperation(client) : code;
}

ExitCode CodeForOperation(const Client& client) {
  return client.session_status().ok() ? kFailed : kUnreachable;
}

absl::Status WaitForEnd(const Operation& operation, const Globals& globals) {
  if (operation.WaitEnded(absl::Seconds(globals.timeout_s) + kGrace)) return absl::OkStatus();
  return absl::UnavailableError("wait for operation: the daemon does not end it");
}

}  // namespace kvstream::ctl
