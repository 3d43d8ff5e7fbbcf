#include "server/engine/asides.h"

#include <algorithm>
#include <utility>

#include "server/base/check.h"
#include "server/base/logging.h"
#include "server/store/chunk_format.h"

namespace kvstream::engine {

void Asides::Begin(TierId tier, const std::string& path, const KeyDigest& key,
                   absl::AnyInvocable<void()> done, absl::AnyInvocable<int()> replace) {
  watcher_(tier, path);
  const Ticket ticket{next_ticket_++};
  Aside& aside = running_[ticket];
  aside.tier = tier;
  aside.key = key;
  aside.path = std::make_unique<const std::string>(path);
  aside.done.push_back(std::move(done));
  tiers_[tier.value]->SetAside(tier::SetAsideRequest{
      ticket, aside.path.get(), [key](int fd) { return store::FileIsDamaged(fd, key); },
      std::move(replace)});
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
  TierEngineStats& stats = stats_->tiers[completion.tier.value];
  if (completion.code == absl::StatusCode::kOk) {
    Trust(aside.tier, aside.key);  // It is gone, or was judged once more.
    stats.files_set_aside.Add();
  } else {
    stats.set_aside_failures.Add();
    if (failure_quiet_[completion.tier.value].IsOver(now)) {
      spdlog::warn("damaged files cannot be set aside: tier={} file={} code={} errno={}",
                   tiers_[completion.tier.value]->options().name, *aside.path,
                   absl::StatusCodeToString(completion.code), completion.error);
    }
  }
  for (auto& done : aside.done) done();
}

}  // namespace kvstream::engine
