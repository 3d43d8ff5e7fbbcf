// kvstream-bench: measures a running daemon from a client's side. Output: one JSON object a line.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "client/client.h"
#include "client/options.h"

namespace kvstream {
namespace {

constexpr char kUsage[] = R"(Usage: kvstream-bench COMMAND [options]

Commands that start daemons of their own; --help after each tells more:
  route      how far above the bound steps end, by routing policy and scenario
  tiers      each tier alone and all together, raw and through the daemon
  newcomers  a small step beside a large one
  deferral   what writes cost reads on one device, and what deferring them buys
  eviction   what eviction costs reads while stores fill a tier
  data_path  what reading and storing cost, by stage
  metadata   publishing, looking up and starting again on up to a million chunks
  gpu        loads and stores of GPU memory, with an engine beside them

In virtual time, without a daemon:
  cache      hit rates of the memory's policies on a trace
  catalog    what nodes that share a tier do to its file system's metadata
  simulation experiments on a simulated cluster; kvstream-sim, beside this program, runs one

Commands that measure parts on one core, with Google Benchmark's options:
  router     the router alone
  stages     verifying and copying

kvstream-bench step --socket PATH [options] measures a running daemon: it reads one step of many
chunks into a host buffer and reports the time from sending it to its end. With --store it stores
the chunks instead, and waits until they are published. With --paced it is ready once it has printed
{}, and does so once for each line that it reads from standard input, so that a script can measure
around each; a line says when it has begun.

Output: one JSON object a line.
Exit codes: 0 done, 1 failed or wrong bytes, 2 bad usage.

Options of step:
)";

// Longer than any step here should take.
constexpr absl::Duration kPatience = absl::Minutes(9);

struct StepOptions {
  std::string socket;
  uint64_t bytes = uint64_t{1} << 30;
  uint64_t chunk_bytes = uint64_t{16} << 20;
  uint64_t segment_bytes = uint64_t{4} << 20;
  uint64_t first = 0;
  uint64_t requests = 1;
  bool store = false;
  bool paced = false;
};

int Fail(const char* what, const absl::Status& status) {
  std::fprintf(stderr, "kvstream-bench: %s: %s\n", what, status.ToString().c_str());
  return 1;
}

class StepBench {
 public:
  explicit StepBench(const StepOptions& options) : options_(options) {}

  int Run() {
    auto client = Client::Connect({.grpc_socket = options_.socket, .client_name = "bench"});
    if (!client.ok()) return Fail("connect", client.status());
    client_ = *std::move(client);
    v1::Namespace description;
    description.set_model("kvstream-bench");
    description.set_weights_fingerprint("step");
    description.set_kv_dtype("bytes");
    description.set_layout("opaque");
    description.set_chunk_tokens(256);
    description.set_segment_bytes(options_.segment_bytes);
    description.add_groups()->set_chunk_bytes(options_.chunk_bytes);
    auto name_space = client_->RegisterNamespace(description, {});
    if (!name_space.ok()) return Fail("register namespace", name_space.status());
    namespace_id_ = name_space->id;
    auto buffer = client_->CreateHostBuffer(chunks() * options_.chunk_bytes);
    if (!buffer.ok()) return Fail("host buffer", buffer.status());
    buffer_ = *std::move(buffer);
    if (options_.store) {
      const int failed = StoreAll();
      // Before the session ends and its memory goes, which costs the daemon time too.
      if (options_.paced) (void)NextLine();
      return failed;
    }
    // The first step faults the buffer's pages into the daemon; an engine's buffers are warm.
    if (const int failed = ReadOnce(); failed != 0) return failed;
    if (!options_.paced) return ReadAll();
    while (NextLine()) {
      if (const int failed = ReadAll(); failed != 0) return failed;
    }
    return 0;
  }

 private:
  // Says that it is ready, and waits for a line; false at the end of the input.
  static bool NextLine() {
    std::printf("{}\n");
    std::fflush(stdout);
    int c = std::getchar();
    while (c != '\n' && c != EOF) c = std::getchar();
    return c != EOF;
  }

  uint64_t total_bytes() const { return chunks() * options_.chunk_bytes; }
  uint64_t chunks() const { return options_.bytes / options_.chunk_bytes; }

  v1::ChunkAt At(uint64_t chunk) const {
    v1::ChunkAt at;
    std::string hash(16, 'b');
    const uint64_t number = options_.first + chunk;
    std::memcpy(hash.data(), &number, sizeof number);
    at.set_prefix_hash(hash);
    at.mutable_placement()->mutable_host()->set_buffer_id(buffer_.id());
    at.mutable_placement()->mutable_host()->set_offset(chunk * options_.chunk_bytes);
    return at;
  }

  // A word of a page of a chunk: distinct everywhere, so that misplaced bytes show.
  static uint64_t Word(uint64_t chunk, uint64_t page) {
    return (chunk << 32 | page) * 0x9E3779B97F4A7C15u;
  }

  // One word a page is written and checked: the daemon verifies the rest, and a bench that touched
  // every byte would measure itself.
  template <typename Visit>
  void ForEachPage(Visit&& visit) const {
    for (uint64_t c = 0; c < chunks(); ++c) {
      for (uint64_t offset = 0; offset < options_.chunk_bytes; offset += 4096) {
        visit(buffer_.data() + c * options_.chunk_bytes + offset, Word(c, offset / 4096));
      }
    }
  }

