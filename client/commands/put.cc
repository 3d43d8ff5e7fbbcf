// kvstreamctl put.
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "client/commands/command.h"
#include "client/commands/named_chunk.h"
#include "client/output.h"
#include "client/status_convert.h"

namespace kvstream::ctl {
namespace {

struct PutOptions {
  std::string name;
  std::string key;
  std::string file;
  bool durable = false;
};

// Reads the file to the start of the buffer.
absl::Status ReadFile(const std::string& path, const HostBuffer& buffer, uint64_t bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return FromErrno(errno, "open", path);
  file.read(reinterpret_cast<char*>(buffer.data()), static_cast<std::streamsize>(bytes));
  // One more byte must not be there: a file that grows or shrinks meanwhile has no one size.
  if (file.gcount() != static_cast<std::streamsize>(bytes) || file.get() != EOF) {
    return absl::UnavailableError("read " + path + ": its size changed meanwhile");
  }
  return absl::OkStatus();
}

// The operation, ended.
absl::StatusOr<std::shared_ptr<StoreOperation>> Store(Client* client, const Globals& globals,
                                                      const PutOptions& options,
                                                      const HostBuffer& buffer, uint64_t bytes) {
  const auto space = client->RegisterNamespace(NamedNamespace(options.name, bytes), {});
  if (!space.ok()) return space.status();
  v1::Store store;
  store.set_namespace_id(space->id);
  store.set_deadline_ms(globals.timeout_s * 1000);
  store.set_admission_ms(globals.timeout_s * 1000);
  store.set_want_durable(options.durable);
  SetNamedChunk(options.key, buffer.id(), store.add_chunks());
  auto operation = client->Store(std::move(store));
  if (!operation.ok()) return operation.status();
  if (auto s = WaitForEnd(**operation, globals); !s.ok()) return s;
  return operation;
}

void Print(const Globals& globals, const PutOptions& options, uint64_t bytes, bool existed) {
  if (globals.json) {
    google::protobuf::Struct object;
    SetNumber(&object, "bytes", static_cast<double>(bytes));
    SetText(&object, "key", FormatHex(NamedKey(options.key)));
    SetBool(&object, "existed", existed);
    SetBool(&object, "durable", options.durable);
    std::printf("%s\n", ToJson(object).c_str());
    return;
  }
  std::printf("%s: %s\n", options.key.c_str(),
              existed           ? "existed already, nothing was copied"
              : options.durable ? ("stored and written, " + FormatBytes(bytes)).c_str()
                                : ("stored, " + FormatBytes(bytes)).c_str());
}

}  // namespace

int RunPut(const Command& command, Globals globals, const std::vector<std::string>& arguments) {
  PutOptions options;
  std::vector<std::string> files;
  if (auto code = ParseCommand(
          command, &globals, arguments,
          {TextOption("--namespace", "NAME", "what the chunk belongs to", &options.name),
           TextOption("--key", "TEXT", "names the chunk", &options.key),
           FlagOption("--durable", "also wait until a tier has it", &options.durable)},
          &files)) {
    return *code;
  }
  if (options.name.empty()) return UsageError(command, "option --namespace: missing");
  if (options.key.empty()) return UsageError(command, "option --key: missing");
  if (files.size() != 1) return UsageError(command, "takes one FILE");
  options.file = files[0];
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(options.file, error);
  if (error) return Fail(command, FromErrno(error.value(), "open", options.file), kFailed);
  if (bytes == 0) {
    return Fail(command, absl::InvalidArgumentError("put " + options.file + ": it is empty"),
                kFailed);
  }
  const auto client = Client::Connect(ToClientOptions(globals));
  if (!client.ok()) return Fail(command, client.status(), kUnreachable);
  const auto buffer = (*client)->CreateHostBuffer(bytes);
  if (!buffer.ok()) return Fail(command, buffer.status(), CodeForCall(buffer.status(), **client));
  if (auto s = ReadFile(options.file, *buffer, bytes); !s.ok()) return Fail(command, s, kFailed);
  const auto store = Store(client->get(), globals, options, *buffer, bytes);
  if (!store.ok()) return Fail(command, store.status(), CodeForCall(store.status(), **client));
  if (auto s = (*store)->status(); !s.ok()) return Fail(command, s, CodeForOperation(**client));
  Print(globals, options, bytes, (*store)->chunks()[0].existed);
  return kDone;
}

}  // namespace kvstream::ctl
