#include "tests/gpu/scenarios.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "tests/gpu/gemm_load.h"

namespace kvstream {
namespace {

// Seeds of block tables and of bytes that are no chunk's, apart from those of content.
constexpr uint64_t kTableSeed = 1000;
constexpr uint64_t kPoisonSeed = 2000;

// A line that a test may wait for.
[[gnu::format(printf, 1, 2)]] void Say(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::putchar('\n');
  std::fflush(stdout);
}

uint32_t ChunkCount(const ScenarioOptions& options, const MiniEngine& engine) {
  const uint32_t most = engine.layout().block_count / options.engine.chunk_blocks;
  return std::min(most, options.chunks > 0 ? options.chunks : std::max(1u, most / 2));
}

// The engine, and what it is, said.
absl::StatusOr<std::unique_ptr<MiniEngine>> Start(const ScenarioOptions& options) {
  auto engine = MiniEngine::Create(options.engine);
  if (!engine.ok()) return engine;
  if (options.engine.chunk_blocks > (*engine)->layout().block_count) {
    return absl::InvalidArgumentError("a chunk has more blocks than the pool");
  }
  const bool lands = (*engine)->region().way == v1::RegisterMemoryReply::WAY_LANDING;
  Say("region %llu: layout %s, %s, %zu tensors, chunks of %llu bytes",
      static_cast<unsigned long long>((*engine)->region().region_id), options.engine.layout.c_str(),
      lands ? "landing" : "direct", (*engine)->layout().tensors.size(),
      static_cast<unsigned long long>((*engine)->chunk_bytes()));
  return engine;
}

absl::Status Compare(const std::vector<uint8_t>& found, const std::vector<uint8_t>& expected) {
  const auto at = std::mismatch(found.begin(), found.end(), expected.begin());
  if (at.first == found.end()) return absl::OkStatus();
  uint64_t wrong = 0;
  for (size_t i = 0; i < found.size(); ++i) wrong += found[i] != expected[i];
  return absl::DataLossError("compare pool: " + std::to_string(wrong) +
                             " wrong bytes, the first at " +
                             std::to_string(at.first - found.begin()));
}

// Reads the chunks that `content` has in `stored` into other blocks of a pool of other bytes.
absl::Status ReadAndCompare(const ScenarioOptions& options, MiniEngine* engine,
                            const std::vector<uint8_t>& content, const BlockTables& stored,
                            uint64_t first_key, uint64_t round) {
  const uint64_t seed = options.engine.seed + round;
  std::vector<uint8_t> expected = engine->RandomBytes(kPoisonSeed + seed);
  if (auto s = engine->pool().Upload(expected); !s.ok()) return s;
  const BlockTables targets =
      engine->ShuffledTables(static_cast<uint32_t>(stored.size()), 2 * kTableSeed + seed);
  if (auto s = engine->Read(first_key, targets, options.requests); !s.ok()) return s;
  engine->MoveChunks(content, stored, targets, &expected);
  std::vector<uint8_t> found(expected.size());
  if (auto s = engine->pool().Download(&found); !s.ok()) return s;
  return Compare(found, expected);
}

// Matrices that are multiplied meanwhile, and their rate undisturbed.
struct Gemm {
  std::unique_ptr<GemmLoad> load;
  double undisturbed = 0;
  uint64_t finished = 0;
  absl::Time since;
};

absl::Status StartGemm(const ScenarioOptions& options, Gemm* gemm) {
  if (!options.gemm) return absl::OkStatus();
  auto load = GemmLoad::Start(options.engine.device);
  if (!load.ok()) return load.status();
  gemm->load = *std::move(load);
  // The clocks settle first.
  (void)gemm->load->MeasureRate(absl::Seconds(2));
  gemm->undisturbed = gemm->load->MeasureRate(absl::Seconds(3));
  Say("gemm: %.1f/s undisturbed", gemm->undisturbed);
  gemm->finished = gemm->load->finished();
  gemm->since = absl::Now();
  return absl::OkStatus();
}

// Progress about once a second, and at the end.
class Progress {
 public:
  Progress(const char* what, uint64_t round_bytes, Gemm* gemm)
      : what_(what), round_bytes_(round_bytes), gemm_(gemm) {}

  void AddRound() {
    ++rounds_;
    if (absl::Now() - since_ >= absl::Seconds(1)) Print();
  }

  void Print() {
    const absl::Time now = absl::Now();
    const double seconds = absl::ToDoubleSeconds(now - since_);
    const double rate = static_cast<double>((rounds_ - printed_) * round_bytes_) / seconds / 1e9;
    std::string gemm;
    if (gemm_->load != nullptr) {
      const uint64_t finished = gemm_->load->finished();
      const double now_rate = static_cast<double>(finished - gemm_->finished) /
                              absl::ToDoubleSeconds(now - gemm_->since);
      char text[64];
      std::snprintf(text, sizeof text, ", gemm %.1f %%", 100 * now_rate / gemm_->undisturbed);
      gemm = text;
      gemm_->finished = finished;
      gemm_->since = now;
    }
    Say("%s %llu rounds, %.3f GB/s%s", what_, static_cast<unsigned long long>(rounds_), rate,
        gemm.c_str());
    printed_ = rounds_;
    since_ = now;
  }

