#include "server/engine/lookups.h"

#include <algorithm>
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
  const size_t keys = KeysOf(running.lookup);
  const size_t members = running.lookup.members;
  while (running.next<keys&& * digests_left> 0) {
    Examine(running, running.next++);
    *digests_left -= std::min(*digests_left, members);
    if (running.run_broken && !running.lookup.per_key) return true;
  }
  return running.next == keys;
}

void Lookups::Examine(Running& running, size_t key) {
  const Lookup& lookup = running.lookup;
  const auto* digests = lookup.digests.data() + key * lookup.members;
  const TierSet in_service = parts_.router->InService();
  const auto readable = [&](const KeyDigest& d) {
    return parts_.index->ReadableFrom(d, in_service);
  };
  const bool present = std::all_of(digests, digests + lookup.members, readable);
  LookupResult& result = running.result;
  if (lookup.per_key) result.present.push_back(present ? 1 : 0);
  running.run_broken = running.run_broken || !present;
  if (!present) return;
  if (key > 0) {
    running.learned |= parts_.index->Follow(*digests, *(digests - lookup.members));
  }
  if (lookup.lease_for > 0)
    running.found.insert(running.found.end(), digests, digests + lookup.members);
  if (running.run_broken) return;
  result.leading_run += 1;
  for (uint32_t m = 0; m < lookup.members; ++m) {
    const auto entry = parts_.index->Find(digests[m]);
    if (!entry->hints.empty()) running.last_hint = digests[m];
    for (const store::ContentCopy& copy : entry->copies) {
      result.staged += copy.staged ? 1 : 0;
      for (uint32_t t = 0; t < parts_.tiers; ++t) {
        result.tier_chunks[t] += (copy.tiers & in_service).Has(TierId{t}) ? 1 : 0;
      }
    }
  }
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
