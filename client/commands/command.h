// What the commands of kvstreamctl share: the options that all take, their exit codes, and how they
// reach the daemon. Each command is a function of the options given so far and its own arguments;
// it prints, and returns an exit code.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/options.h"

namespace kvstream::ctl {

enum ExitCode : int {
  kDone = 0,
  // The answer is no: a miss, a dropped chunk, wrong bytes, a file that cannot be read.
  kFailed = 1,
  kUsage = 2,
  // The daemon is not there, does not answer, drains, or went away.
  kUnreachable = 3,
};

// Options that stand before the command or after it.
struct Globals {
  std::string socket;
  std::string handoff;
  uint64_t timeout_s = 10;
  bool json = false;
  bool help = false;
  // Not null: ParseCommand puts the command's options there, and that is all there is to do.
  std::vector<Option>* described = nullptr;
};
std::vector<Option> GlobalOptions(Globals* globals);

struct Command {
  const char* name;
  // What follows the name in a usage line.
  const char* arguments;
  // One line.
  const char* summary;
  // For the command's own help; may be empty.
  const char* details;
  int (*run)(const Command& command, Globals globals, const std::vector<std::string>& arguments);
  // Words that its arguments may be, for completion.
  const char* words = "";
};
// All of them, in the order of the help.
std::span<const Command> Commands();

// The first thing that each command does: parses its arguments. The options are the command's own
// and the global ones. An exit code when there is nothing more to do: the help was asked for and
// printed, or the usage was wrong.
std::optional<int> ParseCommand(const Command& command, Globals* globals,
                                const std::vector<std::string>& arguments,
                                std::vector<Option> options, std::vector<std::string>* positionals);

// Print "kvstreamctl <command>: <cause>" on standard error and return kUsage, or `code`.
int UsageError(const Command& command, const std::string& cause);
int Fail(const Command& command, const absl::Status& status, ExitCode code);

ClientOptions ToClientOptions(const Globals& globals);

// After a failed call: kUnreachable when the daemon did not answer, otherwise kFailed.
ExitCode CodeForCall(const absl::Status& status, const Client& client);
ExitCode CodeForCall(const absl::Status& status);
// After a failed operation, which the daemon answered unless the session is lost.
ExitCode CodeForOperation(const Client& client);

// Waits for an operation's end, for what the daemon was given and some more. UNAVAILABLE when it
// does not end.
absl::Status WaitForEnd(const Operation& operation, const Globals& globals);

// "TIER_STATE_OK" is "ok".
std::string StateName(v1::TierState state);

int RunStatus(const Command&, Globals, const std::vector<std::string>&);
int RunWatch(const Command&, Globals, const std::vector<std::string>&);
int RunPut(const Command&, Globals, const std::vector<std::string>&);
int RunGet(const Command&, Globals, const std::vector<std::string>&);
int RunLookup(const Command&, Globals, const std::vector<std::string>&);
int RunReplay(const Command&, Globals, const std::vector<std::string>&);
int RunTier(const Command&, Globals, const std::vector<std::string>&);
int RunScrub(const Command&, Globals, const std::vector<std::string>&);
int RunLs(const Command&, Globals, const std::vector<std::string>&);
int RunEvict(const Command&, Globals, const std::vector<std::string>&);
int RunWarm(const Command&, Globals, const std::vector<std::string>&);
int RunFsck(const Command&, Globals, const std::vector<std::string>&);
int RunDrain(const Command&, Globals, const std::vector<std::string>&);
int RunLogLevel(const Command&, Globals, const std::vector<std::string>&);
int RunCompletion(const Command&, Globals, const std::vector<std::string>&);

}  // namespace kvstream::ctl
