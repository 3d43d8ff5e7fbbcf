#include "server/rpc/translate.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/rpc/encode.h"
#include "server/rpc/field_error.h"
#include "server/store/chunk_key.h"

namespace kvstream::rpc {
namespace {

constexpr size_t kClientNameBytesMax = 128;
constexpr uint32_t kRanksMax = 4096;
// Of all chunks of an operation. A message could hold many more, and each costs 40 bytes here.
constexpr uint64_t kBlocksMax = 1 << 20;

// Where a chunk of a ReadStep goes, or one of its blocks, for the overlap check: bytes of a buffer,
// or a block's number of a region.
struct Destination {
  bool device;
  uint64_t id;
  uint64_t begin;
  uint64_t end;
  int request_index;
  int chunk_index;
};

TimeNs After(TimeNs now, uint64_t ms) { return now + static_cast<TimeNs>(ms) * kMillisecond; }

// Fills group, shard, shards and prefix hash of `key`.
absl::Status FillKey(const v1::ChunkAt& chunk, const store::NamespaceSpec& spec,
                     store::ChunkKey* key) {
  if (auto s = CheckRange("prefix_hash", chunk.prefix_hash().size(),
                          {store::kPrefixHashBytesMin, store::kPrefixHashBytesMax}, " bytes");
      !s.ok()) {
    return s;
  }
  if (auto s = CheckRange("group", chunk.group(), {0, spec.groups.size() - 1}); !s.ok()) return s;
  const store::GroupSpec& group = spec.groups[chunk.group()];
  if (auto s = CheckRange("shard", chunk.shard(), {0, group.shards - 1}); !s.ok()) return s;
  key->group = chunk.group();
  key->shard = chunk.shard();
  key->shards = group.shards;
  key->prefix_hash = chunk.prefix_hash();
  return absl::OkStatus();
}

absl::StatusOr<engine::Placement> PlaceOf(const v1::ChunkAt& chunk, uint64_t chunk_bytes) {
  if (chunk.placement().has_device()) {
    const v1::DeviceBlocks& device = chunk.placement().device();
    if (device.region_id() == 0) return InvalidField("placement.device.region_id", "missing");
    if (device.blocks().empty()) return InvalidField("placement.device.blocks", "missing");
    return engine::DeviceBlocks{device.region_id(),
                                {device.blocks().begin(), device.blocks().end()}};
  }
  if (!chunk.placement().has_host()) return InvalidField("placement", "missing");
  const v1::HostRange& host = chunk.placement().host();
  if (host.buffer_id() == 0) return InvalidField("placement.host.buffer_id", "missing");
  if (host.offset() > std::numeric_limits<uint64_t>::max() - chunk_bytes) {
    return InvalidField("placement.host.offset",
                        std::to_string(host.offset()) + " lies beyond every buffer");
  }
  return engine::HostRange{host.buffer_id(), host.offset()};
}

void NoteDestinations(const engine::Placement& place, uint64_t chunk_bytes, int request_index,
                      int chunk_index, std::vector<Destination>* destinations) {
  if (const auto* host = std::get_if<engine::HostRange>(&place)) {
    destinations->push_back({false, host->buffer_id, host->offset, host->offset + chunk_bytes,
                             request_index, chunk_index});
    return;
  }
  const auto& device = std::get<engine::DeviceBlocks>(place);
  for (const uint64_t block : device.blocks) {
    destinations->push_back({true, device.region_id, block, block + 1, request_index, chunk_index});
  }
}

// The namespace, and a key with all that a request's chunks share.
absl::StatusOr<std::pair<store::NamespaceRef, store::ChunkKey>> OpenKeys(
    const std::string& namespace_id, const std::string& salt, const TranslateContext& context) {
  auto found = FindNamespace(namespace_id, context.namespaces);
  if (!found.ok()) return found.status();
  if (auto s = CheckRange("salt", salt.size(), {0, kSaltBytesMax}, " bytes"); !s.ok()) return s;
  store::ChunkKey key;
  key.name_space = (*found)->id;
  key.salt = store::DigestOfSalt(salt);
  return std::make_pair(*std::move(found), std::move(key));
}

absl::StatusOr<engine::ReadRequest> TranslateRequest(const v1::ReadRequest& request,
                                                     int request_index,
                                                     const TranslateContext& context,
                                                     std::vector<Destination>* destinations) {
  auto keys = OpenKeys(request.namespace_id(), request.salt(), context);
  if (!keys.ok()) return keys.status();
  auto& [name_space, key] = *keys;
  engine::ReadRequest out;
  out.request_id = request.request_id();
  out.lease_id = request.lease_id();
  out.chunks.reserve(request.chunks_size());
  for (int i = 0; i < request.chunks_size(); ++i) {
    const v1::ChunkAt& chunk = request.chunks(i);
    if (auto s = FillKey(chunk, name_space->spec, &key); !s.ok()) {
      return InsideElement("chunks", i, s);
    }
    const uint64_t bytes = name_space->spec.groups[key.group].chunk_bytes;
    auto place = PlaceOf(chunk, bytes);
    if (!place.ok()) return InsideElement("chunks", i, place.status());
    NoteDestinations(*place, bytes, request_index, i, destinations);
    out.chunks.push_back({store::DigestOfKey(key), key.group, *std::move(place)});
  }
  out.name_space = std::move(name_space);
  return out;
}

std::string NameOf(const Destination& d) {
  return Element("requests", d.request_index) + "." + Element("chunks", d.chunk_index) +
         (d.device ? ".placement.device" : ".placement.host");
}

// Two chunks in one place would leave bytes of neither.
absl::Status CheckDisjoint(std::vector<Destination> destinations) {
  std::sort(destinations.begin(), destinations.end(),
            [](const Destination& a, const Destination& b) {
              return std::tie(a.device, a.id, a.begin, a.request_index, a.chunk_index) <
                     std::tie(b.device, b.id, b.begin, b.request_index, b.chunk_index);
            });
  for (size_t i = 1; i < destinations.size(); ++i) {
    const Destination& before = destinations[i - 1];
    const Destination& here = destinations[i];
    if (before.device != here.device || before.id != here.id || before.end <= here.begin) continue;
    const std::string id = std::to_string(here.id);
    return InvalidField(NameOf(here),
                        "overlaps " + NameOf(before) +
                            (here.device ? " in block " + std::to_string(here.begin) + " of region "
                                         : " in buffer ") +
                            id);
  }
  return absl::OkStatus();
}

uint64_t BlocksOf(const google::protobuf::RepeatedPtrField<v1::ChunkAt>& chunks) {
  uint64_t blocks = 0;
  for (const v1::ChunkAt& chunk : chunks) {
    blocks += static_cast<uint64_t>(chunk.placement().device().blocks_size());
  }
  return blocks;
}

// Checks lengths and identities of the requests, before anything is made of them.
absl::Status CheckRequests(const v1::ReadStep& step, const Limits& limits) {
  const auto requests = static_cast<uint64_t>(step.requests_size());
  if (auto s = CheckRange("requests", requests, {1, limits.chunks_per_operation_max}, " requests");
      !s.ok()) {
    return s;
  }
  uint64_t chunks = 0;
  uint64_t blocks = 0;
  absl::flat_hash_map<uint64_t, int> first_index;
  for (int i = 0; i < step.requests_size(); ++i) {
    const v1::ReadRequest& request = step.requests(i);
    if (request.chunks_size() == 0) {
      return InsideElement("requests", i, InvalidField("chunks", "missing"));
    }
    chunks += static_cast<uint64_t>(request.chunks_size());
    blocks += BlocksOf(request.chunks());
    const auto [first, inserted] = first_index.try_emplace(request.request_id(), i);
    if (!inserted) {
      return InsideElement(
          "requests", i,
          InvalidField("request_id", std::to_string(request.request_id()) + " is also that of " +
                                         Element("requests", first->second)));
    }
  }
  if (auto s = CheckRange("requests", blocks, {0, kBlocksMax}, " blocks in all"); !s.ok()) return s;
  return CheckRange("requests", chunks, {1, limits.chunks_per_operation_max}, " chunks in all");
}

absl::StatusOr<engine::ReadStep> TranslateReadStep(const v1::ReadStep& step,
                                                   const TranslateContext& context) {
  if (step.operation_id() == 0) return InvalidField("operation_id", "missing");
  if (step.mode() != v1::ReadStep::MODE_JOINT && step.mode() != v1::ReadStep::MODE_INDEPENDENT) {
    return InvalidField("mode", std::to_string(step.mode()) + " is not a mode");
  }
  if (auto s = CheckRange("ranks", step.ranks(), {0, kRanksMax}); !s.ok()) return s;
  if (auto s = CheckRange("deadline_ms", step.deadline_ms(), {1, ToMs(context.limits.deadline_max)},
                          " ms");
      !s.ok()) {
    return s;
  }
  if (auto s = CheckRequests(step, context.limits); !s.ok()) return s;

  engine::ReadStep out;
  out.client_op = step.operation_id();
  out.joint = step.mode() == v1::ReadStep::MODE_JOINT;
  out.step_id = step.step_id();
  // A step of its own has nobody to wait for.
  out.ranks = step.step_id() == 0 ? 1 : std::max(step.ranks(), 1u);
  out.deadline = After(context.now, step.deadline_ms());
  out.join_deadline = step.step_id() == 0
                          ? context.now
                          : std::min(out.deadline, After(context.now, step.join_timeout_ms()));
  std::vector<Destination> destinations;
  out.requests.reserve(step.requests_size());
  for (int i = 0; i < step.requests_size(); ++i) {
    auto request = TranslateRequest(step.requests(i), i, context, &destinations);
    if (!request.ok()) return InsideElement("requests", i, request.status());
    out.requests.push_back(*std::move(request));
  }
  if (auto s = CheckDisjoint(std::move(destinations)); !s.ok()) return s;
  return out;
}

absl::StatusOr<engine::Store> TranslateStore(const v1::Store& store,
                                             const TranslateContext& context) {
  if (store.operation_id() == 0) return InvalidField("operation_id", "missing");
  const auto chunks = static_cast<uint64_t>(store.chunks_size());
  if (auto s =
          CheckRange("chunks", chunks, {1, context.limits.chunks_per_operation_max}, " chunks");
      !s.ok()) {
    return s;
  }
  if (auto s = CheckRange("chunks", BlocksOf(store.chunks()), {0, kBlocksMax}, " blocks in all");
      !s.ok()) {
    return s;
  }
  if (auto s = CheckRange("deadline_ms", store.deadline_ms(),
                          {1, ToMs(context.limits.deadline_max)}, " ms");
      !s.ok()) {
    return s;
  }
  auto keys = OpenKeys(store.namespace_id(), store.salt(), context);
  if (!keys.ok()) return keys.status();
  auto& [name_space, key] = *keys;

  engine::Store out;
  out.client_op = store.operation_id();
  out.want_durable = store.want_durable();
  out.deadline = After(context.now, store.deadline_ms());
  // Nobody waits past the deadline, so a longer wait for room is the same as waiting until then.
  out.admission_deadline =
      After(context.now, std::min<uint64_t>(store.admission_ms(), store.deadline_ms()));
  if (!store.after_prefix_hash().empty()) {
    if (auto s = CheckRange("after_prefix_hash", store.after_prefix_hash().size(),
                            {store::kPrefixHashBytesMin, store::kPrefixHashBytesMax}, " bytes");
        !s.ok()) {
      return s;
    }
    key.prefix_hash = store.after_prefix_hash();
    out.after = store::SiblingsOf(key);
  }
  out.chunks.reserve(chunks);
  absl::flat_hash_map<KeyDigest, int> first_index;
  first_index.reserve(chunks);
  for (int i = 0; i < store.chunks_size(); ++i) {
    if (auto s = FillKey(store.chunks(i), name_space->spec, &key); !s.ok()) {
      return InsideElement("chunks", i, s);
    }
    auto place = PlaceOf(store.chunks(i), name_space->spec.groups[key.group].chunk_bytes);
    if (!place.ok()) return InsideElement("chunks", i, place.status());
    const KeyDigest digest = store::DigestOfKey(key);
    const auto [first, inserted] = first_index.try_emplace(digest, i);
    if (!inserted) {
      return InvalidField(Element("chunks", i),
                          "names the same chunk as " + Element("chunks", first->second));
    }
    out.chunks.push_back({key, digest, *place});
  }
  out.name_space = std::move(name_space);
  return out;
}

// A refused operation ends at once, and the stream goes on.
template <typename Operation>
engine::SessionMessage OperationOrRefused(uint64_t client_op, absl::StatusOr<Operation> operation) {
  if (!operation.ok()) return engine::Refused{client_op, operation.status()};
  return *std::move(operation);
}

}  // namespace

absl::StatusOr<store::NamespaceRef> FindNamespace(const std::string& id,
                                                  const store::NamespaceRegistry& namespaces) {
  NamespaceId digest;
  if (id.size() != digest.bytes.size()) {
    return InvalidField("namespace_id", std::to_string(id.size()) + " bytes, must be 16");
  }
  std::memcpy(digest.bytes.data(), id.data(), digest.bytes.size());
  store::NamespaceRef found = namespaces.Find(digest);
  if (found == nullptr) {
    return absl::NotFoundError("namespace_id: " + ToHex(digest) +
                               " is not registered in this boot; RegisterNamespace names it");
  }
  return found;
}

absl::Status CheckHello(const v1::Hello& hello) {
  if (hello.protocol_version() != kProtocolVersion) {
    return InvalidField("hello.protocol_version", std::to_string(hello.protocol_version()) +
                                                      ", this daemon speaks " +
                                                      std::to_string(kProtocolVersion));
  }
  return CheckRange("hello.client_name", hello.client_name().size(), {0, kClientNameBytesMax},
                    " bytes");
}

absl::StatusOr<engine::SessionMessage> TranslateMessage(const v1::ClientMessage& message,
                                                        const TranslateContext& context) {
  switch (message.message_case()) {
    case v1::ClientMessage::kReadStep:
      return OperationOrRefused(message.read_step().operation_id(),
                                TranslateReadStep(message.read_step(), context));
    case v1::ClientMessage::kStore:
      return OperationOrRefused(message.store().operation_id(),
                                TranslateStore(message.store(), context));
    case v1::ClientMessage::kPrefetch:
      return engine::Refused{
          message.prefetch().operation_id(),
          absl::UnimplementedError("prefetch: this version does not implement it")};
    case v1::ClientMessage::kCancel:
      return engine::Cancel{message.cancel().operation_id()};
    case v1::ClientMessage::kForwardBegan:
      return engine::ForwardBegan{message.forward_began().step_id()};
    case v1::ClientMessage::kRelease:
      return engine::Release{message.release().lease_id()};
    case v1::ClientMessage::kHeartbeat:
      return engine::Heartbeat{message.heartbeat().sequence()};
    case v1::ClientMessage::kScattered:
      return engine::PartAcknowledged{false, message.scattered().region_id(),
                                      message.scattered().part(), message.scattered().sequence()};
    case v1::ClientMessage::kGathered:
      return engine::PartAcknowledged{true, message.gathered().region_id(),
                                      message.gathered().part(), message.gathered().sequence()};
    case v1::ClientMessage::kHello:
      return InvalidField("hello", "only the first message may be Hello");
    case v1::ClientMessage::MESSAGE_NOT_SET:
      break;
  }
  return InvalidField("message", "missing, or of a kind that this version does not know");
}

}  // namespace kvstream::rpc
