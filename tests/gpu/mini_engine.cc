#include "tests/gpu/mini_engine.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "client/status_convert.h"

namespace kvstream {
namespace {

uint64_t SplitMix(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::string KeyBytes(uint64_t seed, uint64_t key) {
  std::string bytes(16, '\0');
  std::memcpy(bytes.data(), &seed, 8);
  std::memcpy(bytes.data() + 8, &key, 8);
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MiniEngine>> MiniEngine::Create(const MiniEngineOptions& options) {
  auto layout = MakeKvPool(options.layout, options.shape);
  if (!layout.ok()) return layout.status();
  std::unique_ptr<MiniEngine> engine(new MiniEngine(options, *std::move(layout)));
  if (auto s = engine->Open(); !s.ok()) return s;
  return engine;
}

MiniEngine::MiniEngine(const MiniEngineOptions& options, KvPool layout)
    : options_(options), layout_(std::move(layout)) {}

MiniEngine::~MiniEngine() {
  if (client_ == nullptr) return;
  // A daemon that does not let go keeps the pool: better lost than freed under its DMA.
  if (!client_->Close().ok()) (void)memory_.release();
}

absl::Status MiniEngine::Open() {
  ClientOptions client;
  client.grpc_socket = options_.socket;
  client.client_name = options_.client_name;
  auto connected = Client::Connect(client);
  if (!connected.ok()) return connected.status();
  client_ = *std::move(connected);
  auto memory = DevicePool::Create(options_.pool, options_.device, layout_.allocation_bytes);
  if (!memory.ok()) return memory.status();
  memory_ = *std::move(memory);
  if (auto s = RegisterPool(); !s.ok()) return s;
  return RegisterModel();
}

absl::Status MiniEngine::RegisterPool() {
  if (options_.landing.parts > 0) {
    cuda::LandingOptions landing = options_.landing;
    landing.device = options_.device;
    auto created = cuda::LandingBuffer::Create(client_.get(), landing);
    if (!created.ok()) return created.status();
    landing_ = *std::move(created);
  }
  auto shared = cuda::ShareDeviceMemory(client_.get(), memory_->data(), memory_->size());
  if (!shared.ok()) return shared.status();
  shared->request.set_block_count(layout_.block_count);
  for (const v1::TensorLayout& tensor : layout_.tensors) {
    v1::TensorLayout* added = shared->request.add_tensors();
    *added = tensor;
    added->set_tensor_offset(shared->offset + tensor.tensor_offset());
  }
  const auto region = landing_ != nullptr ? landing_->RegisterRegion(*shared)
                                          : client_->RegisterMemory(shared->request);
  if (!region.ok()) return region.status();
  region_ = *region;
  return absl::OkStatus();
}

absl::Status MiniEngine::RegisterModel() {
  const KvShape& shape = options_.shape;
  v1::Namespace model;
  model.set_model("mini-engine");
  model.set_weights_fingerprint(std::to_string(options_.seed));
  model.set_kv_dtype("bytes" + std::to_string(shape.element_bytes));
  model.set_layout(options_.layout);
  for (const uint32_t size : {shape.layers, shape.tokens, shape.heads, shape.head_dim}) {
    model.add_strides(size);
  }
  model.set_page_tokens(shape.tokens);
  model.set_chunk_tokens(shape.tokens * options_.chunk_blocks);
  model.set_segment_bytes(options_.segment_bytes);
  model.add_groups()->set_chunk_bytes(chunk_bytes());
  auto registered = client_->RegisterNamespace(model, {});
  if (!registered.ok()) return registered.status();
  namespace_ = *std::move(registered);
  return absl::OkStatus();
}

BlockTables MiniEngine::ShuffledTables(uint32_t chunks, uint64_t seed) const {
  std::vector<uint32_t> blocks(layout_.block_count);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::mt19937_64 random(seed);
  std::shuffle(blocks.begin(), blocks.end(), random);
  BlockTables tables;
  for (uint32_t i = 0; i < chunks; ++i) {
    const auto first = blocks.begin() + ptrdiff_t{i} * options_.chunk_blocks;
    tables.emplace_back(first, first + options_.chunk_blocks);
  }
  return tables;
}

v1::ChunkAt MiniEngine::ChunkAt(uint64_t key, const std::vector<uint32_t>& blocks) const {
  v1::ChunkAt chunk;
  chunk.set_prefix_hash(KeyBytes(options_.seed, key));
  v1::DeviceBlocks* device = chunk.mutable_placement()->mutable_device();
  device->set_region_id(region_.region_id);
  device->mutable_blocks()->Add(blocks.begin(), blocks.end());
  return chunk;
}

v1::Store MiniEngine::StoreOf(uint64_t first_key, const BlockTables& tables) const {
  v1::Store store;
  store.set_namespace_id(namespace_.id);
  store.set_deadline_ms(absl::ToInt64Milliseconds(options_.timeout));
  store.set_admission_ms(absl::ToInt64Milliseconds(options_.timeout));
  for (size_t i = 0; i < tables.size(); ++i) {
    *store.add_chunks() = ChunkAt(first_key + i, tables[i]);
  }
  return store;
}

v1::ReadStep MiniEngine::StepOf(uint32_t requests) const {
  v1::ReadStep step;
  step.set_mode(requests == 1 ? v1::ReadStep::MODE_JOINT : v1::ReadStep::MODE_INDEPENDENT);
  step.set_deadline_ms(absl::ToInt64Milliseconds(options_.timeout));
  for (uint32_t r = 0; r < requests; ++r) {
    v1::ReadRequest* request = step.add_requests();
    request->set_request_id(r + 1);
    request->set_namespace_id(namespace_.id);
  }
  return step;
}

absl::StatusOr<std::shared_ptr<StoreOperation>> MiniEngine::BeginStore(uint64_t first_key,
                                                                       const BlockTables& tables) {
  return client_->Store(StoreOf(first_key, tables));
}

absl::StatusOr<std::shared_ptr<ReadOperation>> MiniEngine::BeginRead(uint64_t first_key,
                                                                     const BlockTables& tables,
                                                                     uint32_t requests) {
  const auto count = static_cast<uint32_t>(std::min<uint64_t>(requests, tables.size()));
  v1::ReadStep step = StepOf(count);
  for (uint64_t r = 0; r < count; ++r) {
    v1::ReadRequest* request = step.mutable_requests(static_cast<int>(r));
    for (uint64_t i = tables.size() * r / count; i < tables.size() * (r + 1) / count; ++i) {
      *request->add_chunks() = ChunkAt(first_key + i, tables[i]);
    }
  }
  return client_->ReadStep(std::move(step));
}

absl::Status MiniEngine::Store(uint64_t first_key, const BlockTables& tables, uint64_t* existed) {
  return AwaitStore(BeginStore(first_key, tables), existed);
}

absl::Status MiniEngine::StoreDurably(uint64_t first_key, const BlockTables& tables) {
  v1::Store store = StoreOf(first_key, tables);
  store.set_want_durable(true);
  return AwaitStore(client_->Store(std::move(store)), nullptr);
}

absl::Status MiniEngine::AwaitStore(const absl::StatusOr<std::shared_ptr<StoreOperation>>& store,
                                    uint64_t* existed) const {
  if (!store.ok()) return store.status();
  // The daemon enforces the deadline; this only guards against a daemon that does not.
  if (!(*store)->WaitEnded(2 * options_.timeout)) {
    return absl::DeadlineExceededError("store chunks: the operation did not end");
  }
  if (auto s = (*store)->status(); !s.ok()) return s;
  const std::vector<StoreOperation::Chunk> chunks = (*store)->chunks();
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].code != v1::OK) {
      return FromCode(chunks[i].code, "store chunk " + std::to_string(i), "");
    }
    if (existed != nullptr && chunks[i].existed) ++*existed;
  }
  return absl::OkStatus();
}

absl::Status MiniEngine::Read(uint64_t first_key, const BlockTables& tables, uint32_t requests) {
  return AwaitRead(BeginRead(first_key, tables, requests));
}

absl::Status MiniEngine::ReadToHost(uint64_t first_key, uint32_t chunks, const HostBuffer& buffer) {
  v1::ReadStep step = StepOf(1);
  for (uint64_t i = 0; i < chunks; ++i) {
    v1::ChunkAt* chunk = step.mutable_requests(0)->add_chunks();
    *chunk = ChunkAt(first_key + i, {});
    v1::HostRange* host = chunk->mutable_placement()->mutable_host();
    host->set_buffer_id(buffer.id());
    host->set_offset(i * chunk_bytes());
  }
  return AwaitRead(client_->ReadStep(std::move(step)));
}

absl::Status MiniEngine::AwaitRead(
    const absl::StatusOr<std::shared_ptr<ReadOperation>>& read) const {
  if (!read.ok()) return read.status();
  if (!(*read)->WaitEnded(2 * options_.timeout)) {
    return absl::DeadlineExceededError("read chunks: the operation did not end");
  }
  for (const v1::RequestDone& done : (*read)->results()) {
    if (done.code() == v1::OK) continue;
    return FromCode(done.code(), "read request " + std::to_string(done.request_id()),
                    done.message() + " after " + std::to_string(done.leading_valid()) + " chunks");
  }
  return (*read)->status();
}

std::vector<uint8_t> MiniEngine::RandomBytes(uint64_t seed) const {
  std::vector<uint8_t> bytes(memory_->size());
  uint64_t state = seed;
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t value = SplitMix(&state);
    std::memcpy(bytes.data() + i, &value, 8);
  }
  return bytes;
}

void MiniEngine::MoveChunks(const std::vector<uint8_t>& from, const BlockTables& from_tables,
                            const BlockTables& to_tables, std::vector<uint8_t>* to) const {
  std::vector<uint8_t> block;
  for (size_t i = 0; i < from_tables.size(); ++i) {
    for (size_t j = 0; j < from_tables[i].size(); ++j) {
      block.clear();
      ForEachRun(layout_, from_tables[i][j], [&](uint64_t offset, uint64_t length) {
        const auto first = from.begin() + static_cast<ptrdiff_t>(offset);
        block.insert(block.end(), first, first + static_cast<ptrdiff_t>(length));
      });
      uint64_t at = 0;
      ForEachRun(layout_, to_tables[i][j], [&](uint64_t offset, uint64_t length) {
        std::memcpy(to->data() + offset, block.data() + at, length);
        at += length;
      });
    }
  }
}

}  // namespace kvstream
