// mini_engine: runs one scenario of a stand-in for an inference engine against a daemon.
#include <cstdio>
#include <string>
#include <vector>

#include "client/options.h"
#include "tests/gpu/scenarios.h"

namespace kvstream {
namespace {

constexpr char kHelp[] =
    "mini_engine [options] SCENARIO\n\n"
    "  roundtrip   store, overwrite, load elsewhere, compare every byte of the pool\n"
    "  vmm         the same with a pool of one VMM allocation\n"
    "  expandable  a pool of several allocations; succeeds when it is refused\n"
    "  hold        register and wait until the session is lost\n"
    "  read-loop   store once, load without end\n"
    "  store-loop  store new chunks without end\n\n"
    "The last line is \"ok\", or \"failed: \" and the reason with exit code 1.\n\nOptions:\n";

struct Flags {
  ScenarioOptions scenario;
  std::string pool = "malloc";
  uint64_t layers = KvShape().layers;
  uint64_t blocks = KvShape().blocks;
  uint64_t tokens = KvShape().tokens;
  uint64_t heads = KvShape().heads;
  uint64_t head_dim = KvShape().head_dim;
  uint64_t element_bytes = KvShape().element_bytes;
  uint64_t chunk_blocks = MiniEngineOptions().chunk_blocks;
  uint64_t device = 0;
  uint64_t requests = ScenarioOptions().requests;
  uint64_t chunks = 0;
  uint64_t landing_parts = cuda::LandingOptions().parts;
  uint64_t copy_blocks = cuda::CopyGrid().blocks;
  uint64_t copy_threads = cuda::CopyGrid().threads;
  uint64_t low_priority = 0;
  uint64_t timeout_s = 60;
  bool help = false;
};

std::vector<Option> FlagOptions(Flags* flags) {
  MiniEngineOptions* engine = &flags->scenario.engine;
  std::string layouts = "one of:";
  for (const std::string& name : KvLayoutNames()) layouts += " " + name;
  constexpr uint64_t kMany = 1u << 24;
  return {
      TextOption("--socket", "PATH", "the daemon's gRPC socket", &engine->socket),
      TextOption("--layout", "NAME", layouts, &engine->layout),
      TextOption("--pool", "KIND", "malloc, vmm or expandable", &flags->pool),
      NumberOption("--layers", "N", "layers", {1, 1024}, &flags->layers),
      NumberOption("--blocks", "N", "blocks of the pool", {1, kMany}, &flags->blocks),
      NumberOption("--tokens", "N", "tokens of a block", {1, 65536}, &flags->tokens),
      NumberOption("--heads", "N", "KV heads", {1, 1024}, &flags->heads),
      NumberOption("--head-dim", "N", "elements of a head", {1, 65536}, &flags->head_dim),
      NumberOption("--element-bytes", "N", "bytes of an element", {1, 8}, &flags->element_bytes),
      NumberOption("--chunk-blocks", "N", "blocks of a chunk", {1, kMany}, &flags->chunk_blocks),
      SizeOption("--segment-bytes", "segment size; else the daemon's", {0, uint64_t{1} << 30},
                 &engine->segment_bytes),
      NumberOption("--seed", "N", "of content, keys and block tables", {0, ~uint64_t{0} >> 1},
                   &engine->seed),
      NumberOption("--device", "N", "which GPU", {0, 1023}, &flags->device),
      NumberOption("--requests", "N", "requests of a step", {1, 65536}, &flags->requests),
      NumberOption("--chunks", "N", "chunks of a step; 0 is half the pool", {0, kMany},
                   &flags->chunks),
      NumberOption("--rounds", "N", "rounds; 0 is one, or a loop without end", {0, ~uint64_t{0}},
                   &flags->scenario.rounds),
      NumberOption("--landing-parts", "N", "parts of the landing buffer; 0 is none", {0, 64},
                   &flags->landing_parts),
      SizeOption("--landing-part-bytes", "bytes of a part", {1, uint64_t{1} << 36},
                 &engine->landing.part_bytes),
      NumberOption("--copy-blocks", "N", "thread blocks of a scatter", {1, 1024},
                   &flags->copy_blocks),
      NumberOption("--copy-threads", "N", "threads of a block, rounded to 32", {32, 1024},
                   &flags->copy_threads),
      NumberOption("--low-priority", "0|1", "scatter at the lowest stream priority", {0, 1},
                   &flags->low_priority),
      NumberOption("--timeout-s", "N", "deadline of an operation", {1, 3600}, &flags->timeout_s),
      FlagOption("--verify", "compare every round of a loop", &flags->scenario.verify),
      FlagOption("--gemm", "multiply matrices meanwhile", &flags->scenario.gemm),
      FlagOption("--help", "this text", &flags->help),
  };
}

absl::Status ToScenario(const Flags& flags, ScenarioOptions* scenario) {
  MiniEngineOptions& engine = scenario->engine;
  engine.shape = {
      static_cast<uint32_t>(flags.layers),   static_cast<uint32_t>(flags.blocks),
      static_cast<uint32_t>(flags.tokens),   static_cast<uint32_t>(flags.heads),
      static_cast<uint32_t>(flags.head_dim), static_cast<uint32_t>(flags.element_bytes)};
  engine.chunk_blocks = static_cast<uint32_t>(flags.chunk_blocks);
  engine.device = static_cast<int>(flags.device);
  engine.timeout = absl::Seconds(flags.timeout_s);
  engine.landing.parts = static_cast<uint32_t>(flags.landing_parts);
  engine.landing.grid.blocks = static_cast<unsigned>(flags.copy_blocks);
  engine.landing.grid.threads = static_cast<unsigned>(flags.copy_threads / 32 * 32);
  if (flags.low_priority != 0) engine.landing.stream_priority = 0;
  scenario->requests = static_cast<uint32_t>(flags.requests);
  scenario->chunks = static_cast<uint32_t>(flags.chunks);
  if (flags.pool == "vmm") {
    engine.pool = PoolKind::kVmm;
  } else if (flags.pool == "expandable") {
    engine.pool = PoolKind::kExpandable;
  } else if (flags.pool != "malloc") {
    return absl::InvalidArgumentError("option --pool: malloc, vmm or expandable");
  }
  return absl::OkStatus();
}

absl::Status Run(const std::string& name, ScenarioOptions scenario) {
  if (scenario.engine.socket.empty()) return absl::InvalidArgumentError("option --socket: missing");
  if (name == "roundtrip") return RunRoundTrip(scenario);
  if (name == "hold") return RunHold(scenario);
  if (name == "read-loop") return RunReadLoop(scenario);
  if (name == "store-loop") return RunStoreLoop(scenario);
  if (name == "expandable") return RunExpandable(scenario);
  if (name == "vmm") {
    scenario.engine.pool = PoolKind::kVmm;
    return RunRoundTrip(scenario);
  }
  return absl::InvalidArgumentError("no scenario \"" + name + "\"");
}

int Main(const std::vector<std::string>& arguments) {
  Flags flags;
  const std::vector<Option> options = FlagOptions(&flags);
  const auto names = ParseOptions(arguments, options, Positionals::kMixed);
  absl::Status status = names.status();
  if (status.ok() && flags.help) {
    std::printf("%s%s", kHelp, OptionsHelp(options).c_str());
    return 0;
  }
  if (status.ok() && names->size() != 1) status = absl::InvalidArgumentError("name one scenario");
  if (status.ok()) status = ToScenario(flags, &flags.scenario);
  if (status.ok()) status = Run(names->front(), flags.scenario);
  std::printf("%s\n", status.ok() ? "ok" : ("failed: " + status.ToString()).c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace kvstream

int main(int argc, char** argv) { return kvstream::Main({argv + 1, argv + argc}); }
