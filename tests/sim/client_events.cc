// What a client hears, and what it makes of it.
#include <algorithm>
#include <utility>
#include <variant>

#include "server/store/chunk_format.h"
#include "tests/sim/client.h"

namespace kvstream::sim {
namespace {

using absl::StatusCode;

}  // namespace

bool Client::Owns(std::span<const std::byte> bytes) const {
  return !closed_ && bytes.data() >= engine_buffer_.data() &&
         bytes.data() + bytes.size() <= engine_buffer_.data() + engine_buffer_.size();
}

bool Client::MayBeTouched(std::span<const std::byte> bytes) const {
  const auto at = static_cast<uint64_t>(bytes.data() - engine_buffer_.data());
  const auto slot = static_cast<uint32_t>(at / parts_.names->slot_bytes());
  for (const auto& [client_op, op] : ops_) {
    for (const Chunk& chunk : op.chunks) {
      if (chunk.slot != slot) continue;
      return op.store ? !chunk.ended : !op.requests[chunk.request].done;
    }
  }
  return false;
}

void Client::Send(engine::SessionEvent event) {
  if (over_ || closed_) return journal_.Fail("an event came after the stream's end");
  std::visit([this](const auto& e) { On(e); }, event);
}

void Client::End(absl::Status status) {
  journal_.Note("session {}: the engine ends the stream: code {}", id_.value,
                static_cast<int>(status.code()));
  if (over_) journal_.Fail("a stream ended twice");
  over_ = true;
  MarkEnding();
  // A stream that was refused leaves the session as it is, until the client lets go of it.
  if (!opened_) parts_.driver->engine().Post(engine::HandoffClosed{id_});
}

void Client::OnClosed() {
  journal_.Note("session {} is closed", id_.value);
  if (closed_) journal_.Fail("a handoff connection was closed twice");
  if (!ending_) journal_.Fail("the engine closed a session that nobody has ended");
  if (parts_.watch->InUse(engine_buffer_)) {
    journal_.Fail("a session was closed while its memory is in use");
  }
  for (const auto& [client_op, op] : ops_) {
    for (const Chunk& chunk : op.chunks) parts_.replicas->EndHope(chunk.hope);
  }
  ops_.clear();
  closed_ = true;
  over_ = true;
}

void Client::CheckBounds() {
  if (closed_) return;
  if (close_bound_ < journal_.now()) {
    journal_.Fail(fmt::format("session {} has ended and is not closed", id_.value));
  }
  if (ending_) return;  // Whoever is gone hears of no end.
  for (const auto& [client_op, op] : ops_) {
    if (op.bound >= journal_.now()) continue;
    journal_.Fail(fmt::format("session {} op {} has not ended in time", id_.value, client_op));
  }
}

void Client::CheckServed() {
  for (const auto& [client_op, op] : ops_) {
    const auto served = [this](const Chunk& chunk) {
      return chunk.ended || parts_.replicas->Hopeful(chunk.hope, parts_.replicas->usable());
    };
    if (op.store || !std::all_of(op.chunks.begin(), op.chunks.end(), served)) continue;
    journal_.Fail(fmt::format("session {} op {} waits, and good replicas of all are in service",
                              id_.value, client_op));
  }
}

Client::Op* Client::Find(uint64_t client_op, bool store, const char* event) {
  const auto it = ops_.find(client_op);
  if (it == ops_.end() || it->second.store != store) {
    journal_.Fail(
        fmt::format("session {} op {}: {} for no such operation", id_.value, client_op, event));
    return nullptr;
  }
  it->second.heard = true;
  return &it->second;
}

void Client::On(const engine::SessionOpened&) {
  if (opened_) journal_.Fail("a session opened twice");
  opened_ = true;
}

void Client::On(const engine::PartMoved&) { journal_.Fail("no landing buffer was registered"); }

void Client::On(const engine::ChunkResults& event) {
  Op* op = Find(event.client_op, false, "ChunkResults");
  if (op == nullptr) return;
  for (const auto& result : event.results) {
    if (result.request_index >= op->requests.size() ||
        result.chunk_index >= op->requests[result.request_index].chunks.size()) {
      return journal_.Fail("a result for no such chunk");
    }
    Chunk& chunk = op->chunks[op->requests[result.request_index].chunks[result.chunk_index]];
    journal_.Note("session {} op {}: key {} ends: code {}", id_.value, event.client_op, chunk.key,
                  static_cast<int>(result.code));
    if (chunk.ended) journal_.Fail("a chunk ended twice");
    chunk.ended = true;
    chunk.code = result.code;
    result.code == StatusCode::kOk ? CheckDelivered(chunk) : CheckFailed(*op, chunk);
    parts_.replicas->EndHope(chunk.hope);
  }
}

void Client::CheckDelivered(const Chunk& chunk) {
  const auto version = parts_.names->VersionOf(chunk.key, Slot(chunk.slot, chunk.key));
  if (!version || !parts_.names->WasStored(chunk.key, *version)) {
    journal_.Fail(fmt::format("WRONG BYTES delivered as key {}", chunk.key));
  }
}

void Client::CheckFailed(const Op& op, const Chunk& chunk) {
  switch (chunk.code) {
    case StatusCode::kCancelled:
      if (!op.cancelled && !ending_) journal_.Fail("a chunk was cancelled by nobody");
      return;
    case StatusCode::kDeadlineExceeded:
      if (journal_.now() < op.deadline) journal_.Fail("a deadline passed too early");
      return;
    case StatusCode::kNotFound:
    case StatusCode::kDataLoss:
    case StatusCode::kUnavailable:
      break;
    default:
      return journal_.Fail(fmt::format("a read failed with code {}", static_cast<int>(chunk.code)));
  }
  if (parts_.replicas->Hopeful(chunk.hope, parts_.driver->UsableThroughout())) {
    journal_.Fail(
        fmt::format("key {} was not served though a good copy of it is in service", chunk.key));
  }
}

void Client::On(const engine::RequestDone& event) {
  Op* op = Find(event.client_op, false, "RequestDone");
  if (op == nullptr) return;
  const uint64_t index = event.request_id - 100;
  if (index >= op->requests.size()) return journal_.Fail("RequestDone for no such request");
  Request& request = op->requests[index];
  if (request.done) journal_.Fail("a request ended twice");
  request.done = true;
  std::vector<uint32_t> valid;
  StatusCode first_failure = StatusCode::kOk;
  for (uint32_t i = 0; i < request.chunks.size(); ++i) {
    const Chunk& chunk = op->chunks[request.chunks[i]];
    if (!chunk.ended) journal_.Fail("a request ended before its chunks");
    if (chunk.code == StatusCode::kOk) valid.push_back(i);
    if (first_failure == StatusCode::kOk) first_failure = chunk.code;
  }
  std::vector<uint32_t> said;
  for (uint32_t i = 0; i < event.leading_valid; ++i) said.push_back(i);
  said.insert(said.end(), event.other_valid.begin(), event.other_valid.end());
  if (said != valid || event.code != first_failure) {
    journal_.Fail("RequestDone does not say what its chunks have said");
  }
}

void Client::On(const engine::StoreReleased& event) {
  Op* op = Find(event.client_op, true, "StoreReleased");
  if (op == nullptr) return;
  for (const auto& result : event.results) {
    if (result.chunk_index >= op->chunks.size()) return journal_.Fail("no such chunk released");
    Chunk& chunk = op->chunks[result.chunk_index];
    journal_.Note("session {} op {}: key {} released: code {} existed {}", id_.value,
                  event.client_op, chunk.key, static_cast<int>(result.code), result.existed);
    if (chunk.ended) journal_.Fail("a chunk was released twice");
    chunk.ended = true;
    chunk.code = result.code;
    CheckReleased(*op, chunk);
    // The memory is the client's again, and soon has other bytes.
    const std::span memory = Slot(chunk.slot, chunk.key);
    std::fill(memory.begin(), memory.end(), std::byte{0xCD});
  }
  const bool all = std::all_of(op->chunks.begin(), op->chunks.end(),
                               [](const Chunk& chunk) { return chunk.ended; });
  if (event.all_released != all) journal_.Fail("all_released is not what was released");
}

void Client::CheckReleased(const Op& op, const Chunk& chunk) {
  if (parts_.watch->InUse(EngineSlot(chunk.slot))) {
    journal_.Fail("a chunk was released while it is read");
  }
  switch (chunk.code) {
    case StatusCode::kOk:
      return;
    case StatusCode::kCancelled:
      if (!op.cancelled && !ending_) journal_.Fail("a store was cancelled by nobody");
      return;
    case StatusCode::kDeadlineExceeded:
      if (journal_.now() < op.deadline) journal_.Fail("a store's deadline passed too early");
      return;
    case StatusCode::kResourceExhausted:
      if (journal_.now() < op.admission_deadline) journal_.Fail("a chunk was dropped too early");
      return;
    case StatusCode::kUnavailable:  // Another's store of the key was on its way.
      if (!parts_.given_up->contains(chunk.key)) journal_.Fail("no store of the key was given up");
      return;
    default:
      journal_.Fail(fmt::format("a chunk was released with code {}", static_cast<int>(chunk.code)));
  }
}

void Client::On(const engine::StoreDurable& event) {
  Op* op = Find(event.client_op, true, "StoreDurable");
  if (op == nullptr) return;
  for (const auto& result : event.results) {
    if (result.chunk_index >= op->chunks.size()) return journal_.Fail("no such chunk is durable");
    Chunk& chunk = op->chunks[result.chunk_index];
    journal_.Note("session {} op {}: key {} durable: code {}", id_.value, event.client_op,
                  chunk.key, static_cast<int>(result.code));
    if (chunk.durable_ended) journal_.Fail("a chunk's durability was told twice");
    if (!op->want_durable) journal_.Fail("nobody asked whether it is durable");
    chunk.durable_ended = true;
    if (result.code == StatusCode::kOk) {
      CheckPublished(chunk);
    } else if (result.code == StatusCode::kUnavailable) {
      chunk.code = result.code;
    } else {
      journal_.Fail("durability failed with an odd code");
    }
  }
}

void Client::CheckPublished(const Chunk& chunk) {
  const auto entry = parts_.driver->index().Find(parts_.names->digest(chunk.key));
  const uint32_t tiers = static_cast<uint32_t>(parts_.driver->tiers());
  for (uint32_t t = 0; t < tiers; ++t) {
    if (parts_.replicas->Published(TierId{t}, chunk.key)) return;
    if (parts_.replicas->Harmed(TierId{t}, chunk.key)) return;
  }
  journal_.Fail(fmt::format("key {} is called durable and is on no tier (indexed: {})", chunk.key,
                            entry.has_value()));
}

void Client::On(const engine::Quiesced& event) {
  const auto it = ops_.find(event.client_op);
  journal_.Note("session {} op {} is quiesced: code {}", id_.value, event.client_op,
                static_cast<int>(event.status.code()));
  if (it == ops_.end()) {
    // The second use of an id whose first use had just ended.
    if (absl::IsNotFound(event.status) || absl::IsUnavailable(event.status)) return;
    return journal_.Fail(fmt::format("op {} is quiesced twice, or never was", event.client_op));
  }
  const Op op = std::move(it->second);
  ops_.erase(it);
  CheckQuiesced(op, event.status);
  for (const Chunk& chunk : op.chunks) parts_.replicas->EndHope(chunk.hope);
  FreeSlots(op);
}

void Client::CheckQuiesced(const Op& op, const absl::Status& status) {
  if (!op.heard) {  // Refused.
    if (status.ok()) journal_.Fail("an operation is quiesced, and nothing was said of its chunks");
    return;
  }
  for (const Request& request : op.requests) {
    if (!request.done) journal_.Fail("an operation ended before its requests");
  }
  bool all_ok = true;
  for (const Chunk& chunk : op.chunks) {
    if (!chunk.ended) journal_.Fail("an operation ended before its chunks");
    all_ok = all_ok && chunk.code == StatusCode::kOk;
    if (status.ok() && op.want_durable && !chunk.durable_ended) {
      journal_.Fail("an operation ended well, and nobody knows whether its chunks are durable");
    }
  }
  const bool may_fail = op.cancelled || ending_ || journal_.now() >= op.deadline;
  if (status.ok() != all_ok && !(all_ok && may_fail)) {
    journal_.Fail("an operation's status is not that of its chunks");
  }
}

void Client::CheckLookup(const std::vector<uint32_t>& keys, const engine::LookupResult& result) {
  if (result.lease_id != 0) leases_.push_back(result.lease_id);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (result.present[i] == 0) {
      if (parts_.replicas->good(keys[i]).bits() & parts_.driver->UsableThroughout().bits()) {
        journal_.Fail(
            fmt::format("a lookup misses key {}, of which a good copy is in service", keys[i]));
      }
      continue;
    }
    bool readable = parts_.driver->Staged(parts_.names->digest(keys[i]));
    for (uint32_t t = 0; t < parts_.driver->tiers(); ++t) {
      readable = readable || parts_.replicas->Published(TierId{t}, keys[i]) ||
                 parts_.replicas->Harmed(TierId{t}, keys[i]);
    }
    if (!readable) journal_.Fail(fmt::format("a lookup finds key {}, which is nowhere", keys[i]));
  }
}

}  // namespace kvstream::sim
