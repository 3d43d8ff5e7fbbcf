// A worker that loads and stores without end, to be killed by a test: kvstream_e2e_victim SOCKET
// MEMORY, where MEMORY is host, or direct or landing for a fake GPU's, or idle for one that only
// registers it.
#include <unistd.h>

#include <cstdint>
#include <string>

#include "tests/support/device_worker.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

// Of the chunks that it stores: no two victims store the same.
uint64_t FirstKey() { return static_cast<uint64_t>(getpid()) << 32; }

// Both operations of a round run at once.
bool Round(Client& client, const v1::ReadStep& step, const v1::Store& message) {
  const auto read = client.ReadStep(step);
  const auto store = client.Store(message);
  return read.ok() && store.ok() && (*read)->WaitEnded(kPatience) && (*store)->WaitEnded(kPatience);
}

int LoopOverHostMemory(const std::string& socket) {
  Worker worker(socket);
  for (uint64_t round = 0; round < 1000000; ++round) {
    const auto keys = Keys(FirstKey() + round * 8, 8);
    if (!Round(worker.client(), worker.StepOf(Keys(1, 32)), worker.StoreOf(keys, 64))) return 1;
  }
  return 0;
}

int LoopOverDeviceMemory(const std::string& socket, bool landing, bool idle) {
  DeviceWorker worker(socket, landing ? LandingShape() : DirectShape());
  for (uint64_t round = 0; round < 1000000; ++round) {
    const auto tables = worker.Shuffled(8, static_cast<uint32_t>(round));
    const auto keys = Keys(FirstKey() + round * 8, 8);
    if (idle) {
      if (!worker.client().Lookup(v1::LookupRequest()).ok()) continue;
    } else if (!Round(worker.client(), worker.StepOf(Keys(1, 8), tables),
                      worker.StoreOf(keys, tables))) {
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace kvstream

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string memory = argv[2];
  if (memory == "host") return kvstream::LoopOverHostMemory(argv[1]);
  return kvstream::LoopOverDeviceMemory(argv[1], memory != "direct", memory == "idle");
}
