// kvstream-gpu-bench: what loads and stores of GPU memory through a daemon reach, with an engine
// that multiplies matrices beside them. bench/gpu.py runs it. One JSON object a run on stdout; a
// failure goes to stderr with exit code 1.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/options.h"
#include "tests/gpu/contiguous_copies.h"
#include "tests/gpu/gemm_load.h"
#include "tests/gpu/mini_engine.h"

namespace kvstream {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kChunkBytes = 16 * kMiB;
constexpr uint64_t kPoolBytes = 2048 * kMiB;
// Chunks of an operation, and operations at a time.
constexpr uint32_t kOperationChunks = 16;
constexpr size_t kOperations = 4;

constexpr char kHelp[] =
    "kvstream-gpu-bench [options] WHAT\n\n"
    "  paged    stores, then loads of chunks that lie in the staging pool, in fragments of\n"
    "           --fragment-kib, with matrices multiplied beside them; and contiguous copies of\n"
    "           this process for comparison, in the same rounds\n"
    "  small    single chunks of 1 MiB out of the staging pool, one after the other\n"
    "  tiers    chunks that lie on the tiers, into GPU memory and into host memory in "
    "turn\n\nOptions:\n";

const char* Name(v1::RegisterMemoryReply::Way way) {
  return way == v1::RegisterMemoryReply::WAY_LANDING ? "landing" : "direct";
}

struct Flags {
  std::string socket;
  uint64_t fragment_kib = 64;
  uint64_t landing_parts = 4;
  uint64_t rounds = 5;
  uint64_t round_ms = 1000;
  uint64_t chunks = 128;
  uint64_t copy_blocks = cuda::CopyGrid().blocks;
  uint64_t copy_threads = cuda::CopyGrid().threads;
  bool no_gemm = false;
  bool help = false;
};

std::vector<Option> FlagOptions(Flags* flags) {
  return {
      TextOption("--socket", "PATH", "the daemon's gRPC socket", &flags->socket),
      NumberOption("--fragment-kib", "N", "length of a run: a power of two", {4, 2048},
                   &flags->fragment_kib),
      NumberOption("--landing-parts", "N", "parts of 64 MiB; 0: no landing buffer", {0, 64},
                   &flags->landing_parts),
      NumberOption("--rounds", "N", "rounds", {1, 1000}, &flags->rounds),
      NumberOption("--round-ms", "MS", "length of each part of a round", {1, 60000},
                   &flags->round_ms),
      NumberOption("--chunks", "N", "tiers: chunks of 16 MiB", {1, 4096}, &flags->chunks),
      NumberOption("--copy-blocks", "N", "thread blocks of a scatter", {1, 1024},
                   &flags->copy_blocks),
      NumberOption("--copy-threads", "N", "threads of a block", {32, 1024}, &flags->copy_threads),
      FlagOption("--no-gemm", "paged: no matrices", &flags->no_gemm),
      FlagOption("--help", "this text", &flags->help),
  };
}

// Keys and values apart: each run has `fragment` bytes, a chunk `chunk_bytes` in all.
MiniEngineOptions EngineOf(const Flags& flags, uint64_t fragment, uint64_t chunk_bytes) {
  MiniEngineOptions engine;
  engine.socket = flags.socket;
  engine.client_name = "gpu-bench";
  engine.layout = "split";
  const uint64_t runs = chunk_bytes / fragment;
  engine.shape.layers = static_cast<uint32_t>(std::min<uint64_t>(32, runs / 2));
  engine.shape.tokens = 16;
  engine.shape.heads = 1;
  engine.shape.head_dim = static_cast<uint32_t>(fragment / 32);
  engine.chunk_blocks = static_cast<uint32_t>(runs / 2 / engine.shape.layers);
  engine.shape.blocks =
      static_cast<uint32_t>(kPoolBytes / (uint64_t{2} * engine.shape.layers * fragment));
  engine.landing.parts = static_cast<uint32_t>(flags.landing_parts);
  engine.landing.grid.blocks = static_cast<unsigned>(flags.copy_blocks);
  engine.landing.grid.threads = static_cast<unsigned>(flags.copy_threads);
  engine.seed = static_cast<uint64_t>(absl::ToUnixNanos(absl::Now()));
  return engine;
}

double Seconds(absl::Time since) { return absl::ToDoubleSeconds(absl::Now() - since); }

std::string List(const std::vector<double>& values) {
  return absl::StrCat(
      "[", absl::StrJoin(values, ", ", [](std::string* out, double v) { absl::StrAppend(out, v); }),
      "]");
}

// Runs operations, several at a time, until `more` says no; waits for all. Returns bytes a second
// over 1e9.
template <typename OperationPtr>
absl::StatusOr<double> Pipeline(uint64_t operation_bytes, const std::function<bool()>& more,
                                const std::function<absl::StatusOr<OperationPtr>(size_t)>& begin) {
  std::deque<OperationPtr> running;
  const absl::Time begun = absl::Now();
  uint64_t bytes = 0;
  absl::Status failure;
  for (size_t n = 0; failure.ok() && (more() || !running.empty());) {
    if (running.size() < kOperations && more()) {
      auto operation = begin(n++);
      if (!operation.ok()) {
        failure = operation.status();
      } else {
        running.push_back(*std::move(operation));
      }
      continue;
    }
    if (!running.front()->WaitEnded(absl::Seconds(60))) {
      failure = absl::DeadlineExceededError("an operation does not end");
    } else {
      failure = running.front()->status();
    }
    bytes += operation_bytes;
    running.pop_front();
  }
  for (const auto& operation : running) (void)operation->WaitEnded(absl::Seconds(60));
  if (!failure.ok()) return failure;
  return static_cast<double>(bytes) / Seconds(begun) / 1e9;
}

BlockTables Part(const BlockTables& tables, size_t operation) {
  const size_t first = operation * kOperationChunks % tables.size();
  return {tables.begin() + static_cast<ptrdiff_t>(first),
          tables.begin() + static_cast<ptrdiff_t>(first + kOperationChunks)};
}

class Paged {
 public:
  Paged(const Flags& flags, MiniEngine* engine) : flags_(flags), engine_(*engine) {}

