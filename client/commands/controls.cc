// kvstreamctl tier, drain and log-level.
#include <algorithm>
#include <cstdio>
#include <string_view>

#include "client/admin.h"
#include "client/commands/command.h"
#include "client/output.h"

namespace kvstream::ctl {
namespace {

Admin AdminOf(const Globals& globals) {
  return Admin(globals.socket, absl::Seconds(globals.timeout_s));
}

}  // namespace

int RunTier(const Command& command, Globals globals, const std::vector<std::string>& arguments) {
  std::vector<std::string> rest;
  if (auto code = ParseCommand(command, &globals, arguments, {}, &rest)) return *code;
  if (rest.size() != 2 || (rest[1] != "out" && rest[1] != "in")) {
    return UsageError(command, "takes a NAME and then out or in");
  }
  const auto state = AdminOf(globals).SetTierInService(rest[0], rest[1] == "in");
  if (!state.ok()) return Fail(command, state.status(), CodeForCall(state.status()));
  if (globals.json) {
    google::protobuf::Struct object;
    SetText(&object, "tier", rest[0]);
    SetText(&object, "state", StateName(*state));
    std::printf("%s\n", ToJson(object).c_str());
  } else {
    const bool quarantined = rest[1] == "in" && *state == v1::TIER_STATE_OUT;
    std::printf("tier %s: %s%s\n", rest[0].c_str(), StateName(*state).c_str(),
                quarantined ? ", until its quarantine is no longer full" : "");
  }
  return kDone;
}

int RunDrain(const Command& command, Globals globals, const std::vector<std::string>& arguments) {
  uint64_t timeout_ms = 0;
  std::vector<std::string> rest;
  if (auto code = ParseCommand(
          command, &globals, arguments,
          {NumberOption("--timeout-ms", "MS", "most that it may take; the daemon's drain time",
                        {1, 3600000}, &timeout_ms)},
          &rest)) {
    return *code;
  }
  if (!rest.empty()) return UsageError(command, "takes no argument \"" + rest[0] + "\"");
  const auto reply = AdminOf(globals).Drain(absl::Milliseconds(timeout_ms));
  if (!reply.ok()) return Fail(command, reply.status(), CodeForCall(reply.status()));
  const bool drained = reply->unwritten_bytes() == 0 && reply->running_operations() == 0;
  if (globals.json) {
    std::printf("%s\n", ToJson(*reply).c_str());
  } else if (drained) {
    std::printf("drained\n");
  } else {
    std::printf("not drained in time: %s to be written, %s operations run\n",
                FormatBytes(reply->unwritten_bytes()).c_str(),
                FormatCount(reply->running_operations()).c_str());
  }
  return drained ? kDone : kFailed;
}

int RunLogLevel(const Command& command, Globals globals,
                const std::vector<std::string>& arguments) {
  std::vector<std::string> rest;
  if (auto code = ParseCommand(command, &globals, arguments, {}, &rest)) return *code;
  constexpr std::string_view kLevels[] = {"trace", "debug", "info", "warn", "error"};
  if (rest.size() != 1 || std::ranges::find(kLevels, rest[0]) == std::end(kLevels)) {
    return UsageError(command, "takes one LEVEL: trace, debug, info, warn or error");
  }
  const auto reply = AdminOf(globals).SetLogLevel(rest[0]);
  if (!reply.ok()) return Fail(command, reply.status(), CodeForCall(reply.status()));
  if (globals.json) {
    std::printf("%s\n", ToJson(*reply).c_str());
  } else {
    std::printf("log level: %s, before %s\n", reply->level().c_str(), reply->old_level().c_str());
  }
  return kDone;
}

}  // namespace kvstream::ctl
