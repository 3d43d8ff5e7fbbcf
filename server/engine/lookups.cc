#include "server/engine/lookups.h"

#include <algorithm>
#include <array>
#include <utility>

#include "server/engine/cataloguer.h"

namespace kvstream::engine {

void Lookups::Begin(Lookup lookup, TimeNs now) {
  parts_.stats->lookups.Add();
  Running running;
  running.result.tier_chunks.resize(parts_.tiers);
  running.lookup = std::move(lookup);
  running.began = now;
  running_.push_back(std::move(running));
}

void Lookups::Pump(TimeNs now) {
  size_t left = kDigestsPerTurn;
  for (size_t count = running_.size(); count > 0 && left > 0; --count) {
    Running running = std::move(running_.front());
    running_.pop_front();
    if (Advance(running, &left)) {
      Finish(running, now);
    } else {
      running_.push_back(std::move(running));
    }
  }
}

// True when there is nothing more to examine.
bool Lookups::Advance(Running& running, size_t* digests_left) {
  const std::vector<KeyDigest>& digests = running.lookup.digests;
  const size_t keys = KeysOf(running.lookup);
  const size_t members = running.lookup.members;
  const TierSet in_service = parts_.router->InService();
  store::Presence before;
  if (running.next > 0) before = parts_.index->Look(digests[(running.next - 1) * members]);
  while (running.next < keys && *digests_left > 0) {
    const size_t ahead = running.next * members + kAhead;
    for (size_t i = ahead; i < std::min(ahead + members, digests.size()); ++i) {
      parts_.index->Prefetch(digests[i]);
    }
    before = Examine(running, running.next++, in_service, before);
    *digests_left -= std::min(*digests_left, members);
    if (running.run_broken && !running.lookup.per_key) return true;
  }
  return running.next == keys;
}

store::Presence Lookups::Examine(Running& running, size_t key, TierSet in_service,
                                 const store::Presence& before) {
  const Lookup& lookup = running.lookup;
  const auto* digests = lookup.digests.data() + key * lookup.members;
  store::Presence first;
  std::optional<KeyDigest> hint;
  uint32_t staged = 0;
  std::array<uint32_t, kTiersMax> on_tiers{};
  bool present = true;
  for (uint32_t m = 0; present && m < lookup.members; ++m) {
    const store::Presence member = parts_.index->Look(digests[m]);
    if (m == 0) first = member;
    const TierSet tiers = member.tiers & in_service;
    present = member.staged || !tiers.empty();
    if (member.hinted) hint = digests[m];
    staged += member.staged ? 1 : 0;
    for (uint32_t t = 0; t < parts_.tiers; ++t) on_tiers[t] += tiers.Has(TierId{t}) ? 1 : 0;
  }
  LookupResult& result = running.result;
  if (lookup.per_key) result.present.push_back(present ? 1 : 0);
  running.run_broken = running.run_broken || !present;
  if (!present) return first;
  if (key > 0) running.learned |= parts_.index->Follow(first, before);
  if (lookup.lease_for > 0) {
    running.found.insert(running.found.end(), digests, digests + lookup.members);
  }
  if (running.run_broken) return first;
  result.leading_run += 1;
  result.staged += staged;
  for (uint32_t t = 0; t < parts_.tiers; ++t) result.tier_chunks[t] += on_tiers[t];
  if (hint.has_value()) running.last_hint = hint;
  return first;
}

void Lookups::Finish(Running& running, TimeNs now) {
  EngineStats& stats = *parts_.stats;
  stats.lookup_keys.Add(KeysOf(running.lookup));
  stats.lookup_hits.Add(running.result.leading_run);
  if (const uint32_t run = running.result.leading_run; run > 0) {
    const size_t last = (run - 1) * size_t{running.lookup.members};
    parts_.index->Touch(running.lookup.digests[last], now, running.learned);
    if (cataloguer_ != nullptr && running.last_hint.has_value()) {
      cataloguer_->OnUsed(*running.last_hint, now);
    }
  }
  stats.lookup_us.Observe(static_cast<uint64_t>((now - running.began) / kMicrosecond));
  if (running.lookup.lease_for > 0) {
    const Session* owner = parts_.sessions->Find(running.lookup.session);
    if (owner == nullptr || owner->ending) {
      answers_.push_back({std::move(running.lookup.reply),
                          absl::FailedPreconditionError(
                              "session_id " + std::to_string(running.lookup.session.value) +
                              ": no such session")});
      return;
    }
    running.result.lease_id =
        parts_.leases->Grant(running.lookup.session, running.found, now + running.lookup.lease_for);
  }
  answers_.push_back({std::move(running.lookup.reply), std::move(running.result)});
}

void Lookups::SendReplies() {
  for (Answer& answer : answers_) answer.reply(std::move(answer.result));
  answers_.clear();
}

}  // namespace kvstream::engine
