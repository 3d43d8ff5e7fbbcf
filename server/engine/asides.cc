#include "server/engine/asides.h"

#include <algorithm>
#include <utility>

#include "server/base/check.h"
#include "server/base/logging.h"
#include "server/store/chunk_format.h"

namespace kvstream::engine {

void Asides::Begin(TierId tier, const std::string& path, const KeyDigest& key,
                   absl::AnyInvocable<void()> done, absl::AnyInvocable<int()> replace) {
  const auto [ticket, aside] = Begin(tier, path, key);
  aside->done.push_back(std::move(done));
  tiers_[tier.value]->SetAside(tier::SetAsideRequest{
      ticket, aside->path.get(), [key](int fd) { return store::FileIsDamaged(fd, key); },
      std::move(replace)});
}

void Asides::GiveUp(TierId tier, const std::string& path, const KeyDigest& key, GivenUp done) {
  const auto [ticket, aside] = Begin(tier, path, key);
  aside->given_up = std::move(done);
  tiers_[tier.value]->SetAside(tier::SetAsideRequest{ticket, aside->path.get(), nullptr, nullptr});
}

std::pair<Ticket, Asides::Aside*> Asides::Begin(TierId tier, const std::string& path,
                                                const KeyDigest& key) {
  watcher_(tier, path);
  if (changed_[tier.value].has_value()) changed_[tier.value]->insert(key);
  if (listener_ != nullptr) listener_->OnGone(tier, key);
  const Ticket ticket{next_ticket_++};
  Aside& aside = running_[ticket];
  aside.tier = tier;
  aside.key = key;
  aside.path = std::make_unique<const std::string>(path);
  return {ticket, &aside};
}

void Asides::NotePublished(TierId tier, const store::ChunkFacts& chunk, bool own) {
  if (changed_[tier.value].has_value()) changed_[tier.value]->insert(chunk.key);
  if (own && listener_ != nullptr) listener_->OnPublished(tier, chunk);
}

void Asides::NoteChanges(TierId tier, bool on) {
  changed_[tier.value].reset();
  if (!on) return;
  changed_[tier.value].emplace();
  for (const auto& [ticket, aside] : running_) {
    if (aside.tier == tier) changed_[tier.value]->insert(aside.key);
  }
}

bool Asides::WhenDone(TierId tier, const std::string& path, absl::AnyInvocable<void()> done) {
  const auto it = std::find_if(running_.begin(), running_.end(), [&](const auto& running) {
    return running.second.tier == tier && *running.second.path == path;
  });
  if (it == running_.end()) return false;
  it->second.done.push_back(std::move(done));
  return true;
}

void Asides::OnCompletion(const tier::Completion& completion, TimeNs now) {
  const auto it = running_.find(completion.ticket);
  KV_CHECK(it != running_.end());
  Aside aside = std::move(it->second);
  running_.erase(it);
  if (completion.code == absl::StatusCode::kOk) {
    Trust(aside.tier, aside.key);  // It is gone, or was judged once more.
    if (aside.given_up == nullptr) stats_->tiers[completion.tier.value].files_set_aside.Add();
  } else {
    NoteFailure(aside, completion, now);
  }
  if (aside.given_up != nullptr) {
    aside.given_up(completion.code == absl::StatusCode::kOk, now);
  }
  for (auto& done : aside.done) done();
}

void Asides::NoteFailure(const Aside& aside, const tier::Completion& completion, TimeNs now) {
  TierEngineStats& stats = stats_->tiers[completion.tier.value];
  const bool given_up = aside.given_up != nullptr;
  (given_up ? stats.eviction_failures : stats.set_aside_failures).Add();
  QuietPeriod& quiet = (given_up ? eviction_quiet_ : failure_quiet_)[completion.tier.value];
  if (!quiet.IsOver(now)) return;
  spdlog::warn(
      "{}: tier={} file={} code={} errno={}",
      given_up ? "chunks that are given up cannot be deleted" : "damaged files cannot be set aside",
      tiers_[completion.tier.value]->options().name, *aside.path,
      absl::StatusCodeToString(completion.code), completion.error);
}

}  // namespace kvstream::engine
