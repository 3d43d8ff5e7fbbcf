#include "tests/support/device_worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

constexpr std::byte kPoison{0xAB};

// Byte `at` of chunk `key`.
std::byte ByteOf(uint64_t key, uint64_t at) {
  uint64_t x = key * 0x9E3779B97F4A7C15u + (at / 8) * 0xC2B2AE3D27D4EB4Fu + 1;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
  return static_cast<std::byte>(x >> (8 * (at % 8)));
}

}  // namespace

void FakeLanding::Use(Client* client, gpu::FakeGpuMemory* kv,
                      const v1::RegisterMemoryRequest& region) {
  client_ = client;
  kv_ = kv;
  layout_ = std::make_unique<RegionLayout>(region);
}

void FakeLanding::OnRead(const v1::ReadStep& step) {
  absl::MutexLock lock(&mu_);
  auto& requests = blocks_[step.operation_id()];
  requests.clear();
  for (const auto& request : step.requests()) {
    auto& chunks = requests.emplace_back();
    for (const auto& chunk : request.chunks()) {
      const auto& blocks = chunk.placement().device().blocks();
      chunks.emplace_back(blocks.begin(), blocks.end());
    }
  }
}

void FakeLanding::OnStore(const v1::Store& store) {
  absl::MutexLock lock(&mu_);
  auto& requests = blocks_[store.operation_id()];
  requests.assign(1, {});
  for (const auto& chunk : store.chunks()) {
    const auto& blocks = chunk.placement().device().blocks();
    requests[0].emplace_back(blocks.begin(), blocks.end());
  }
}

void FakeLanding::Take(Asked asked) {
  if (!held_) return Serve(asked);
  absl::MutexLock lock(&mu_);
  waiting_.push_back(std::move(asked));
}

void FakeLanding::Answer() {
  held_ = false;
  std::vector<Asked> waiting;
  {
    absl::MutexLock lock(&mu_);
    waiting.swap(waiting_);
  }
  for (const Asked& asked : waiting) Serve(asked);
}

size_t FakeLanding::waiting() const {
  absl::MutexLock lock(&mu_);
  return waiting_.size();
}

template <typename Message>
void FakeLanding::Move(const Message& message, bool scatter) {
  absl::MutexLock lock(&mu_);
  std::byte* part = landing_.bytes().data() + message.part() * (landing_.bytes().size() / parts_);
  for (const v1::Piece& piece : message.pieces()) {
    const auto& blocks =
        blocks_.at(message.operation_id())[piece.request_index()][piece.chunk_index()];
    std::vector<Extent> extents;
    EXPECT_TRUE(layout_->Expand(blocks, piece.chunk_offset(), piece.length(), &extents).ok());
    std::byte* at = part + piece.part_offset();
    for (const Extent& extent : extents) {
      std::byte* kv = kv_->bytes().data() + extent.offset;
      std::memcpy(scatter ? kv : at, scatter ? at : kv, extent.length);
      at += extent.length;
    }
  }
}

void FakeLanding::Serve(const Asked& asked) {
  if (asked.is_gather) {
    Move(asked.gather, false);
    v1::Gathered gathered;
    gathered.set_region_id(asked.gather.region_id());
    gathered.set_part(asked.gather.part());
    gathered.set_sequence(asked.gather.sequence());
    (void)client_->SendGathered(gathered);
  } else {
    Move(asked.landed, true);
    v1::Scattered scattered;
    scattered.set_region_id(asked.landed.region_id());
    scattered.set_part(asked.landed.part());
    scattered.set_sequence(asked.landed.sequence());
    (void)client_->SendScattered(scattered);
  }
}

DeviceWorker::Shape LandingShape(uint32_t gpu) {
  return {.gpu = gpu, .run_bytes = 3000, .landing_parts = 4};
}

DeviceWorker::Shape DirectShape(uint32_t gpu) {
  return {.gpu = gpu, .run_bytes = 64 * 1024, .blocks_per_chunk = 2, .segment_bytes = 256 * 1024};
}

