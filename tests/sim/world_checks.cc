// The promises of the engine as a whole. Those to a client are checked by the client.
#include "tests/sim/world.h"
#include "tests/support/router_peer.h"

namespace kvstream::sim {

using engine::CopyKind;

void World::CheckTurn() {
  for (const auto& client : clients_) client->CheckBounds();
  const engine::EngineStats& stats = driver_->stats();
  if (watch_.BytesInUse(pool_->bytes()) > stats.pool_used_bytes.Get() + stats.cache_bytes.Get()) {
    journal_.Fail("slots are in use that nobody holds");
  }
  CheckIndex();
  const uint64_t segment_bytes = options_.segment_bytes;
  const std::string wrong = sched::RouterPeer::Check(driver_->router(), segment_bytes, now_);
  if (!wrong.empty()) journal_.Fail(wrong);
}

void World::CheckIndex() {
  for (uint32_t key = 0; key < names_.keys(); ++key) {
    const auto entry = driver_->index().Find(names_.digest(key));
    TierSet indexed;
    for (size_t c = 0; entry.has_value() && c < entry->copies.size(); ++c) {
      const store::ContentCopy& copy = entry->copies[c];
      if (!(indexed & copy.tiers).empty()) journal_.Fail("the index has two files of one name");
      indexed = indexed | copy.tiers;
      for (uint32_t t = 0; t < tiers_.size(); ++t) {
        const TierId tier{t};
        if (!copy.tiers.Has(tier)) continue;
        if (!replicas_.Published(tier, key) && !replicas_.Harmed(tier, key)) {
          journal_.Fail(
              fmt::format("the index has key {} on tier {}, which has no such file", key, t));
        }
        if (replicas_.good(key).Has(tier) && replicas_.content(tier, key) != copy.content) {
          journal_.Fail(fmt::format("the index has another content of key {} on tier {}", key, t));
        }
      }
    }
    if (!replicas_.good(key).Without(indexed).empty()) {
      journal_.Fail(fmt::format("the index has lost a good replica of key {}", key));
    }
  }
}

void World::CheckCopy(const engine::CopyJob& job) {
  const auto owner = [this](std::span<const std::byte> bytes) -> const Client* {
    for (const auto& client : clients_) {
      if (client->Owns(bytes)) return client.get();
    }
    return nullptr;
  };
  if (job.kind == CopyKind::kStore) {
    const Client* client = owner(job.source);
    if (client == nullptr || !client->MayBeTouched(job.source)) {
      journal_.Fail("a store reads memory that is not its own");
    }
    return;
  }
  for (std::byte* destination : job.destinations) {
    const std::span<const std::byte> bytes{destination, job.source.size()};
    const Client* client = owner(bytes);
    if (client == nullptr || !client->MayBeTouched(bytes)) {
      journal_.Fail("a read is copied to memory whose request has ended");
    }
  }
}

void World::CheckQuiet() {
  const engine::EngineStats& stats = driver_->stats();
  const std::pair<const char*, uint64_t> numbers[] = {
      {"slots", stats.pool_used_bytes.Get()},
      {"staged chunks", stats.staged_bytes.Get() + (driver_->nothing_staged() ? 0 : 1)},
      {"leases", stats.leases.Get() + stats.leased_chunks.Get()},
      {"sessions", stats.sessions_open.Get()},
      {"buffers", stats.host_buffers.Get() + stats.host_buffer_bytes.Get()},
      {"operations", stats.operations_running.Get()},
      {"unhandled events", stats.unhandled_events.Get()},
      {"users of memory", watch_.empty() ? 0 : 1},
      {"drains", drains_open_},
      {"end of the sessions, not said", driver_->sessions_ended() ? 0 : 1}};
  for (const auto& [what, left] : numbers) {
    if (left != 0) journal_.Fail(fmt::format("left over at the end: {} ({})", what, left));
  }
  for (uint32_t t = 0; t < tiers_.size(); ++t) {
    const engine::TierEngineStats& tier = stats.tiers[t];
    if (tier.in_flight_bytes.Get() + tier.quarantined_bytes.Get() + tier.write_backlog_bytes.Get() >
        0) {
      journal_.Fail(fmt::format("tier {} has something under way at the end", t));
    }
    if (tiers_[t]->tapped->fake().running() > 0) journal_.Fail("a tier still has requests");
  }
  uint64_t staged = 0;
  for (uint32_t key = 0; key < names_.keys(); ++key) {
    const auto entry = driver_->index().Find(names_.digest(key));
    if (!entry) continue;
    if (entry->leases != 0) journal_.Fail(fmt::format("key {} is leased by nobody", key));
    for (const store::ContentCopy& copy : entry->copies) staged += copy.staged ? 1 : 0;
  }
  if (staged != stats.cache_chunks.Get()) {
    journal_.Fail(fmt::format("{} chunks are staged, says the index, and {} are in the cache",
                              staged, stats.cache_chunks.Get()));
  }
  for (const auto& client : clients_) {
    if (!client->closed()) journal_.Fail("a session was not closed");
  }
}

}  // namespace kvstream::sim
