// The router in simulated worlds. KVSTREAM_SEEDS says how many seeds to try, KVSTREAM_SEED replays
// one.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/sim_batches.h"
#include "tests/support/sim_world.h"

namespace kvstream::sched {
namespace {

// For the handler of a failed check, which ends the process.
char current_seed[64];

void SaySeed(int) {
  const ssize_t written = write(STDERR_FILENO, current_seed, std::strlen(current_seed));
  static_cast<void>(written);
  std::signal(SIGABRT, SIG_DFL);
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

TEST(RouterSimTest, EveryPromiseHoldsInEveryWorld) {
  const uint64_t only = FromEnvironment("KVSTREAM_SEED", 0);
  const uint64_t first = only != 0 ? only : 1;
  const uint64_t last = only != 0 ? only : FromEnvironment("KVSTREAM_SEEDS", 1000);
  std::signal(SIGABRT, SaySeed);
  for (uint64_t seed = first; seed <= last; ++seed) {
    std::snprintf(current_seed, sizeof current_seed, "replay with KVSTREAM_SEED=%llu\n",
                  static_cast<unsigned long long>(seed));
    const auto world = RandomWorld(seed);
    world->Run();
    ASSERT_EQ(world->violation(), "") << "at " << world->now() << " ns; " << current_seed;
  }
  std::signal(SIGABRT, SIG_DFL);
}

}  // namespace
}  // namespace kvstream::sched
