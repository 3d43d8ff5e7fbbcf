// kvstreamctl lookup.
#include <cstdio>
#include <limits>
#include <utility>

#include "client/commands/command.h"
#include "client/commands/named_chunk.h"
#include "client/output.h"

namespace kvstream::ctl {
namespace {

absl::StatusOr<v1::LookupReply> Find(Client* client, const v1::Namespace& description,
                                     const std::vector<std::string>& keys) {
  const auto space = client->RegisterNamespace(description, {});
  if (!space.ok()) return space.status();
  v1::LookupRequest request;
  request.set_namespace_id(space->id);
  request.set_mode(v1::LookupRequest::MODE_PER_KEY);
  for (const std::string& key : keys) AddPrefixHash(NamedKey(key), &request);
  return client->Lookup(std::move(request));
}

void Print(const v1::LookupReply& reply, const std::vector<std::string>& keys) {
  std::vector<std::vector<std::string>> rows = {{"KEY", "DIGEST", "PRESENT"}};
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool present = i < reply.present().size() && reply.present()[i] != 0;
    rows.push_back({keys[i], FormatHex(NamedKey(keys[i])), present ? "yes" : "no"});
  }
  std::printf("%s\nleading run %u of %zu", FormatTable(rows).c_str(), reply.leading_run(),
              keys.size());
  for (const v1::TierCount& tier : reply.tiers()) {
    std::printf(", %u on %s", tier.chunks(), tier.tier().c_str());
  }
  std::printf(", %u staged\n", reply.staged());
}

}  // namespace

int RunLookup(const Command& command, Globals globals, const std::vector<std::string>& arguments) {
  std::string name;
  std::vector<std::string> keys;
  std::vector<std::string> more_keys;
  uint64_t bytes = 0;
  if (auto code = ParseCommand(
          command, &globals, arguments,
          {TextOption("--namespace", "NAME", "what the chunks belong to", &name),
           SizeOption("--bytes", "the chunks' size",
                      {1, uint64_t{std::numeric_limits<int64_t>::max()}}, &bytes),
           ListOption("--key", "TEXT", "names a chunk; may be repeated, further arguments are keys",
                      &keys)},
          &more_keys)) {
    return *code;
  }
  keys.insert(keys.end(), more_keys.begin(), more_keys.end());
  if (name.empty()) return UsageError(command, "option --namespace: missing");
  if (bytes == 0) return UsageError(command, "option --bytes: missing");
  if (keys.empty()) return UsageError(command, "option --key: missing");
  const auto client = Client::Connect(ToClientOptions(globals));
  if (!client.ok()) return Fail(command, client.status(), kUnreachable);
  const auto reply = Find(client->get(), NamedNamespace(name, bytes), keys);
  if (!reply.ok()) return Fail(command, reply.status(), CodeForCall(reply.status(), **client));
  if (globals.json) {
    std::printf("%s\n", ToJson(*reply).c_str());
  } else {
    Print(*reply, keys);
  }
  return kDone;
}

}  // namespace kvstream::ctl
