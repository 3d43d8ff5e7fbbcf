// kvstreamctl warm.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <span>

#include "client/admin.h"
#include "client/commands/command.h"
#include "client/output.h"
#include "client/status_convert.h"

namespace kvstream::ctl {
namespace {

// Of the buffer that chunks are read into, unless one key needs more.
constexpr uint64_t kBufferBytes = uint64_t{64} << 20;
constexpr uint64_t kAlignment = 4096;

// All groups and shards of one key.
struct Member {
  uint32_t group = 0;
  uint32_t shard = 0;
  uint64_t bytes = 0;
};

struct Tally {
  uint64_t keys = 0;
  uint64_t chunks = 0;
  uint64_t bytes = 0;
  // Chunks that are not there, or could not be read.
  uint64_t missing = 0;
};

uint64_t RoundUp(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::vector<Member> MembersOf(const v1::Namespace& space) {
  std::vector<Member> members;
  for (int g = 0; g < space.groups_size(); ++g) {
    for (uint32_t s = 0; s < std::max(space.groups(g).shards(), 1u); ++s) {
      members.push_back({static_cast<uint32_t>(g), s, space.groups(g).chunk_bytes()});
    }
  }
  return members;
}

absl::StatusOr<std::vector<std::string>> ReadKeys(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    file.open(path);
    if (!file) return FromErrno(errno, "open", path);
  }
  std::istream& lines = path == "-" ? std::cin : file;
  std::vector<std::string> keys;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const auto key = ParseHex(line);
    if (!key.has_value()) {
      std::string message = path;
      message += " has a line that is not hexadecimal digits: ";
      message += line;
      return absl::InvalidArgumentError(message);
    }
    keys.push_back(*key);
  }
  return keys;
}

absl::StatusOr<v1::Namespace> FindNamespace(const Globals& globals, const std::string& id) {
  const auto reply = Admin(globals.socket, absl::Seconds(globals.timeout_s)).ListNamespaces();
  if (!reply.ok()) return reply.status();
  for (const auto& entry : reply->namespaces()) {
    if (entry.namespace_id() == id && entry.has_namespace_()) return entry.namespace_();
  }
  return absl::NotFoundError("namespace " + FormatHex(id) +
                             ": no engine has registered it since the daemon's start");
}

// Reads these keys into the buffer, where each has room of its own.
absl::Status ReadBatch(Client* client, const Globals& globals, const v1::ReadRequest& common,
                       std::span<const std::string> keys, const std::vector<Member>& members,
                       uint64_t buffer_id, Tally* tally) {
  v1::ReadStep step;
  step.set_mode(v1::ReadStep::MODE_INDEPENDENT);
  step.set_deadline_ms(globals.timeout_s * 1000);
  uint64_t offset = 0;
  std::vector<uint64_t> sizes;
  for (const std::string& key : keys) {
    for (const Member& member : members) {
      v1::ReadRequest* request = step.add_requests();
      *request = common;
      request->set_request_id(static_cast<uint64_t>(step.requests_size()));
      v1::ChunkAt* chunk = request->add_chunks();
      chunk->set_prefix_hash(key);
      chunk->set_group(member.group);
      chunk->set_shard(member.shard);
      chunk->mutable_placement()->mutable_host()->set_buffer_id(buffer_id);
      chunk->mutable_placement()->mutable_host()->set_offset(offset);
      offset += RoundUp(member.bytes);
      sizes.push_back(member.bytes);
    }
  }
  const auto operation = client->ReadStep(std::move(step));
  if (!operation.ok()) return operation.status();
  if (auto s = WaitForEnd(**operation, globals); !s.ok()) return s;
  if (auto s = client->session_status(); !s.ok()) return s;
  const std::vector<v1::RequestDone> results = (*operation)->results();
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].leading_valid() == 1) {
      tally->chunks += 1;
      tally->bytes += sizes[i];
    } else {
      tally->missing += 1;
    }
  }
  // What was refused as a whole has read nothing, and says why.
  const absl::Status ended = (*operation)->status();
  return absl::IsInvalidArgument(ended) || absl::IsUnavailable(ended) ? ended : absl::OkStatus();
}

absl::Status Warm(Client* client, const Globals& globals, const v1::Namespace& space,
                  const v1::ReadRequest& common, const std::vector<std::string>& keys,
                  Tally* tally) {
  const std::vector<Member> members = MembersOf(space);
  uint64_t key_bytes = 0;
  for (const Member& member : members) key_bytes += RoundUp(member.bytes);
  const uint64_t most = client->limits().chunks_per_operation_max() / members.size();
  const uint64_t at_once =
      std::max<uint64_t>(1, std::min(most, kBufferBytes / std::max<uint64_t>(key_bytes, 1)));
  const auto buffer = client->CreateHostBuffer(at_once * key_bytes);
  if (!buffer.ok()) return buffer.status();
  for (size_t at = 0; at < keys.size(); at += at_once) {
    const auto batch = std::span(keys).subspan(at, std::min<size_t>(at_once, keys.size() - at));
    if (auto s = ReadBatch(client, globals, common, batch, members, buffer->id(), tally); !s.ok()) {
      return s;
    }
    tally->keys += batch.size();
  }
  return absl::OkStatus();
}

void Print(const Tally& tally, bool json) {
  if (!json) {
    std::printf("read %s chunks of %s keys, %s; %s are not there or could not be read\n",
                FormatCount(tally.chunks).c_str(), FormatCount(tally.keys).c_str(),
                FormatBytes(tally.bytes).c_str(), FormatCount(tally.missing).c_str());
    return;
  }
  google::protobuf::Struct object;
  SetNumber(&object, "keys", static_cast<double>(tally.keys));
  SetNumber(&object, "chunks", static_cast<double>(tally.chunks));
  SetNumber(&object, "bytes", static_cast<double>(tally.bytes));
  SetNumber(&object, "missing", static_cast<double>(tally.missing));
  std::printf("%s\n", ToJson(object).c_str());
}

}  // namespace

int RunWarm(const Command& command, Globals globals, const std::vector<std::string>& arguments) {
  std::string namespace_id;
  std::string salt;
  std::vector<std::string> rest;
  if (auto code = ParseCommand(command, &globals, arguments,
                               {TextOption("--namespace-id", "HEX",
                                           "what the chunks belong to; ls tells it", &namespace_id),
                                TextOption("--salt", "TEXT", "the requests' salt", &salt)},
                               &rest)) {
    return *code;
  }
  if (rest.size() != 1) return UsageError(command, "takes one FILE of prefix hashes");
  const auto id = ParseHex(namespace_id);
  if (!id.has_value() || id->empty()) {
    return UsageError(command, "option --namespace-id: missing, or not hexadecimal digits");
  }
  const auto keys = ReadKeys(rest[0]);
  if (!keys.ok()) return Fail(command, keys.status(), kFailed);
  const auto space = FindNamespace(globals, *id);
  if (!space.ok()) return Fail(command, space.status(), CodeForCall(space.status()));
  const auto client = Client::Connect(ToClientOptions(globals));
  if (!client.ok()) return Fail(command, client.status(), kUnreachable);
  v1::ReadRequest common;
  common.set_namespace_id(*id);
  common.set_salt(salt);
  Tally tally;
  const absl::Status warmed = Warm(client->get(), globals, *space, common, *keys, &tally);
  if (!warmed.ok()) return Fail(command, warmed, CodeForCall(warmed, **client));
  Print(tally, globals.json);
  return kDone;
}

}  // namespace kvstream::ctl
