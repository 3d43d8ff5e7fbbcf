#include "server/engine/staging.h"

#include <algorithm>
#include <cerrno>
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

bool FoundNoRoom(const tier::Completion& completion) {
  return completion.error == ENOSPC || completion.error == EDQUOT;
}

store::ChunkFacts FactsOf(const StagedChunk& chunk) {
  return {chunk.key, chunk.siblings, chunk.name_space, chunk.shape, chunk.content, chunk.checksums};
}

}  // namespace

Staging::Staging(Parts parts, const sched::WriteQueueOptions& options)
    : parts_(std::move(parts)), queue_(options) {
  parts_.asides->SetWatcher(
      [this](TierId tier, const std::string& path) { NoteAside(tier, path); });
}

StagedId Staging::Add(NewChunk fresh, TimeNs now) {
  // What the cache has of the key stays readable until there is this.
  StagedChunk* const old = Find(fresh.key);
  auto chunk = std::make_unique<StagedChunk>();
  static_cast<NewChunk&>(*chunk) = std::move(fresh);
  const StagedId id{next_id_++};
  chunk->id = id;
  chunk->content = store::ContentIdOf(chunk->shape, chunk->checksums);
  chunk->path = store::ChunkPath(chunk->name_space, chunk->key);
  parts_.index->AddStaged(FactsOf(*chunk));
  if (old != nullptr) {
    KV_CHECK(old->retained);
    EndRetaining(*old);
    if (old->content != chunk->content) parts_.index->RemoveStaged(old->key, old->content);
    MaybeFree(old->id);
  }
  by_key_[chunk->key] = id;
  const uint64_t bytes = chunk->shape.file_bytes();
  const uint64_t hash = HashOf(chunk->key);
  chunks_[id] = std::move(chunk);
  queue_.Add(id, bytes, hash, now);
  return id;
}