  absl::Status Run() {
    if (auto s = engine_.pool().Upload(engine_.RandomBytes(1)); !s.ok()) return s;
    auto contiguous = ContiguousCopies::Create();
    if (!contiguous.ok()) return contiguous.status();
    if (!flags_.no_gemm) {
      auto gemm = GemmLoad::Start(0);
      if (!gemm.ok()) return gemm.status();
      gemm_ = *std::move(gemm);
      (void)gemm_->MeasureRate(absl::Seconds(2));  // The clocks settle first.
    }
    const absl::Duration part = absl::Milliseconds(flags_.round_ms);
    for (uint64_t round = 0; round < flags_.rounds; ++round) {
      if (gemm_ != nullptr) undisturbed_.push_back(gemm_->MeasureRate(part));
      for (const bool in : {true, false}) {
        auto s =
            Beside([&]() -> absl::StatusOr<double> { return (*contiguous)->Measure(in, part); },
                   in ? &in_ : &out_, in ? &engine_in_ : &engine_out_);
        if (!s.ok()) return s;
      }
      if (auto s = Round(round, part); !s.ok()) return s;
    }
    Print();
    return absl::OkStatus();
  }

 private:
  template <typename Work>
  absl::Status Beside(const Work& work, std::vector<double>* rates, std::vector<double>* engine) {
    const uint64_t before = gemm_ != nullptr ? gemm_->finished() : 0;
    const absl::Time begun = absl::Now();
    const absl::StatusOr<double> rate = work();
    if (!rate.ok()) return rate.status();
    rates->push_back(*rate);
    if (gemm_ != nullptr) {
      engine->push_back(static_cast<double>(gemm_->finished() - before) / Seconds(begun));
    }
    return absl::OkStatus();
  }

  absl::Status Round(uint64_t round, absl::Duration part) {
    const auto chunks = static_cast<uint32_t>(kPoolBytes / kChunkBytes);
    const BlockTables tables = engine_.ShuffledTables(chunks, round);
    const size_t operations = chunks / kOperationChunks;
    const uint64_t bytes = kOperationChunks * kChunkBytes;
    size_t begun = 0;
    auto status = Beside(
        [&] {
          return Pipeline<std::shared_ptr<StoreOperation>>(
              bytes, [&] { return begun < operations; },
              [&](size_t n) {
                ++begun;
                return engine_.BeginStore(round * chunks + n * kOperationChunks, Part(tables, n));
              });
        },
        &stores_, &engine_stores_);
    if (!status.ok()) return status;
    const BlockTables others = engine_.ShuffledTables(chunks, 1000 + round);
    const absl::Time end = absl::Now() + part;
    return Beside(
        [&] {
          return Pipeline<std::shared_ptr<ReadOperation>>(
              bytes, [&] { return absl::Now() < end; },
              [&](size_t n) {
                const size_t k = n % operations;
                return engine_.BeginRead(round * chunks + k * kOperationChunks, Part(others, k));
              });
        },
        &loads_, &engine_loads_);
  }