  int StoreAll() {
    ForEachPage([](std::byte* at, uint64_t word) { std::memcpy(at, &word, sizeof word); });
    if (options_.paced && !NextLine()) return 0;
    v1::Store store;
    store.set_namespace_id(namespace_id_);
    store.set_want_durable(true);
    const uint64_t patience_ms = absl::ToInt64Milliseconds(kPatience);
    store.set_admission_ms(patience_ms);
    store.set_deadline_ms(patience_ms);
    for (uint64_t c = 0; c < chunks(); ++c) *store.add_chunks() = At(c);
    const absl::Time began = absl::Now();
    auto operation = client_->Store(std::move(store));
    if (!operation.ok()) return Fail("store", operation.status());
    if (!(*operation)->WaitEnded(kPatience)) return Fail("store", absl::DeadlineExceededError(""));
    if (!(*operation)->status().ok()) return Fail("store", (*operation)->status());
    for (;;) {  // The second copies.
      const auto status = client_->GetStatus();
      if (!status.ok()) return Fail("status", status.status());
      if (status->pool().staged_bytes() == 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return Report(began);
  }

  int ReadAll() {
    std::memset(buffer_.data(), 0xAB, chunks() * options_.chunk_bytes);
    const absl::Time began = absl::Now();
    if (options_.paced) {
      std::printf("{\"began\": %.6f}\n", absl::ToDoubleSeconds(began - absl::UnixEpoch()));
      std::fflush(stdout);
    }
    if (const int failed = ReadOnce(); failed != 0) return failed;
    const int reported = Report(began);
    uint64_t wrong = 0;
    ForEachPage([&wrong](const std::byte* at, uint64_t word) {
      wrong += std::memcmp(at, &word, sizeof word) != 0 ? 1 : 0;
    });
    if (wrong > 0) return Fail("verify", absl::DataLossError(std::to_string(wrong) + " pages"));
    return reported;
  }

  int ReadOnce() {
    v1::ReadStep step;
    step.set_mode(v1::ReadStep::MODE_JOINT);
    step.set_deadline_ms(absl::ToInt64Milliseconds(kPatience));
    for (uint64_t r = 0; r < options_.requests; ++r) {
      v1::ReadRequest& request = *step.add_requests();
      request.set_request_id(r);
      request.set_namespace_id(namespace_id_);
      const uint64_t end = chunks() * (r + 1) / options_.requests;
      for (uint64_t c = chunks() * r / options_.requests; c < end; ++c)
        *request.add_chunks() = At(c);
    }
    auto operation = client_->ReadStep(std::move(step));
    if (!operation.ok()) return Fail("read", operation.status());
    if (!(*operation)->WaitEnded(kPatience)) return Fail("read", absl::DeadlineExceededError(""));
    if (!(*operation)->status().ok()) return Fail("read", (*operation)->status());
    return 0;
  }

  int Report(absl::Time began) const {
    std::printf(
        "{\"bytes\": %llu, \"seconds\": %.6f, \"chunk_bytes\": %llu, "
        "\"segment_bytes\": %llu}\n",
        static_cast<unsigned long long>(total_bytes()), absl::ToDoubleSeconds(absl::Now() - began),
        static_cast<unsigned long long>(options_.chunk_bytes),
        static_cast<unsigned long long>(options_.segment_bytes));
    std::fflush(stdout);
    return 0;
  }

  const StepOptions options_;
  std::unique_ptr<Client> client_;
  std::string namespace_id_;
  HostBuffer buffer_;
};

// Becomes the program of another command, which lies beside this one. Returns if there is none.
void Become(std::vector<std::string> arguments) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string command = arguments[0];
  constexpr std::string_view kScripts[] = {"route",    "tiers",    "newcomers",
                                           "deferral", "eviction", "data_path",
                                           "metadata", "gpu",      "simulation"};
  if (std::ranges::find(kScripts, command) != std::end(kScripts)) {
    arguments[0] = folder / (command + ".py");
    arguments.insert(arguments.begin(), "python3");
  } else if (command == "router" || command == "stages" || command == "cache" ||
             command == "catalog") {
    arguments[0] = folder / ("kvstream-" + command + "-bench");
  } else {
    return;
  }
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  std::perror(("kvstream-bench: " + arguments[0]).c_str());
}

int Main(const std::vector<std::string>& arguments) {
  StepOptions step;
  bool help = false;
  constexpr uint64_t kMax = uint64_t{1} << 40;
  const std::vector<Option> options{
      TextOption("--socket", "PATH", "the daemon's gRPC socket", &step.socket),
      SizeOption("--bytes", "of the step", {1, kMax}, &step.bytes),
      SizeOption("--chunk-bytes", "of a chunk", {4096, kMax}, &step.chunk_bytes),
      SizeOption("--segment-bytes", "of a segment", {4096, kMax}, &step.segment_bytes),
      NumberOption("--first", "N", "number of its first chunk, which makes its keys", {0, kMax},
                   &step.first),
      NumberOption("--requests", "N", "that the step is made of, each of as many chunks",
                   {1, 65536}, &step.requests),
      FlagOption("--store", "store the chunks instead of reading them", &step.store),
      FlagOption("--paced", "wait for a line of input before each", &step.paced),
      FlagOption("--help", "print this and exit", &help),
  };
  const auto rest = ParseOptions(arguments, options, Positionals::kMixed);
  if (help) {
    std::printf("%s%s", kUsage, OptionsHelp(options).c_str());
    return 0;
  }
  if (!rest.ok() || *rest != std::vector<std::string>{"step"} || step.socket.empty() ||
      step.bytes / step.chunk_bytes < step.requests) {
    std::fprintf(stderr, "kvstream-bench: %s\n%s%s",
                 rest.ok() ? "needs the command step, --socket and a chunk or more for each request"
                           : std::string(rest.status().message()).c_str(),
                 kUsage, OptionsHelp(options).c_str());
    return 2;
  }
  return StepBench(step).Run();
}

}  // namespace
}  // namespace kvstream

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty()) kvstream::Become(arguments);
  return kvstream::Main(arguments);
}
