// The whole engine in a simulated world, in virtual time, from a seed: the real router, write
// queue, staging, index, leases, sessions and operations, over fake tiers on which everything goes
// wrong and with clients that cancel, die and restart. One run is a function of its seed. Promises
// are checked after every turn of the loop; the first broken one ends the run.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/api.h"
#include "server/memory/sealed_memory.h"
#include "tests/sim/client.h"
#include "tests/sim/engine_driver.h"
#include "tests/sim/journal.h"
#include "tests/sim/memory_watch.h"
#include "tests/sim/names.h"
#include "tests/sim/replicas.h"
#include "tests/sim/sim_options.h"
#include "tests/sim/tapped_tier.h"
#include "tests/support/fault_plan.h"
#include "tests/support/sim_random.h"

namespace kvstream::sim {

class World final : public engine::HandoffPeer {
 public:
  World(uint64_t seed, bool tracing);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() override;

  void Run();
  const Journal& journal() const { return journal_; }

  void Close(SessionId session) override;

 private:
  struct Tier {
    test::FaultPlan plan;
    std::unique_ptr<TappedTier> tapped;
    bool full = false;
  };
  struct PendingCopy {
    engine::CopyJob job;
    MemoryWatch::User user = 0;
  };

  // world.cc: time, and the lives of the engine.
  void At(TimeNs at, std::function<void()> happen);
  void BeginLife();
  void Live();
  void Crash();
  void EndWell();
  // Runs until nothing more happens, or for so long.
  void Settle(TimeNs most);
  TimeNs NextEventAt() const;
  void Step(TimeNs next);
  void Turn();
  void StartCopies();
  void FinishCopies();

  // world_script.cc: what happens to the engine.
  void WriteScript();
  void Act();
  void ActOnTiers();
  void AddSession();
  Client* SomeClient();
  void TakeOut(TierId tier, TimeNs back_at);
  void Hang(TierId tier, TimeNs until);
  void FillUp(TierId tier, TimeNs until);
  void Drain();
  void SetFaults(bool on);
  void PostInService(TierId tier, bool in_service);

  // world_checks.cc
  void CheckTurn();
  void CheckIndex();
  void CheckCopy(const engine::CopyJob& job);
  void CheckQuiet();

  SimRandom random_;
  const SimOptions options_;
  Journal journal_;
  Names names_;
  MemoryWatch watch_;
  Replicas replicas_;
  std::set<uint32_t> given_up_;
  std::unique_ptr<memory::SealedMemory> pool_;
  std::vector<std::unique_ptr<Tier>> tiers_;
  std::unique_ptr<engine::EngineDriver> driver_;
  std::vector<std::shared_ptr<Client>> clients_;
  uint64_t next_session_ = 1;
  // By time, and in order of arrival at one time.
  std::map<std::pair<TimeNs, uint64_t>, std::function<void()>> events_;
  std::map<std::pair<TimeNs, uint64_t>, PendingCopy> copies_;
  uint64_t next_order_ = 0;
  TimeNs now_ = 0;
  uint64_t turns_ = 0;
  uint64_t turns_at_now_ = 0;
  bool busy_ = false;  // The script goes on.
  bool draining_ = false;
  uint64_t drains_open_ = 0;
};

}  // namespace kvstream::sim