  void Print() const {
    std::printf(
        "{\"what\": \"paged\", \"fragment_kib\": %llu, \"way\": \"%s\", \"store_way\": \"%s\", "
        "\"contiguous_in\": %s, "
        "\"contiguous_out\": %s, \"loads\": %s, \"stores\": %s, \"gemm_undisturbed\": %s, "
        "\"gemm_loads\": %s, \"gemm_stores\": %s, \"gemm_contiguous_in\": %s, "
        "\"gemm_contiguous_out\": %s}\n",
        static_cast<unsigned long long>(flags_.fragment_kib), Name(engine_.region().way),
        Name(engine_.region().store_way), List(in_).c_str(), List(out_).c_str(),
        List(loads_).c_str(), List(stores_).c_str(), List(undisturbed_).c_str(),
        List(engine_loads_).c_str(), List(engine_stores_).c_str(), List(engine_in_).c_str(),
        List(engine_out_).c_str());
  }

  const Flags& flags_;
  MiniEngine& engine_;
  std::unique_ptr<GemmLoad> gemm_;
  std::vector<double> in_, out_, loads_, stores_, undisturbed_, engine_loads_, engine_stores_,
      engine_in_, engine_out_;
};

absl::Status RunSmall(const Flags& flags, MiniEngine* engine) {
  if (auto s = engine->pool().Upload(engine->RandomBytes(1)); !s.ok()) return s;
  if (auto s = engine->Store(0, engine->ShuffledTables(16, 1)); !s.ok()) return s;
  std::vector<double> us;
  for (uint64_t i = 0; i < 200 + flags.rounds * 400; ++i) {
    const BlockTables tables = engine->ShuffledTables(1, i);
    const absl::Time begun = absl::Now();
    if (auto s = engine->Read(i % 16, tables); !s.ok()) return s;
    if (i >= 200) us.push_back(Seconds(begun) * 1e6);
  }
  std::sort(us.begin(), us.end());
  std::printf(
      "{\"what\": \"small\", \"fragment_kib\": %llu, \"way\": \"%s\", \"reads\": %zu, "
      "\"p50_us\": %.0f, \"p99_us\": %.0f, \"max_us\": %.0f}\n",
      static_cast<unsigned long long>(flags.fragment_kib), Name(engine->region().way), us.size(),
      us[us.size() / 2], us[us.size() * 99 / 100], us.back());
  return absl::OkStatus();
}

absl::Status RunTiers(const Flags& flags, MiniEngine* engine) {
  if (auto s = engine->pool().Upload(engine->RandomBytes(1)); !s.ok()) return s;
  const auto most = static_cast<uint32_t>(kPoolBytes / kChunkBytes);
  const auto chunks = static_cast<uint32_t>(std::min<uint64_t>(flags.chunks, most));
  const BlockTables tables = engine->ShuffledTables(chunks, 1);
  if (auto s = engine->StoreDurably(0, tables); !s.ok()) return s;
  auto buffer = engine->client().CreateHostBuffer(chunks * kChunkBytes);
  if (!buffer.ok()) return buffer.status();
  std::vector<double> gpu;
  std::vector<double> host;
  const double bytes = static_cast<double>(chunks * kChunkBytes);
  for (uint64_t round = 0; round < 2 * flags.rounds; ++round) {
    const bool to_host = (round + round / 2) % 2 == 1;  // Now one first, now the other.
    const absl::Time begun = absl::Now();
    absl::Status read = to_host ? engine->ReadToHost(0, chunks, *buffer)
                                : engine->Read(0, engine->ShuffledTables(chunks, round));
    if (!read.ok()) return read;
    (to_host ? host : gpu).push_back(bytes / Seconds(begun) / 1e9);
  }
  std::printf("{\"what\": \"tiers\", \"chunks\": %u, \"gpu\": %s, \"host\": %s}\n", chunks,
              List(gpu).c_str(), List(host).c_str());
  return absl::OkStatus();
}

absl::Status Run(const std::string& what, const Flags& flags) {
  const uint64_t chunk_bytes = what == "small" ? kMiB : kChunkBytes;
  const uint64_t fragment = std::min(flags.fragment_kib * 1024, chunk_bytes / 2);
  auto engine = MiniEngine::Create(EngineOf(flags, fragment, chunk_bytes));
  if (!engine.ok()) return engine.status();
  if (what == "paged") return Paged(flags, engine->get()).Run();
  if (what == "small") return RunSmall(flags, engine->get());
  if (what == "tiers") return RunTiers(flags, engine->get());
  return absl::InvalidArgumentError("no measurement \"" + what + "\"");
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
  if (status.ok() && names->size() != 1)
    status = absl::InvalidArgumentError("name what to measure");
  if (status.ok()) status = Run(names->front(), flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "kvstream-gpu-bench: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace kvstream

int main(int argc, char** argv) { return kvstream::Main({argv + 1, argv + argc}); }
