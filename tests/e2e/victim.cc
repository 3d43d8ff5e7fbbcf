// A worker that loads and stores without end, to be killed by cancel_test.
#include <cstdint>

#include "tests/support/test_daemon.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  kvstream::Worker worker(argv[1]);
  for (uint64_t round = 0; round < 1000000; ++round) {
    auto read = worker.client().ReadStep(worker.StepOf(kvstream::Keys(1, 32)));
    auto store = worker.client().Store(worker.StoreOf(kvstream::Keys(1000000 + round * 8, 8), 64));
    if (!read.ok() || !store.ok()) return 1;
    if (!(*read)->WaitEnded(kvstream::kPatience)) return 1;
    if (!(*store)->WaitEnded(kvstream::kPatience)) return 1;
  }
  return 0;
}
