#include "client/cuda/landing_buffer.h"

#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "client/cuda/cuda_status.h"

namespace kvstream::cuda {
namespace {

// Longer than any copy of a part takes on a GPU that works.
constexpr absl::Duration kCopyTimeout = absl::Seconds(30);

}  // namespace

absl::StatusOr<std::shared_ptr<LandingBuffer>> LandingBuffer::Create(
    Client* client, const LandingOptions& options) {
  std::shared_ptr<LandingBuffer> landing(new LandingBuffer(client, options));
  const CurrentDevice current(options.device);
  if (!current.status().ok()) return current.status();
  if (auto s = landing->Open(); !s.ok()) return s;
  client->SetLandingHandler(landing);
  return landing;
}

LandingBuffer::LandingBuffer(Client* client, const LandingOptions& options)
    : client_(client), options_(options), busy_(options.parts) {}

absl::Status LandingBuffer::Open() {
  if (options_.parts == 0 || options_.part_bytes == 0) {
    return absl::InvalidArgumentError("create landing buffer: it needs a part and bytes");
  }
  void* memory = nullptr;
  const uint64_t bytes = options_.parts * options_.part_bytes;
  if (auto s = FromCuda(cudaMalloc(&memory, bytes), "create landing buffer: allocate"); !s.ok()) {
    return s;
  }
  base_ = reinterpret_cast<uint64_t>(memory);
  auto shared = ShareDeviceMemory(client_, memory, bytes);
  if (!shared.ok()) return shared.status();
  if (shared->offset != 0) {
    return absl::FailedPreconditionError("create landing buffer: it is not an allocation's start");
  }
  // The parts are of what was asked for, whatever the allocation was rounded up to.
  shared->request.set_allocation_bytes(bytes);
  shared->request.set_landing_parts(options_.parts);
  CopierOptions copier;
  copier.device = options_.device;
  copier.slots = options_.parts;
  copier.grid = options_.grid;
  copier.stream_priority = options_.stream_priority;
  auto started = Copier::Start(copier);
  if (!started.ok()) return started.status();
  copier_ = *std::move(started);
  const auto region = client_->RegisterMemory(std::move(shared->request));
  if (!region.ok()) return region.status();
  region_id_ = region->region_id;
  return absl::OkStatus();
}

LandingBuffer::~LandingBuffer() {
  copier_.reset();
  absl::MutexLock lock(&mu_);
  if (base_ == 0 || !let_go_) return;
  const CurrentDevice current(options_.device);
  // A context that a failed copy has ended has freed it already.
  (void)cudaFree(reinterpret_cast<void*>(base_));
  (void)cudaGetLastError();
}

absl::StatusOr<RegionHandle> LandingBuffer::RegisterRegion(const DeviceMemory& memory) {
  auto handle = client_->RegisterMemory(memory.request);
  if (handle.ok() && handle->has_landing()) {
    auto region = std::make_shared<const Region>(memory.base, memory.request);
    absl::MutexLock lock(&mu_);
    regions_[handle->region_id] = std::move(region);
  }
  return handle;
}

absl::Status LandingBuffer::UnregisterRegion(uint64_t region_id) {
  absl::Status closed = client_->UnregisterMemory(region_id);
  auto copied = std::make_shared<std::promise<void>>();
  {
    absl::MutexLock lock(&mu_);
    // What the daemon still has open goes on as it is.
    if (!closed.ok() && !absl::IsNotFound(closed)) return closed;
    // Whoever runs already has the region itself.
    if (regions_.erase(region_id) == 0 || detached_) return closed;
    copier_->Then([copied] { copied->set_value(); });
  }
  const auto end = copied->get_future().wait_for(absl::ToChronoNanoseconds(kCopyTimeout));
  if (end == std::future_status::ready) return closed;
  return absl::DeadlineExceededError("unregister region " + std::to_string(region_id) +
                                     ": copies of it still run");
}

uint64_t LandingBuffer::scattered() const {
  absl::MutexLock lock(&mu_);
  return scattered_;
}

uint64_t LandingBuffer::gathered() const {
  absl::MutexLock lock(&mu_);
  return gathered_;
}

std::vector<LandingBuffer::ChunkPlace> LandingBuffer::PlacesOf(
    const google::protobuf::RepeatedPtrField<v1::ChunkAt>& chunks) const {
  std::vector<ChunkPlace> places(chunks.size());
  for (int i = 0; i < chunks.size(); ++i) {
    const v1::DeviceBlocks& device = chunks[i].placement().device();
    const auto found = regions_.find(device.region_id());
    if (found == regions_.end()) continue;
    places[i] = {found->second, {device.blocks().begin(), device.blocks().end()}};
  }
  return places;
}

void LandingBuffer::Keep(uint64_t operation_id, Places places) {
  for (const auto& request : places) {
    for (const ChunkPlace& place : request) {
      if (place.region == nullptr) continue;
      operations_[operation_id].places = std::make_shared<const Places>(std::move(places));
      return;
    }
  }
}

void LandingBuffer::OnRead(const v1::ReadStep& step) {
  absl::MutexLock lock(&mu_);
  if (regions_.empty()) return;
  Places places;
  for (const v1::ReadRequest& request : step.requests()) {
    places.push_back(PlacesOf(request.chunks()));
  }
  Keep(step.operation_id(), std::move(places));
}

void LandingBuffer::OnStore(const v1::Store& store) {
  absl::MutexLock lock(&mu_);
  if (regions_.empty()) return;
  Places places;
  places.push_back(PlacesOf(store.chunks()));
  Keep(store.operation_id(), std::move(places));
}

void LandingBuffer::OnLanded(const v1::Landed& landed) { Begin(Direction::kScatter, landed); }

void LandingBuffer::OnGather(const v1::Gather& gather) { Begin(Direction::kGather, gather); }

template <typename Message>
void LandingBuffer::Begin(Direction direction, const Message& message) {
  auto transfer = std::make_shared<Transfer>();
  transfer->direction = direction;
  transfer->operation_id = message.operation_id();
  transfer->part = message.part();
  transfer->sequence = message.sequence();
  {
    absl::MutexLock lock(&mu_);
    if (detached_) return;
    const bool is_usable = message.region_id() == region_id_ && message.part() < options_.parts &&
                           !busy_[message.part()];
    const auto found = operations_.find(message.operation_id());
    if (is_usable && found != operations_.end() && !found->second.ended) {
      transfer->pieces.assign(message.pieces().begin(), message.pieces().end());
      transfer->places = found->second.places;
      ++found->second.waiting;
      busy_[message.part()] = true;
      copier_->Add(
          transfer->part,
          [this, transfer](std::vector<Copy>* copies) { return ListCopies(*transfer, copies); },
          [this, transfer](const absl::Status& status) { OnCopied(*transfer, status); });
      return;
    }
  }
  // To say that it is done would be a lie, and what the daemon makes of it wrong bytes. It asks for
  // nothing after an operation's end, and for no region that was not registered here.
  client_->Abandon(
      absl::InternalError("use landing buffer: part " + std::to_string(message.part()) +
                          " of region " + std::to_string(message.region_id()) + ", operation " +
                          std::to_string(message.operation_id()) + ": not there, or in use"));
}

absl::Status LandingBuffer::ListCopies(const Transfer& transfer, std::vector<Copy>* copies) const {
  const uint64_t part = base_ + transfer.part * options_.part_bytes;
  std::vector<Extent> extents;
  for (const v1::Piece& piece : transfer.pieces) {
    if (piece.request_index() >= transfer.places->size() ||
        piece.chunk_index() >= (*transfer.places)[piece.request_index()].size()) {
      return absl::InternalError("use landing buffer: a piece of no chunk");
    }
    const ChunkPlace& place = (*transfer.places)[piece.request_index()][piece.chunk_index()];
    if (place.region == nullptr || piece.part_offset() > options_.part_bytes ||
        piece.length() > options_.part_bytes - piece.part_offset()) {
      return absl::InternalError("use landing buffer: a piece that does not fit");
    }
    extents.clear();
    if (auto s = place.region->layout.Expand(place.blocks, piece.chunk_offset(), piece.length(),
                                             &extents);
        !s.ok()) {
      return s;
    }
    uint64_t at = part + piece.part_offset();
    for (const Extent& extent : extents) {
      const uint64_t in_region = place.region->base + extent.offset;
      if (transfer.direction == Direction::kScatter) {
        copies->push_back({at, in_region, extent.length});
      } else {
        copies->push_back({in_region, at, extent.length});
      }
      at += extent.length;
    }
  }
  return absl::OkStatus();
}

void LandingBuffer::OnCopied(const Transfer& transfer, const absl::Status& status) {
  if (status.ok()) {
    {
      // Before the answer, after which the daemon may use the part again.
      absl::MutexLock lock(&mu_);
      busy_[transfer.part] = false;
      ++(transfer.direction == Direction::kScatter ? scattered_ : gathered_);
    }
    Answer(transfer);
  } else {
    client_->Abandon(status);
  }
  Settle(transfer.operation_id);
}

void LandingBuffer::Answer(const Transfer& transfer) {
  absl::Status sent;
  if (transfer.direction == Direction::kScatter) {
    v1::Scattered scattered;
    scattered.set_region_id(region_id_);
    scattered.set_part(transfer.part);
    scattered.set_sequence(transfer.sequence);
    sent = client_->SendScattered(scattered);
  } else {
    v1::Gathered gathered;
    gathered.set_region_id(region_id_);
    gathered.set_part(transfer.part);
    gathered.set_sequence(transfer.sequence);
    sent = client_->SendGathered(gathered);
  }
  // A session that has ended waits for no answer; one that still runs would wait for good.
  if (absl::IsResourceExhausted(sent)) client_->Abandon(sent);
}

void LandingBuffer::AfterCopies(uint64_t operation_id, bool ended,
                                absl::AnyInvocable<void()> then) {
  {
    absl::MutexLock lock(&mu_);
    const auto found = operations_.find(operation_id);
    if (found != operations_.end()) {
      found->second.ended |= ended;
      if (found->second.waiting > 0) {
        ++found->second.waiting;
        // Under the lock: what the operation waits for, and so the copier's thread, is still there.
        copier_->Then([this, operation_id, call = std::move(then)]() mutable {
          call();
          Settle(operation_id);
        });
        return;
      }
      if (ended) operations_.erase(found);
    }
  }
  then();
}

void LandingBuffer::Settle(uint64_t operation_id) {
  absl::MutexLock lock(&mu_);
  const auto found = operations_.find(operation_id);
  if (--found->second.waiting == 0 && found->second.ended) operations_.erase(found);
}

void LandingBuffer::Detach(bool let_go) {
  {
    absl::MutexLock lock(&mu_);
    detached_ = true;
    let_go_ = let_go;
  }
  copier_->Stop();
}

}  // namespace kvstream::cuda