StagedChunk* Staging::FindId(StagedId id) {
  const auto it = chunks_.find(id);
  return it == chunks_.end() ? nullptr : it->second.get();
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

void Staging::Pump(TierSet demand, bool room_wanted, TimeNs now) {
  for (const auto& [id, tier] : std::exchange(not_written_, {})) {
    queue_.OnWritten(id, tier, false, now);
  }
  for (uint32_t t = 0; parts_.evictor != nullptr && t < parts_.tiers.size(); ++t) {
    const Evictor::Room room = parts_.evictor->RoomOf(TierId{t}, now);
    queue_.SetRoom(TierId{t}, room.bytes, room.more_comes);
  }
  // What is handled at once may leave more to say.
  for (auto commands = queue_.Poll(demand, room_wanted, now); !commands.empty();
       commands = queue_.Poll(demand, room_wanted, now)) {
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
      Withdraw(chunk);
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
  if (chunk.retained) {
    EndRetaining(chunk);
  } else if (chunk.finished) {
    return;
  }
  Withdraw(chunk);
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
  Write& write = writes_.at(ticket);
  const StagedChunk& chunk = *chunks_.at(write.chunk);
  if (chunk.damaged) {  // Found while it waited.
    not_written_.emplace_back(write.chunk, write.tier);
    writes_.erase(ticket);
    return;
  }
  // What would be met there now is not what will be there.
  if (parts_.asides->WhenDone(write.tier, chunk.path, [this, ticket] { Submit(ticket); })) return;
  write.met_damaged = false;  // Whatever was on its way out is gone.
  tier::WriteRequest request{ticket, &chunk.path, write.header->bytes, {}};
  for (uint32_t s = 0; s < chunk.shape.segments(); ++s) {
    request.pieces.emplace_back(parts_.pool + chunk.slots[s].offset, chunk.shape.PaddedBytesOf(s));
  }
  parts_.tiers[write.tier.value]->Write(std::move(request));
}

bool Staging::OnWritten(tier::Completion& completion, TimeNs now) {
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
  } else if (ok && std::exchange(write.met_damaged, false)) {
    // Its name may be taken away from it: it looks once more, once that is over.
    Submit(completion.ticket);
    return true;
  } else if (ok) {
    Published(chunk, tier, chunk.content, chunk.checksums, /*own=*/true);
    stats.chunks_written.Add();
  } else if (FoundNoRoom(completion) && MakeRoom(completion.ticket, write, now)) {
    return false;
  } else if (completion.code == absl::StatusCode::kAlreadyExists) {
    if (!MeetExisting(completion.ticket, write, completion, &ok, now)) return true;
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
  return true;
}

bool Staging::MakeRoom(Ticket ticket, Write& write, TimeNs now) {
  const StagedChunk& chunk = *chunks_.at(write.chunk);
  if (parts_.evictor == nullptr || chunk.damaged || write.no_room == kNoRoomMax) return false;
  write.no_room += 1;
  // Whatever else it needs besides its bytes: folders, the file system's own.
  const uint64_t bytes = chunk.shape.file_bytes() * write.no_room;
  return parts_.evictor->MakeRoom(
      write.tier, bytes, [this, ticket] { Submit(ticket); }, now);
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
    Published(chunk, write.tier, header->content, header->checksums,
              !parts_.shared_tiers.Has(write.tier));
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
  return false;
}

void Staging::Published(StagedChunk& chunk, TierId tier, const ContentId& content,
                        const std::vector<uint64_t>& checksums, bool own) {
  store::ChunkFacts facts = FactsOf(chunk);
  facts.content = content;
  facts.checksums = checksums;
  parts_.index->AddReplica(facts, tier, own);
  parts_.asides->NotePublished(tier, facts, own);
  chunk.durable = true;
  Notify(chunk, absl::StatusCode::kOk);
}

void Staging::Notify(StagedChunk& chunk, absl::StatusCode code) {
  for (const DurableWaiter& waiter : chunk.waiters) notices_.push_back({waiter, code});
  chunk.waiters.clear();
}

void Staging::NoteUse(const StagedChunk& chunk) {
  if (chunk.retained) parts_.cache->Touch(chunk.key, chunk.shared);
}

void Staging::Retain(const KeyDigest& key, const ChunkShape& shape, const ContentId& content,
                     const std::vector<uint64_t>& checksums, std::vector<sched::Slot> slots) {
  // What it was read from may be gone by now, and with it what its namespace is.
  const auto entry = parts_.index->Find(key);
  const bool known = entry.has_value() && entry->shape == shape &&
                     std::ranges::any_of(entry->copies, [&](const store::ContentCopy& copy) {
                       return copy.content == content;
                     });
  if (!known || by_key_.contains(key)) {
    for (const sched::Slot& slot : slots) parts_.slots->Free(slot);
    return;
  }
  const StagedId id{next_id_++};
  std::unique_ptr<StagedChunk>& chunk = chunks_[id] = std::make_unique<StagedChunk>();
  static_cast<NewChunk&>(*chunk) = {{},       key, {}, entry->name_space, shape, std::move(slots),
                                    checksums};
  chunk->id = id;
  chunk->content = content;
  chunk->path = store::ChunkPath(chunk->name_space, key);
  chunk->durable = true;
  chunk->finished = true;
  parts_.index->AddStaged(FactsOf(*chunk));
  by_key_[key] = id;
  BeginRetaining(*chunk);
}

void Staging::BeginRetaining(StagedChunk& chunk) {
  uint64_t bytes = 0;
  for (const sched::Slot& slot : chunk.slots) {
    bytes += sched::BuddyArena::BlockBytes(slot.bytes);
    chunk.shared = chunk.shared || parts_.slots->IsShared(slot);
  }
  chunk.retained = true;
  parts_.cache->Insert(chunk.key, bytes, chunk.shared);
  parts_.stats->cache_inserted.Add();
}

void Staging::EndRetaining(StagedChunk& chunk) {
  chunk.retained = false;
  parts_.cache->Remove(chunk.key, chunk.shared);  // No-op for what was evicted.
}

void Staging::Withdraw(const StagedChunk& chunk) {
  parts_.index->RemoveStaged(chunk.key, chunk.content);
  by_key_.erase(chunk.key);
}

bool Staging::MayEvict(const KeyDigest& key) const {
  if (chunks_.at(by_key_.at(key))->pins > 0) return false;
  // A lease keeps the last copy that can be read.
  return !parts_.index->IsLeased(key) ||
         parts_.index->OnTiers(key, TierSet::FromBits(~out_of_service_.bits()));
}

bool Staging::Evict(sched::Arena arena) {
  if (!has_cache()) return false;
  const auto key = parts_.cache->Evict(
      arena, [this](const KeyDigest& candidate) { return MayEvict(candidate); });
  if (!key.has_value()) return false;
  StagedChunk& chunk = *Find(*key);
  EndRetaining(chunk);
  Withdraw(chunk);
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
