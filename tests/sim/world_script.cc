// What happens to the engine: its clients' doings, its tiers' mishaps, its operator's whims.
#include <cerrno>

#include "tests/sim/world.h"

namespace kvstream::sim {

void World::WriteScript() {
  const SimScript& script = options_.script;
  for (uint32_t i = 0; i < script.steps; ++i) {
    At(now_ + static_cast<TimeNs>(random_.Below(static_cast<uint64_t>(script.horizon))),
       [this] { Act(); });
  }
}

Client* World::SomeClient() {
  std::erase_if(clients_, [](const auto& client) { return client->closed(); });
  if (clients_.empty()) AddSession();
  Client* client = clients_[random_.Below(clients_.size())].get();
  return client->over() ? nullptr : client;
}

void World::AddSession() {
  const Client::Parts parts{.names = &names_,
                            .journal = &journal_,
                            .watch = &watch_,
                            .replicas = &replicas_,
                            .random = &random_,
                            .driver = driver_.get(),
                            .grace = options_.copy_max + 4 * options_.turn_jitter + kMillisecond,
                            .deadlines = options_.script.deadlines,
                            .given_up = &given_up_};
  const auto client = std::make_shared<Client>(parts, SessionId{next_session_++});
  clients_.push_back(client);
  client->Connect(client);
}

void World::Act() {
  ActOnTiers();
  const SimScript& script = options_.script;
  if (random_.Chance(script.drain)) Drain();
  if (random_.Chance(script.die) && clients_.size() < 8) AddSession();
  Client* client = SomeClient();
  if (client == nullptr) return;
  if (random_.Chance(script.die)) return client->Die();
  if (random_.Chance(script.reuse_id)) return client->ReuseId();
  if (random_.Chance(script.cancel)) client->CancelOne();
  switch (random_.Below(16)) {
    case 0:
      return client->Lookup();
    case 1:
      return client->ReleaseLease();
    case 2:
      return client->ForwardBegan();
    case 3:
      return random_.Chance(0.5) ? client->Refuse() : client->Heartbeat();
    case 4:
    case 5:
    case 6:
    case 7:
    case 8:
      return client->Store();
    default:
      return client->Read();
  }
}

void World::ActOnTiers() {
  const SimScript& script = options_.script;
  const TierId tier{static_cast<uint32_t>(random_.Below(tiers_.size()))};
  const auto later = [this] {
    return now_ + static_cast<TimeNs>(random_.Below(3 * kSecond)) + kMicrosecond;
  };
  if (random_.Chance(script.tier_out)) TakeOut(tier, later());
  if (random_.Chance(script.hang)) Hang(tier, later());
  if (random_.Chance(script.full)) FillUp(tier, later());
  const auto key = static_cast<uint32_t>(random_.Below(names_.keys()));
  if (random_.Chance(script.damage)) replicas_.DamageFile(tier, key, random_.Next());
  if (random_.Chance(script.remove)) replicas_.RemoveFile(tier, key);
}

void World::PostInService(TierId tier, bool in_service) {
  journal_.Note("an operator wants tier {} in service: {}", tier.value, in_service);
  engine::SetTierInService event{.tier = tier, .in_service = in_service, .reply = nullptr};
  event.reply = [](bool) {};
  driver_->engine().Post(std::move(event));
}

void World::TakeOut(TierId tier, TimeNs back_at) {
  PostInService(tier, false);
  At(back_at, [this, tier] { PostInService(tier, true); });
}

void World::Hang(TierId tier, TimeNs until) {
  journal_.Note("tier {} hangs", tier.value);
  test::FakeTier& fake = tiers_[tier.value]->tapped->fake();
  const test::FakeTier::Options& options = options_.tiers[tier.value].options;
  // To a crawl, or to a stop; one direction or both.
  const uint64_t slow = random_.Chance(0.5) ? 0 : 64 * kKiB;
  if (random_.Chance(0.8)) fake.SetReadRate(slow);
  if (random_.Chance(0.5)) fake.SetWriteRate(slow);
  At(until, [this, tier, &fake, &options] {
    journal_.Note("tier {} goes on", tier.value);
    fake.SetReadRate(options.read_rate);
    fake.SetWriteRate(options.write_rate);
  });
}

void World::FillUp(TierId tier, TimeNs until) {
  journal_.Note("tier {} is full", tier.value);
  Tier& full = *tiers_[tier.value];
  full.plan.SetRates(test::FaultPoint::kWrite, {.error = 1, .errors = {ENOSPC}});
  At(until, [this, tier, &full] {
    journal_.Note("tier {} has room", tier.value);
    full.plan.SetRates(test::FaultPoint::kWrite, options_.tiers[tier.value].writes);
  });
}

void World::Drain() {
  journal_.Note("an operator drains the daemon");
  draining_ = true;
  ++drains_open_;
  driver_->engine().Post(engine::Drain{static_cast<TimeNs>(random_.Below(2 * kSecond)),
                                       [this](absl::StatusOr<engine::DrainResult> result) {
                                         --drains_open_;
                                         if (result.ok() ||
                                             absl::IsResourceExhausted(result.status()))
                                           return;
                                         journal_.Fail("a drain was refused");
                                       }});
}

void World::SetFaults(bool on) {
  for (size_t t = 0; t < tiers_.size(); ++t) {
    const SimTier& chosen = options_.tiers[t];
    test::FakeTier& fake = tiers_[t]->tapped->fake();
    fake.SetReadRate(chosen.options.read_rate);
    fake.SetWriteRate(chosen.options.write_rate);
    tiers_[t]->plan.Clear();
    if (!on) continue;
    tiers_[t]->plan.SetRates(test::FaultPoint::kRead, chosen.reads);
    tiers_[t]->plan.SetRates(test::FaultPoint::kWrite, chosen.writes);
  }
}

}  // namespace kvstream::sim