DeviceWorker::DeviceWorker(const std::string& socket, const Shape& shape)
    : shape_(shape),
      kv_(gpu::FakeGpuUuid(shape.gpu), 2 * shape.layers * shape.run_bytes * shape.blocks) {
  auto client = Client::Connect({.grpc_socket = socket, .connect_timeout = kPatience});
  EXPECT_TRUE(client.ok()) << client.status();
  client_ = *std::move(client);
  if (shape.landing_parts > 0) {
    landing_memory_ = std::make_unique<gpu::FakeGpuMemory>(
        gpu::FakeGpuUuid(shape.gpu), shape.landing_parts * shape.landing_part_bytes);
    landing_ = std::make_shared<FakeLanding>(landing_memory_.get(), shape.landing_parts);
    v1::RegisterMemoryRequest request;
    request.set_gpu_uuid(landing_memory_->uuid());
    request.set_cuda_ipc_handle(landing_memory_->handle());
    request.set_allocation_bytes(landing_memory_->bytes().size());
    request.set_landing_parts(shape.landing_parts);
    const auto region = client_->RegisterMemory(request);
    EXPECT_TRUE(region.ok()) << region.status();
    landing_region_ = *region;
    client_->SetLandingHandler(landing_);
  }
  v1::RegisterMemoryRequest description = Describe();
  layout_ = std::make_unique<RegionLayout>(description);
  if (landing_ != nullptr) landing_->Use(client_.get(), &kv_, description);
  if (shape.vmm) {
    const auto id = client_->AttachDeviceMemory(kv_.fd(), kv_.uuid(), kv_.bytes().size());
    EXPECT_TRUE(id.ok()) << id.status();
    description.set_handoff_memory_id(*id);
  }
  const auto region = client_->RegisterMemory(description);
  EXPECT_TRUE(region.ok()) << region.status();
  region_ = *region;
  v1::Namespace model;
  model.set_model("device-worker");
  model.set_weights_fingerprint("1");
  model.set_kv_dtype("bfloat16");
  model.set_layout("block-major");
  model.set_chunk_tokens(256);
  model.set_segment_bytes(shape.segment_bytes);
  model.add_groups()->set_chunk_bytes(chunk_bytes());
  const auto registered = client_->RegisterNamespace(model, {});
  EXPECT_TRUE(registered.ok()) << registered.status();
  namespace_ = *registered;
}

DeviceWorker::~DeviceWorker() {
  if (landing_ != nullptr) landing_->Answer();
  client_.reset();
}

uint64_t DeviceWorker::chunk_bytes() const {
  return shape_.blocks_per_chunk * 2 * shape_.layers * shape_.run_bytes;
}

v1::RegisterMemoryRequest DeviceWorker::Describe() const {
  v1::RegisterMemoryRequest request;
  request.set_gpu_uuid(kv_.uuid());
  request.set_cuda_ipc_handle(kv_.handle());
  request.set_allocation_bytes(kv_.bytes().size());
  request.set_block_count(shape_.blocks);
  const uint64_t half = shape_.run_bytes * shape_.blocks;
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    v1::TensorLayout* tensor = request.add_tensors();
    tensor->set_tensor_offset(layer * 2 * half);
    tensor->set_block_stride(shape_.run_bytes);
    for (const uint64_t offset : {uint64_t{0}, half}) {
      v1::ByteRun* run = tensor->add_runs();
      run->set_offset(offset);
      run->set_length(shape_.run_bytes);
    }
  }
  return request;
}

v1::ChunkAt DeviceWorker::At(uint64_t key, const std::vector<uint32_t>& blocks) const {
  v1::ChunkAt chunk;
  std::string hash(16, '\0');
  std::memcpy(hash.data(), &key, sizeof(key));
  chunk.set_prefix_hash(hash);
  v1::DeviceBlocks* device = chunk.mutable_placement()->mutable_device();
  device->set_region_id(region_.region_id);
  device->mutable_blocks()->Add(blocks.begin(), blocks.end());
  return chunk;
}

