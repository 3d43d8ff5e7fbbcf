// kvstreamctl get.
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <limits>
#include <utility>

#include "client/commands/command.h"
#include "client/commands/named_chunk.h"
#include "client/output.h"
#include "client/status_convert.h"

namespace kvstream::ctl {
namespace {

struct GetOptions {
  std::string name;
  std::string key;
  std::string out;
  uint64_t bytes = 0;
};

// The operation, ended: it reads to the start of the buffer.
absl::StatusOr<std::shared_ptr<ReadOperation>> Read(Client* client, const Globals& globals,
                                                    const GetOptions& options,
                                                    const HostBuffer& buffer) {
  const auto space = client->RegisterNamespace(NamedNamespace(options.name, options.bytes), {});
  if (!space.ok()) return space.status();
  v1::ReadStep step;
  step.set_mode(v1::ReadStep::MODE_JOINT);
  step.set_deadline_ms(globals.timeout_s * 1000);
  v1::ReadRequest* request = step.add_requests();
  request->set_request_id(1);
  request->set_namespace_id(space->id);
  SetNamedChunk(options.key, buffer.id(), request->add_chunks());
  auto operation = client->ReadStep(std::move(step));
  if (!operation.ok()) return operation.status();
  if (auto s = WaitForEnd(**operation, globals); !s.ok()) return s;
  return operation;
}

absl::Status Write(const HostBuffer& chunk, const GetOptions& options) {
  const auto* data = reinterpret_cast<const char*>(chunk.data());
  const auto bytes = static_cast<std::streamsize>(options.bytes);
  if (options.out.empty()) {
    std::cout.write(data, bytes).flush();
    return std::cout ? absl::OkStatus() : FromErrno(errno, "write to", "standard output");
  }
  std::ofstream file(options.out, std::ios::binary | std::ios::trunc);
  if (!file) return FromErrno(errno, "open", options.out);
  file.write(data, bytes);
  file.close();
  return file ? absl::OkStatus() : FromErrno(errno, "write to", options.out);
}

}  // namespace

int RunGet(const Command& command, Globals globals, const std::vector<std::string>& arguments) {
  GetOptions options;
  std::vector<std::string> rest;
  if (auto code = ParseCommand(
          command, &globals, arguments,
          {TextOption("--namespace", "NAME", "what the chunk belongs to", &options.name),
           TextOption("--key", "TEXT", "names the chunk", &options.key),
           SizeOption("--bytes", "the chunk's size",
                      {1, uint64_t{std::numeric_limits<int64_t>::max()}}, &options.bytes),
           TextOption("--out", "FILE", "where the bytes go; else standard output", &options.out)},
          &rest)) {
    return *code;
  }
  if (!rest.empty()) return UsageError(command, "takes no argument \"" + rest[0] + "\"");
  if (options.name.empty()) return UsageError(command, "option --namespace: missing");
  if (options.key.empty()) return UsageError(command, "option --key: missing");
  if (options.bytes == 0) return UsageError(command, "option --bytes: missing");
  if (globals.json && options.out.empty()) {
    return UsageError(command, "option --json: needs --out, both would go to standard output");
  }
  const auto client = Client::Connect(ToClientOptions(globals));
  if (!client.ok()) return Fail(command, client.status(), kUnreachable);
  const auto buffer = (*client)->CreateHostBuffer(options.bytes);
  if (!buffer.ok()) return Fail(command, buffer.status(), CodeForCall(buffer.status(), **client));
  const auto read = Read(client->get(), globals, options, *buffer);
  if (!read.ok()) return Fail(command, read.status(), CodeForCall(read.status(), **client));
  // Only what the outcome calls valid was verified.
  const v1::RequestDone outcome = (*read)->results()[0];
  if (outcome.leading_valid() != 1) {
    return Fail(command, FromCode(outcome.code(), "read " + options.key, outcome.message()),
                CodeForOperation(**client));
  }
  if (auto s = Write(*buffer, options); !s.ok()) return Fail(command, s, kFailed);
  if (globals.json) {
    google::protobuf::Struct object;
    SetNumber(&object, "bytes", static_cast<double>(options.bytes));
    SetText(&object, "key", FormatHex(NamedKey(options.key)));
    SetText(&object, "out", options.out);
    std::printf("%s\n", ToJson(object).c_str());
  } else if (!options.out.empty()) {
    std::printf("%s: %s to %s\n", options.key.c_str(), FormatBytes(options.bytes).c_str(),
                options.out.c_str());
  }
  return kDone;
}

}  // namespace kvstream::ctl
