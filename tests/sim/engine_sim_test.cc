// The whole engine in simulated worlds. KVSTREAM_SEEDS says how many seeds to try from
// KVSTREAM_FIRST_SEED on, KVSTREAM_SEED replays one with a trace; tests/run.sh has options for all
// of them.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>

#include "gtest/gtest.h"
#include "server/base/logging.h"
#include "tests/sim/world.h"

namespace kvstream::sim {
namespace {

constexpr size_t kTraceLines = 150;

// For the handler of a failed check, which ends the process.
char replay[96];

void SayReplay(int) {
  const ssize_t written = write(STDERR_FILENO, replay, std::strlen(replay));
  static_cast<void>(written);
  std::signal(SIGABRT, SIG_DFL);
}

void SetSeed(uint64_t seed) {
  std::snprintf(replay, sizeof replay, "seed %llu: replay with tests/run.sh --seed %llu\n",
                static_cast<unsigned long long>(seed), static_cast<unsigned long long>(seed));
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(descriptors), end(descriptors)));
}

// The first broken promise; empty when all were kept. What throws ends the process, by the handler.
std::string ViolationOf(uint64_t seed) noexcept {
  World world(seed, /*tracing=*/false);
  world.Run();
  return world.journal().violation();
}

std::string Trace(uint64_t seed, size_t lines_max) {
  World world(seed, /*tracing=*/true);
  world.Run();
  const auto& lines = world.journal().lines();
  std::string text;
  for (size_t i = lines.size() > lines_max ? lines.size() - lines_max : 0; i < lines.size(); ++i) {
    text += lines[i] + "\n";
  }
  return text;
}

class EngineSimTest : public testing::Test {
 protected:
  EngineSimTest() {
    spdlog::set_level(spdlog::level::off);  // Every fault has its warning.
    std::signal(SIGABRT, SayReplay);
  }
  ~EngineSimTest() override { std::signal(SIGABRT, SIG_DFL); }
};

TEST_F(EngineSimTest, EveryPromiseHoldsInEveryWorld) {
  const uint64_t only = FromEnvironment("KVSTREAM_SEED", 0);
  const uint64_t first = only != 0 ? only : FromEnvironment("KVSTREAM_FIRST_SEED", 1);
  const uint64_t last = only != 0 ? only : first + FromEnvironment("KVSTREAM_SEEDS", 1000) - 1;
  for (uint64_t seed = first; seed <= last; ++seed) {
    SetSeed(seed);
    const size_t descriptors = OpenDescriptors();
    const std::string violation = ViolationOf(seed);
    const size_t lines = only != 0 ? Journal::kLinesMax : kTraceLines;
    ASSERT_EQ(violation, "") << replay << Trace(seed, lines);
    ASSERT_EQ(OpenDescriptors(), descriptors) << replay;
    if (only != 0) std::printf("%s", Trace(seed, Journal::kLinesMax).c_str());
  }
}

TEST_F(EngineSimTest, RunIsAFunctionOfItsSeed) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SetSeed(seed);
    World first(seed, /*tracing=*/false);
    first.Run();
    // The second has its tables and its memory elsewhere.
    World second(seed, /*tracing=*/true);
    second.Run();
    ASSERT_EQ(first.journal().digest(), second.journal().digest()) << replay;
  }
}

}  // namespace
}  // namespace kvstream::sim
