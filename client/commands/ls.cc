// kvstreamctl ls.
#include <cstdio>

#include "client/admin.h"
#include "client/commands/command.h"
#include "client/output.h"

namespace kvstream::ctl {
namespace {

void Print(const v1::ListNamespacesReply& reply) {
  std::vector<std::vector<std::string>> spaces = {
      {"NAMESPACE", "CHUNKS", "BYTES", "IN POOL", "LAST USED", "OLDEST", "MODEL"}};
  std::vector<std::vector<std::string>> tiers = {
      {"NAMESPACE", "TIER", "FILES", "BYTES", "OTHERS'"}};
  for (const auto& entry : reply.namespaces()) {
    const std::string id = FormatHex(entry.namespace_id());
    spaces.push_back({id, FormatCount(entry.chunks()), FormatBytes(entry.bytes()),
                      FormatBytes(entry.staged_bytes()),
                      entry.used_here() ? FormatAge(entry.unused_ms_min() / 1000) : "-",
                      entry.used_here() ? FormatAge(entry.unused_ms_max() / 1000) : "-",
                      entry.has_namespace_() ? entry.namespace_().model() : "-"});
    for (const auto& tier : entry.tiers()) {
      tiers.push_back({id, tier.tier(), FormatCount(tier.files()), FormatBytes(tier.bytes()),
                       FormatCount(tier.hints())});
    }
  }
  std::printf("%s", FormatTable(spaces).c_str());
  if (tiers.size() > 1) std::printf("\n%s", FormatTable(tiers).c_str());
}

}  // namespace

int RunLs(const Command& command, Globals globals, const std::vector<std::string>& arguments) {
  std::vector<std::string> rest;
  if (auto code = ParseCommand(command, &globals, arguments, {}, &rest)) return *code;
  if (!rest.empty()) return UsageError(command, "takes no argument \"" + rest[0] + "\"");
  const auto reply = Admin(globals.socket, absl::Seconds(globals.timeout_s)).ListNamespaces();
  if (!reply.ok()) return Fail(command, reply.status(), CodeForCall(reply.status()));
  if (globals.json) {
    std::printf("%s\n", ToJson(*reply).c_str());
  } else {
    Print(*reply);
  }
  return kDone;
}

}  // namespace kvstream::ctl