v1::Store DeviceWorker::StoreOf(const std::vector<uint64_t>& keys, const Tables& tables) const {
  v1::Store store;
  store.set_namespace_id(namespace_.id);
  store.set_admission_ms(30000);
  store.set_deadline_ms(60000);
  for (size_t i = 0; i < keys.size(); ++i) *store.add_chunks() = At(keys[i], tables[i]);
  return store;
}

v1::ReadStep DeviceWorker::StepOf(const std::vector<uint64_t>& keys, const Tables& tables) const {
  v1::ReadStep step;
  step.set_mode(v1::ReadStep::MODE_JOINT);
  step.set_deadline_ms(60000);
  v1::ReadRequest* request = step.add_requests();
  request->set_request_id(1);
  request->set_namespace_id(namespace_.id);
  for (size_t i = 0; i < keys.size(); ++i) *request->add_chunks() = At(keys[i], tables[i]);
  return step;
}

DeviceWorker::Tables DeviceWorker::Shuffled(size_t chunks, uint32_t seed) const {
  std::vector<uint32_t> blocks(shape_.blocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(seed));
  Tables tables;
  for (size_t i = 0; i < chunks; ++i) {
    const auto begin = blocks.begin() + static_cast<std::ptrdiff_t>(i * shape_.blocks_per_chunk);
    tables.emplace_back(begin, begin + shape_.blocks_per_chunk);
  }
  return tables;
}

void DeviceWorker::Fill(uint64_t key, const std::vector<uint32_t>& blocks) {
  std::vector<Extent> extents;
  EXPECT_TRUE(layout_->Expand(blocks, 0, chunk_bytes(), &extents).ok());
  uint64_t at = 0;
  for (const Extent& extent : extents) {
    for (uint64_t i = 0; i < extent.length; ++i) kv_.bytes()[extent.offset + i] = ByteOf(key, at++);
  }
}

bool DeviceWorker::Holds(uint64_t key, const std::vector<uint32_t>& blocks) const {
  std::vector<Extent> extents;
  EXPECT_TRUE(layout_->Expand(blocks, 0, chunk_bytes(), &extents).ok());
  uint64_t at = 0;
  for (const Extent& extent : extents) {
    for (uint64_t i = 0; i < extent.length; ++i) {
      if (kv_.bytes()[extent.offset + i] != ByteOf(key, at++)) return false;
    }
  }
  return true;
}

void DeviceWorker::Poison() { std::ranges::fill(kv_.bytes(), kPoison); }

bool DeviceWorker::OnlyTouched(const Tables& tables) const {
  std::vector<std::byte> bytes(kv_.bytes().begin(), kv_.bytes().end());
  for (const auto& blocks : tables) {
    std::vector<Extent> extents;
    EXPECT_TRUE(layout_->Expand(blocks, 0, chunk_bytes(), &extents).ok());
    for (const Extent& extent : extents) {
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(extent.offset), extent.length,
                  kPoison);
    }
  }
  return std::ranges::all_of(bytes, [](std::byte b) { return b == kPoison; });
}

absl::Status DeviceWorker::Put(const std::vector<uint64_t>& keys, const Tables& tables) {
  for (size_t i = 0; i < keys.size(); ++i) Fill(keys[i], tables[i]);
  v1::Store message = StoreOf(keys, tables);
  message.set_want_durable(true);
  const auto store = client_->Store(message);
  if (!store.ok()) return store.status();
  EXPECT_TRUE((*store)->WaitEnded(kPatience));
  return (*store)->status();
}

v1::RequestDone DeviceWorker::Get(const std::vector<uint64_t>& keys, const Tables& tables) {
  Poison();
  const auto read = client_->ReadStep(StepOf(keys, tables));
  EXPECT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE((*read)->WaitEnded(kPatience));
  return (*read)->results().at(0);
}

}  // namespace kvstream
