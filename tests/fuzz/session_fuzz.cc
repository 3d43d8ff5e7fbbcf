// Messages of a session's stream. What TranslateMessage accepts keeps every promise that api.h and
// kvstream.proto make to the engine; an operation that it refuses says why.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "kvstream/v1/kvstream.pb.h"
#include "server/base/check.h"
#include "server/rpc/translate.h"
#include "server/store/chunk_key.h"
#include "tests/fuzz/registered_namespace.h"

namespace kvstream::rpc {
namespace {

constexpr TimeNs kNow = 1000 * kSecond;
constexpr TimeNs kDeadlineMax = 10 * kSecond;
constexpr size_t kChunksMax = 5;
constexpr uint32_t kRanksMax = 4096;

Limits SomeLimits() {
  Limits limits;
  limits.chunks_per_operation_max = kChunksMax;
  limits.deadline_max = kDeadlineMax;
  return limits;
}

// Buffer or region, whether it is a region, and a byte or a block of it: what no two chunks of a
// step may share.
using Place = std::tuple<bool, uint64_t, uint64_t>;

void CheckPlace(const engine::Placement& placement, uint64_t chunk_bytes, std::set<Place>* places) {
  if (const auto* device = std::get_if<engine::DeviceBlocks>(&placement)) {
    KV_CHECK(device->region_id != 0 && !device->blocks.empty());
    for (const uint32_t block : device->blocks) {
      KV_CHECK(places->emplace(true, device->region_id, block).second);
    }
    return;
  }
  const auto& host = std::get<engine::HostRange>(placement);
  KV_CHECK(host.buffer_id != 0 && host.offset + chunk_bytes > host.offset);
  for (uint64_t i = 0; i < chunk_bytes; ++i) {
    KV_CHECK(places->emplace(false, host.buffer_id, host.offset + i).second);
  }
}

void CheckReadStep(const engine::ReadStep& step) {
  KV_CHECK(step.client_op != 0 && step.ranks >= 1 && step.ranks <= kRanksMax);
  KV_CHECK(step.deadline > kNow && step.deadline <= kNow + kDeadlineMax);
  KV_CHECK(step.join_deadline >= kNow && step.join_deadline <= step.deadline);
  KV_CHECK(step.step_id != 0 || (step.ranks == 1 && step.join_deadline == kNow));
  KV_CHECK(!step.requests.empty());
  size_t chunks = 0;
  std::set<uint64_t> ids;
  std::set<Place> places;
  for (const engine::ReadRequest& request : step.requests) {
    KV_CHECK(request.name_space != nullptr && !request.chunks.empty());
    KV_CHECK(ids.insert(request.request_id).second);
    chunks += request.chunks.size();
    for (const engine::ReadChunk& chunk : request.chunks) {
      KV_CHECK(chunk.group < request.name_space->spec.groups.size());
      CheckPlace(chunk.place, request.name_space->spec.groups[chunk.group].chunk_bytes, &places);
    }
  }
  KV_CHECK(chunks <= kChunksMax);
}

void CheckStore(const engine::Store& store) {
  KV_CHECK(store.client_op != 0 && store.name_space != nullptr);
  KV_CHECK(store.deadline > kNow && store.deadline <= kNow + kDeadlineMax);
  KV_CHECK(store.admission_deadline >= kNow && store.admission_deadline <= store.deadline);
  KV_CHECK(!store.chunks.empty() && store.chunks.size() <= kChunksMax);
  std::set<std::string> keys;
  for (const engine::StoreChunk& chunk : store.chunks) {
    KV_CHECK(chunk.key.group < store.name_space->spec.groups.size());
    const store::GroupSpec& group = store.name_space->spec.groups[chunk.key.group];
    KV_CHECK(chunk.key.shards == group.shards && chunk.key.shard < group.shards);
    KV_CHECK(chunk.key.name_space == store.name_space->id);
    KV_CHECK(chunk.digest == store::DigestOfKey(chunk.key));
    KV_CHECK(keys.insert(store::EncodeKey(chunk.key)).second);
    // Chunks may come from one place.
    std::set<Place> places;
    if (std::holds_alternative<engine::HostRange>(chunk.place)) {
      CheckPlace(chunk.place, group.chunk_bytes, &places);
    }
  }
}

void MakeNamespacesRight(v1::ClientMessage* message) {
  if (message->has_store()) fuzz::MakeRight(message->mutable_store()->mutable_namespace_id());
  if (!message->has_read_step()) return;
  for (v1::ReadRequest& request : *message->mutable_read_step()->mutable_requests()) {
    fuzz::MakeRight(request.mutable_namespace_id());
  }
}

void CheckMessage(v1::ClientMessage message) {
  static const Limits limits = SomeLimits();
  if (message.has_hello() && CheckHello(message.hello()).ok()) {
    KV_CHECK(message.hello().protocol_version() == 1);
    KV_CHECK(message.hello().client_name().size() <= 128);
  }
  MakeNamespacesRight(&message);
  const auto translated = TranslateMessage(message, {limits, fuzz::Namespaces(), kNow});
  if (!translated.ok()) {
    KV_CHECK(absl::IsInvalidArgument(translated.status()));
    KV_CHECK(message.has_hello() || message.message_case() == v1::ClientMessage::MESSAGE_NOT_SET);
  } else if (const auto* refused = std::get_if<engine::Refused>(&*translated)) {
    KV_CHECK(!refused->status.ok() && !refused->status.message().empty());
    KV_CHECK(message.has_read_step() || message.has_store() || message.has_prefetch());
  } else if (const auto* step = std::get_if<engine::ReadStep>(&*translated)) {
    CheckReadStep(*step);
  } else if (const auto* store = std::get_if<engine::Store>(&*translated)) {
    CheckStore(*store);
  }
}

}  // namespace
}  // namespace kvstream::rpc

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvstream::v1::ClientMessage message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return -1;
  kvstream::rpc::CheckMessage(std::move(message));
  return 0;
}
