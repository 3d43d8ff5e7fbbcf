#include "server/engine/staging.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <variant>

#include "server/base/check.h"
#include "server/base/logging.h"

namespace kvstream::engine {
namespace {

uint64_t HashOf(const KeyDigest& key) {
  uint64_t hash;
  std::memcpy(&hash, key.bytes.data() + 8, sizeof hash);
  return hash;
}

}  // namespace

Staging::Staging(Parts parts, const sched::WriteQueueOptions& options)
    : parts_(std::move(parts)), queue_(options) {
  parts_.asides->SetWatcher(
      [this](TierId tier, const std::string& path) { NoteAside(tier, path); });
}

StagedId Staging::Add(NewChunk fresh, TimeNs now) {
  Unretain(fresh.key);
  auto chunk = std::make_unique<StagedChunk>();
  static_cast<NewChunk&>(*chunk) = std::move(fresh);
  const StagedId id{next_id_++};
  chunk->id = id;
  chunk->content = store::ContentIdOf(chunk->shape, chunk->checksums);
  chunk->path = store::ChunkPath(chunk->name_space, chunk->key);
  parts_.index->AddStaged(chunk->key, chunk->name_space, chunk->shape, chunk->content,
                          chunk->checksums);
  by_key_[chunk->key] = id;
  const uint64_t bytes = chunk->shape.file_bytes();
  const uint64_t hash = HashOf(chunk->key);
  chunks_[id] = std::move(chunk);
  queue_.Add(id, bytes, hash, now);
  return id;
}

StagedChunk* Staging::Find(const KeyDigest& key) {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? nullptr : chunks_.at(it->second).get();
}

void Staging::Unpin(StagedId id) {
  StagedChunk& chunk = *chunks_.at(id);
  KV_CHECK(chunk.pins > 0);
  chunk.pins -= 1;
  MaybeFree(id);
}

void Staging::SetTierInService(TierId tier, bool in_service) {
  in_service ? out_of_service_.Remove(tier) : out_of_service_.Add(tier);
  queue_.SetTierInService(tier, in_service && !writes_out_.Has(tier));
}

void Staging::SetWritesOut(TierId tier, bool out) {
  out ? writes_out_.Add(tier) : writes_out_.Remove(tier);
  queue_.SetTierInService(tier, !out && !out_of_service_.Has(tier));
}

void Staging::Pump(TierSet demand, bool stores_wait, TimeNs now) {
  for (const auto& [id, tier] : std::exchange(not_written_, {})) {
    queue_.OnWritten(id, tier, false, now);
  }
  // What is handled at once may leave more to say.
  for (auto commands = queue_.Poll(demand, stores_wait, now); !commands.empty();
       commands = queue_.Poll(demand, stores_wait, now)) {
    for (const auto& command : commands) Handle(command, now);
  }
}

void Staging::Handle(const sched::WriteCommand& command, TimeNs now) {
  if (const auto* start = std::get_if<sched::StartWrite>(&command)) {
    const StagedChunk& chunk = *chunks_.at(start->chunk);
    if (chunk.damaged) return queue_.OnWritten(start->chunk, start->tier, false, now);
    const Ticket ticket{next_ticket_++};
    Write& write = writes_[ticket];
    write.chunk = start->chunk;
    write.tier = start->tier;
    write.header = std::make_unique<HeaderBlock>();
    store::EncodeHeader({chunk.encoded_key, chunk.shape, chunk.checksums, chunk.content},
                        write.header->bytes);
    Submit(ticket);
  } else if (const auto* dropped = std::get_if<sched::CopyDropped>(&command)) {
    parts_.stats->tiers[dropped->tier.value].writes_dropped.Add();
    if (dropped_quiet_[dropped->tier.value].IsOver(now)) {
      spdlog::warn("second copies are given up, the tier or the pool is too busy: tier={}",
                   parts_.tiers[dropped->tier.value]->options().name);
    }
  } else if (const auto* finished = std::get_if<sched::ChunkFinished>(&command)) {
    StagedChunk& chunk = *chunks_.at(finished->chunk);
    chunk.finished = true;
    if (!chunk.damaged && has_cache() && !finished->written.empty()) {
      BeginRetaining(chunk);
    } else if (!chunk.damaged) {  // Else it is withdrawn, and another may have the name.
      parts_.index->RemoveStaged(chunk.key, chunk.content);
      by_key_.erase(chunk.key);
    }
    if (finished->written.empty()) {
      parts_.stats->chunks_lost.Add();
      if (lost_quiet_.IsOver(now)) {
        spdlog::warn("stored chunks are lost, every write of them failed: file={}", chunk.path);
      }
      Notify(chunk, absl::StatusCode::kUnavailable);
    }
    MaybeFree(finished->chunk);
  }
}

void Staging::Condemn(StagedId id, TimeNs now) {
  StagedChunk& chunk = *chunks_.at(id);
  if (chunk.damaged) return;
  chunk.damaged = true;
  parts_.stats->staged_chunks_damaged.Add();
  if (damage_quiet_.IsOver(now)) {
    spdlog::error("staged chunks change in the pool, is the memory sound? file={}", chunk.path);
  }
  if (chunk.retained) return EndRetaining(chunk);
  if (chunk.finished) return;
  parts_.index->RemoveStaged(chunk.key, chunk.content);
  by_key_.erase(chunk.key);
}

void Staging::WarnOfNoRoom(TimeNs now) {
  if (!no_room_quiet_.IsOver(now)) return;
  spdlog::warn("stores find no room in the pool, chunks are dropped: staged_bytes={}",
               queue_.staged_bytes());
}

void Staging::NoteAside(TierId tier, const std::string& path) {
  for (auto& [ticket, write] : writes_) {
    if (write.tier == tier && chunks_.at(write.chunk)->path == path) write.met_damaged = true;
  }
}

void Staging::Submit(Ticket ticket) {
  const Write& write = writes_.at(ticket);
  const StagedChunk& chunk = *chunks_.at(write.chunk);
  if (chunk.damaged) {  // Found while it waited.
    not_written_.emplace_back(write.chunk, write.tier);
    writes_.erase(ticket);
    return;
  }
  // What would be met there now is not what will be there.
  if (parts_.asides->WhenDone(write.tier, chunk.path, [this, ticket] { Submit(ticket); })) return;
  tier::WriteRequest request{ticket, &chunk.path, write.header->bytes, {}};
  for (uint32_t s = 0; s < chunk.shape.segments(); ++s) {
    request.pieces.emplace_back(parts_.pool + chunk.slots[s].offset, chunk.shape.PaddedBytesOf(s));
  }
  parts_.tiers[write.tier.value]->Write(std::move(request));
}

void Staging::OnWritten(tier::Completion& completion, TimeNs now) {
  const auto it = writes_.find(completion.ticket);
  KV_CHECK(it != writes_.end());
  Write& write = it->second;
  StagedChunk& chunk = *chunks_.at(write.chunk);
  const TierId tier = write.tier;
  TierEngineStats& stats = parts_.stats->tiers[tier.value];
  bool ok = completion.code == absl::StatusCode::kOk;
  if (ok && chunk.damaged) {
    // It is looked at there, and deleted if it is damaged.
    parts_.asides->Begin(tier, chunk.path, chunk.key, [] {});
    ok = false;
  } else if (ok) {
    Published(chunk, tier, chunk.content, chunk.checksums);
    stats.chunks_written.Add();
  } else if (completion.code == absl::StatusCode::kAlreadyExists) {
    if (!MeetExisting(completion.ticket, write, completion, &ok, now)) return;
  }
  if (!ok && !chunk.damaged) stats.failed_writes.Add();
  if (!ok && !chunk.damaged && failures_quiet_[tier.value].IsOver(now)) {
    spdlog::warn("writes fail: tier={} file={} code={} errno={} ({})",
                 parts_.tiers[tier.value]->options().name, chunk.path,
                 absl::StatusCodeToString(completion.code), completion.error,
                 std::strerror(completion.error));
  }
  const StagedId id = write.chunk;
  writes_.erase(it);
  queue_.OnWritten(id, tier, ok, now);
}

bool Staging::MeetExisting(Ticket ticket, Write& write, const tier::Completion& completion,
                           bool* ok, TimeNs now) {
  StagedChunk& chunk = *chunks_.at(write.chunk);
  if (std::exchange(write.met_damaged, false)) {
    Submit(ticket);
    return false;
  }
  const auto header =
      store::DecodeHeaderOf(chunk.key, completion.existing_header, completion.existing_bytes);
  const bool suspected = parts_.asides->Suspected(write.tier, chunk.key);
  if (header.ok() && header->shape == chunk.shape && !suspected) {
    // Written before, by us or another node, perhaps from another computation of the same tokens:
    // what is there is what counts.
    Published(chunk, write.tier, header->content, header->checksums);
    parts_.stats->tiers[write.tier.value].chunks_existed.Add();
    *ok = true;
    return true;
  }
  if (write.retried || header.status().code() == absl::StatusCode::kUnimplemented) return true;
  write.retried = true;
  parts_.stats->tiers[write.tier.value].corrupt_reads.Add();
  if (met_quiet_[write.tier.value].IsOver(now)) {
    spdlog::warn("stores meet damaged files, which are replaced: tier={} file={}",
                 parts_.tiers[write.tier.value]->options().name, chunk.path);
  }
  // It may be one that we took for whole, and know by this name.
  parts_.index->RemoveReplicas(chunk.key, write.tier);
  parts_.asides->Begin(write.tier, chunk.path, chunk.key, [this, ticket] { Submit(ticket); });
  write.met_damaged = false;  // That is over with.
  return false;
}

void Staging::Published(StagedChunk& chunk, TierId tier, const ContentId& content,
                        const std::vector<uint64_t>& checksums) {
  parts_.index->AddReplica(chunk.key, chunk.name_space, chunk.shape, content, checksums, tier);
  chunk.durable = true;
  Notify(chunk, absl::StatusCode::kOk);
}

void Staging::Notify(StagedChunk& chunk, absl::StatusCode code) {
  for (const DurableWaiter& waiter : chunk.waiters) notices_.push_back({waiter, code});
  chunk.waiters.clear();
}

void Staging::Use(StagedId id) {
  StagedChunk& chunk = *chunks_.at(id);
  chunk.pins += 1;
  if (chunk.retained) parts_.cache->Touch(chunk.key);
}

void Staging::Retain(const KeyDigest& key, const ChunkShape& shape, const ContentId& content,
                     const std::vector<uint64_t>& checksums, std::vector<sched::Slot> slots) {
  // What it was read from may be gone by now, and with it what its namespace is.
  const auto entry = parts_.index->Find(key);
  if (!entry.has_value() || by_key_.contains(key)) {
    for (const sched::Slot& slot : slots) parts_.slots->Free(slot);
    return;
  }
  const StagedId id{next_id_++};
  std::unique_ptr<StagedChunk>& chunk = chunks_[id] = std::make_unique<StagedChunk>();
  static_cast<NewChunk&>(*chunk) = {{}, key, entry->name_space, shape, std::move(slots), checksums};
  chunk->id = id;
  chunk->content = content;
  chunk->path = store::ChunkPath(chunk->name_space, key);
  chunk->durable = true;
  chunk->finished = true;
  parts_.index->AddStaged(key, chunk->name_space, shape, content, checksums);
  by_key_[key] = id;
  BeginRetaining(*chunk);
}

void Staging::BeginRetaining(StagedChunk& chunk) {
  chunk.retained = true;
  uint64_t bytes = 0;
  for (const sched::Slot& slot : chunk.slots) bytes += sched::BuddyArena::BlockBytes(slot.bytes);
  retained_bytes_ += bytes;
  parts_.cache->Insert(chunk.key, bytes);
  parts_.stats->cache_chunks.Set(parts_.cache->size());
  parts_.stats->cache_inserted.Add();
}

void Staging::EndRetaining(StagedChunk& chunk) {
  chunk.retained = false;
  for (const sched::Slot& slot : chunk.slots) {
    retained_bytes_ -= sched::BuddyArena::BlockBytes(slot.bytes);
  }
  parts_.cache->Remove(chunk.key);  // No-op for what was evicted.
  parts_.stats->cache_chunks.Set(parts_.cache->size());
  parts_.index->RemoveStaged(chunk.key, chunk.content);
  by_key_.erase(chunk.key);
}

void Staging::Unretain(const KeyDigest& key) {
  StagedChunk* const chunk = Find(key);
  if (chunk == nullptr || !chunk->retained) return;
  EndRetaining(*chunk);
  MaybeFree(chunk->id);
}

bool Staging::MayEvict(const KeyDigest& key, sched::Arena arena) const {
  const StagedChunk& chunk = *chunks_.at(by_key_.at(key));
  if (chunk.pins > 0) return false;
  const auto fits = [&](const sched::Slot& slot) { return parts_.slots->IsShared(slot); };
  if (arena == sched::Arena::kShared && std::ranges::none_of(chunk.slots, fits)) return false;
  // A lease keeps the last copy.
  return !parts_.index->IsLeased(key) || parts_.index->OnTiers(key, TierSet::FromBits(0xff));
}

bool Staging::Evict(sched::Arena arena) {
  if (!has_cache()) return false;
  const auto key =
      parts_.cache->Evict([&](const KeyDigest& candidate) { return MayEvict(candidate, arena); });
  if (!key.has_value()) return false;
  StagedChunk& chunk = *Find(*key);
  EndRetaining(chunk);
  parts_.stats->cache_evicted.Add();
  MaybeFree(chunk.id);
  return true;
}

void Staging::MaybeFree(StagedId id) {
  const auto it = chunks_.find(id);
  if (!it->second->finished || it->second->retained || it->second->pins > 0) return;
  for (const sched::Slot& slot : it->second->slots) parts_.slots->Free(slot);
  chunks_.erase(it);
}

}  // namespace kvstream::engine