 private:
  const char* const what_;
  const uint64_t round_bytes_;
  Gemm* const gemm_;
  uint64_t rounds_ = 0;
  uint64_t printed_ = 0;
  absl::Time since_ = absl::Now();
};

// Fills the pool and stores chunks 0 ..; the pool's bytes and where the chunks are in them.
absl::Status StoreFirst(const ScenarioOptions& options, MiniEngine* engine,
                        std::vector<uint8_t>* content, BlockTables* stored) {
  *content = engine->RandomBytes(options.engine.seed);
  *stored = engine->ShuffledTables(ChunkCount(options, *engine), kTableSeed + options.engine.seed);
  if (auto s = engine->pool().Upload(*content); !s.ok()) return s;
  uint64_t existed = 0;
  if (auto s = engine->Store(0, *stored, &existed); !s.ok()) return s;
  Say("stored %zu chunks, %llu were there before", stored->size(),
      static_cast<unsigned long long>(existed));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunRoundTrip(const ScenarioOptions& options) {
  auto engine = Start(options);
  if (!engine.ok()) return engine.status();
  std::vector<uint8_t> content;
  BlockTables stored;
  if (auto s = StoreFirst(options, engine->get(), &content, &stored); !s.ok()) return s;
  for (uint64_t round = 0; round < std::max<uint64_t>(1, options.rounds); ++round) {
    if (auto s = ReadAndCompare(options, engine->get(), content, stored, 0, round); !s.ok()) {
      return s;
    }
  }
  if ((*engine)->landing() != nullptr) {
    Say("landing buffer: %llu parts scattered, %llu gathered",
        static_cast<unsigned long long>((*engine)->landing()->scattered()),
        static_cast<unsigned long long>((*engine)->landing()->gathered()));
  }
  return absl::OkStatus();
}

absl::Status RunHold(const ScenarioOptions& options) {
  auto engine = Start(options);
  if (!engine.ok()) return engine.status();
  Say("holding");
  while ((*engine)->client().session_status().ok()) absl::SleepFor(absl::Milliseconds(50));
  return (*engine)->client().session_status();
}

absl::Status RunReadLoop(const ScenarioOptions& options) {
  auto engine = Start(options);
  if (!engine.ok()) return engine.status();
  std::vector<uint8_t> content;
  BlockTables stored;
  if (auto s = StoreFirst(options, engine->get(), &content, &stored); !s.ok()) return s;
  Gemm gemm;
  if (auto s = StartGemm(options, &gemm); !s.ok()) return s;
  Say("reading");
  const auto chunks = static_cast<uint32_t>(stored.size());
  Progress progress("read", chunks * (*engine)->chunk_bytes(), &gemm);
  for (uint64_t round = 0; options.rounds == 0 || round < options.rounds; ++round) {
    const absl::Status s =
        options.verify
            ? ReadAndCompare(options, engine->get(), content, stored, 0, round)
            : (*engine)->Read(0, (*engine)->ShuffledTables(chunks, round), options.requests);
    if (!s.ok()) return s;
    progress.AddRound();
  }
  progress.Print();
  return absl::OkStatus();
}

absl::Status RunStoreLoop(const ScenarioOptions& options) {
  auto engine = Start(options);
  if (!engine.ok()) return engine.status();
  const uint32_t chunks = ChunkCount(options, **engine);
  const std::vector<uint8_t> content = (*engine)->RandomBytes(options.engine.seed);
  if (auto s = (*engine)->pool().Upload(content); !s.ok()) return s;
  Gemm gemm;
  if (auto s = StartGemm(options, &gemm); !s.ok()) return s;
  Say("storing");
  Progress progress("stored", chunks * (*engine)->chunk_bytes(), &gemm);
  for (uint64_t round = 0; options.rounds == 0 || round < options.rounds; ++round) {
    const BlockTables tables = (*engine)->ShuffledTables(chunks, round);
    const uint64_t first_key = (round + 1) << 20;
    absl::Status s = (*engine)->Store(first_key, tables);
    if (s.ok() && options.verify) {
      s = ReadAndCompare(options, engine->get(), content, tables, first_key, round);
      s.Update((*engine)->pool().Upload(content));
    }
    // A full staging pool drops what does not fit: a later miss, no failure.
    if (absl::IsResourceExhausted(s)) s = absl::OkStatus();
    if (!s.ok()) return s;
    progress.AddRound();
  }
  progress.Print();
  return absl::OkStatus();
}

absl::Status RunExpandable(const ScenarioOptions& options) {
  ScenarioOptions expandable = options;
  expandable.engine.pool = PoolKind::kExpandable;
  const absl::Status refused = MiniEngine::Create(expandable.engine).status();
  Say("refused: %s", refused.ToString().c_str());
  if (absl::IsFailedPrecondition(refused) &&
      absl::StrContains(refused.message(), "expandable_segments")) {
    return absl::OkStatus();
  }
  return absl::InternalError("register several allocations: not refused with the setting's name");
}

}  // namespace kvstream
