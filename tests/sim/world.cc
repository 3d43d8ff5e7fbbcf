#include "tests/sim/world.h"

#include <algorithm>
#include <cstring>

#include "server/base/check.h"

namespace kvstream::sim {
namespace {

// More turns than any world needs: the engine spins.
constexpr uint64_t kTurnsMax = 300000;
constexpr uint64_t kTurnsAtOnceMax = 2000;
// Everything that can end has ended after so long without faults.
constexpr TimeNs kPatience = 200 * kSecond;

}  // namespace

World::World(uint64_t seed, bool tracing)
    : random_(seed),
      options_(RandomOptions(random_)),
      journal_(tracing),
      names_(options_.keys, options_.payload_bytes, options_.segment_bytes),
      replicas_(&names_, &journal_, options_.script.deadlines) {
  auto pool = memory::SealedMemory::Create("sim-pool", options_.pool_bytes, false);
  KV_CHECK(pool.ok());
  pool_ = *std::move(pool);
  std::vector<test::FakeTier*> fakes;
  for (const SimTier& chosen : options_.tiers) {
    auto& tier = *tiers_.emplace_back(new Tier{.plan = test::FaultPlan(random_.Next())});
    test::FakeTier::Options options = chosen.options;
    options.faults = &tier.plan;
    options.may_harm = [this, id = options.tier.id](test::FaultPoint point,
                                                    const test::Fault& fault, const auto& path) {
      return replicas_.MayHarm(id, names_.NumberOf(path), point, fault);
    };
    tier.tapped = std::make_unique<TappedTier>(
        TappedTier::Parts{&names_, &journal_, &watch_, &replicas_}, std::move(options));
    fakes.push_back(&tier.tapped->fake());
  }
  replicas_.SetTiers(std::move(fakes));
}

World::~World() {
  // What the tiers have in flight points into the engine.
  for (auto& tier : tiers_) tier->tapped->Crash();
}

void World::Run() {
  for (uint32_t life = 1; life <= options_.script.lives && !journal_.failed(); ++life) {
    BeginLife();
    Live();
    if (journal_.failed()) return;
    if (life < options_.script.lives && random_.Chance(options_.script.crash)) {
      Crash();
    } else {
      EndWell();
    }
  }
}

void World::BeginLife() {
  journal_.Note("the daemon starts");
  draining_ = false;
  driver_ = std::make_unique<engine::EngineDriver>(pool_.get());
  std::vector<tier::Tier*> tiers;
  for (auto& tier : tiers_) {
    tier->tapped->set_sink(&driver_->engine());
    tiers.push_back(tier->tapped.get());
  }
  driver_->SetUp(options_.engine, std::move(tiers), this);
  SetFaults(true);
  for (uint32_t i = 0; i < options_.sessions; ++i) AddSession();
}

void World::Live() {
  const TimeNs end = now_ + options_.script.horizon;
  busy_ = true;
  WriteScript();
  while (!journal_.failed()) {
    const TimeNs next = NextEventAt();
    if (next > end) break;
    Step(next);
  }
  busy_ = false;
}

void World::Crash() {
  journal_.Note("the daemon crashes");
  events_.clear();
  copies_.clear();
  drains_open_ = 0;
  for (auto& tier : tiers_) tier->tapped->Crash();
  replicas_.Restart();
  watch_.Clear();
  driver_.reset();
  clients_.clear();
  std::memset(pool_->bytes().data(), 0xDD, pool_->size());
}

void World::EndWell() {
  journal_.Note("the faults end");
  events_.clear();
  SetFaults(false);
  for (uint32_t t = 0; t < tiers_.size(); ++t) PostInService(TierId{t}, true);
  Settle(kPatience);
  for (const auto& client : clients_) client->CheckServed();
  if (journal_.failed()) return;
  journal_.Note("what hangs fails");
  for (auto& tier : tiers_) tier->tapped->fake().EndHung();
  Settle(kPatience);
  for (const auto& client : clients_) {
    if (client->running() > 0) journal_.Fail("an operation never ends");
  }
  if (journal_.failed()) return;
  journal_.Note("the daemon stops");
  driver_->engine().BeginDrain();
  Settle(kPatience);
  driver_->EndSessions();
  Settle(kPatience);
  if (!journal_.failed()) CheckQuiet();
  replicas_.Restart();
  driver_.reset();
  clients_.clear();
}

void World::At(TimeNs at, std::function<void()> happen) {
  events_.emplace(std::pair(at, next_order_++), std::move(happen));
}

TimeNs World::NextEventAt() const {
  TimeNs next = driver_->NextDeadline();
  if (!events_.empty()) next = std::min(next, events_.begin()->first.first);
  if (!copies_.empty()) next = std::min(next, copies_.begin()->first.first);
  for (const auto& tier : tiers_) next = std::min(next, tier->tapped->fake().NextEventAt());
  return next;
}

void World::Settle(TimeNs most) {
  const TimeNs end = now_ + most;
  Step(now_);
  while (!journal_.failed()) {
    const TimeNs next = NextEventAt();
    if (next > end) return;
    Step(next);
  }
}

void World::Step(TimeNs next) {
  TimeNs now = std::max(now_, next);
  if (options_.turn_jitter > 0 && random_.Chance(0.3)) {
    now += static_cast<TimeNs>(random_.Below(static_cast<uint64_t>(options_.turn_jitter)));
  }
  turns_at_now_ = now > now_ ? 0 : turns_at_now_ + 1;
  if (turns_at_now_ > kTurnsAtOnceMax || turns_ > kTurnsMax) {
    return journal_.Fail("the loop spins: it asks for turns that change nothing");
  }
  now_ = now;
  journal_.set_now(now);
  while (!events_.empty() && events_.begin()->first.first <= now_) {
    const auto event = events_.extract(events_.begin());
    event.mapped()();
  }
  for (auto& tier : tiers_) tier->tapped->fake().AdvanceTo(now_);
  FinishCopies();
  Turn();
}

void World::Turn() {
  ++turns_;
  driver_->Turn(now_);
  replicas_.AfterTurn(driver_->UsableThroughout());
  StartCopies();
  CheckTurn();
}

void World::StartCopies() {
  while (auto job = driver_->TakeCopy()) {
    CheckCopy(*job);
    const MemoryWatch::User user = watch_.NewUser();
    const bool padded = job->pad_bytes > 0;
    bool apart = watch_.Begin(user, job->source, false);
    for (std::byte* destination : job->destinations) {
      const uint64_t bytes = job->source.size() + (padded ? job->pad_bytes : 0);
      apart = watch_.Begin(user, {destination, bytes}, true) && apart;
    }
    if (!apart) journal_.Fail("a copy touches memory that somebody else uses");
    const TimeNs takes =
        static_cast<TimeNs>(random_.Below(static_cast<uint64_t>(options_.copy_max) + 1));
    copies_.emplace(std::pair(now_ + takes, next_order_++), PendingCopy{*std::move(job), user});
  }
}

void World::FinishCopies() {
  while (!copies_.empty() && copies_.begin()->first.first <= now_) {
    const auto copy = copies_.extract(copies_.begin());
    watch_.End(copy.mapped().user);
    driver_->DoCopy(copy.mapped().job);
  }
}

void World::Close(SessionId session) {
  for (const auto& client : clients_) {
    if (client->id() == session) client->OnClosed();
  }
}

}  // namespace kvstream::sim
