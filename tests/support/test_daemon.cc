#include "tests/support/test_daemon.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "server/base/clock.h"
#include "server/config/config.h"
#include "tests/support/log_recorder.h"

namespace kvstream {

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "kvstream-test-XXXXXX").string();
  path_ = mkdtemp(name.data());
}

TempDir::~TempDir() { std::filesystem::remove_all(path_); }

config::IoEngine EngineUnderTest() {
  const char* const name = std::getenv("KVSTREAM_TEST_IO_ENGINE");
  return name != nullptr && std::string_view(name) == "threads" ? config::IoEngine::kThreads
                                                                : config::IoEngine::kUring;
}

TestDaemon::TestDaemon(Tweak tweak, uint32_t gpus)
    : gpus_(gpus), gpu_control_(std::make_shared<gpu::FakeGpuControl>()) {
  test::LogErrorsOnly();
  const std::string dir = dir_.path().string();
  std::filesystem::create_directory(dir + "/nvme");
  std::filesystem::create_directory(dir + "/pfs");
  auto options = config::ParseConfig(
      "sockets { grpc: \"" + dir + "/sock\" }" + "tiers { name: \"nvme\" root: \"" + dir +
          "/nvme\" }" + "tiers { name: \"pfs\" root: \"" + dir + "/pfs\" }" +
          "pool { mib: 64 } cache { policy: NONE }" + "metrics { listen: \"\" }" +
          "limits { segment_kib: 1024 segment_kib_max: 4096 }",
      "test");
  EXPECT_TRUE(options.ok()) << options.status();
  options_ = *std::move(options);
  for (config::TierOptions& tier : options_.tiers) tier.io_engine = EngineUnderTest();
  if (tweak) tweak(options_);
  Restart();
}

TestDaemon::~TestDaemon() { Stop(); }

void TestDaemon::Stop() {
  if (daemon_ == nullptr) return;
  const engine::EngineStats& stats = daemon_->stats();
  EXPECT_TRUE(daemon_->Stop());
  EXPECT_EQ(stats.sessions_open.Get(), 0u);
  EXPECT_EQ(stats.operations_running.Get(), 0u);
  EXPECT_EQ(stats.host_buffers.Get(), 0u);
  EXPECT_EQ(stats.host_buffer_bytes.Get(), 0u);
  EXPECT_EQ(stats.unmapping_bytes.Get(), 0u);
  EXPECT_EQ(daemon_->rpc_stats().streams_open.Get(), 0u);
  EXPECT_EQ(daemon_->rpc_stats().calls_waiting.Get(), 0u);
  EXPECT_EQ(stats.leases.Get(), 0u);
  EXPECT_EQ(stats.staged_bytes.Get(), 0u);
  EXPECT_EQ(stats.pool_used_bytes.Get(), 0u);
  EXPECT_EQ(stats.landing_parts_overdue.Get(), 0u);
  EXPECT_EQ(gpu_control_->mappings, 0);
  daemon_.reset();
}

absl::StatusOr<std::unique_ptr<Daemon>> StartWithoutGpus(const config::Options& options) {
  return Daemon::Start(options, [] { return gpu::OpenFakeDriver(0); });
}

void TestDaemon::Restart(const Tweak& tweak) {
  Stop();
  if (tweak) tweak(options_);
  auto daemon =
      Daemon::Start(options_, [this] { return gpu::OpenFakeDriver(gpus_, gpu_control_); });
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  daemon_ = *std::move(daemon);
}

void TestDaemon::RestartWithoutSnapshots() {
  Stop();
  for (size_t t = 0; t < options_.tiers.size(); ++t) {
    std::filesystem::remove_all(root(t) / "v1" / "index");
  }
  Restart();
  WaitUntil(
      [this] {
        return std::ranges::all_of(stats().tiers, [](const engine::TierEngineStats& tier) {
          return tier.restoring.Get() == 0;
        });
      },
      "all files are found");
}

std::vector<std::filesystem::path> TestDaemon::Files(size_t tier) const {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root(tier))) {
    if (entry.path().extension() == ".kv") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void TestDaemon::WaitUntil(const std::function<bool()>& condition, const char* what) {
  const TimeNs deadline = Now() + absl::ToInt64Nanoseconds(kPatience);
  while (!condition()) {
    ASSERT_LT(Now(), deadline) << "waited in vain until " << what;
    std::this_thread::yield();
  }
}

void TestDaemon::WaitWritten() {
  WaitUntil([this] { return stats().staged_bytes.Get() == 0; }, "everything is written");
}

namespace {

// The eight bytes at word `word` of chunk `key`.
uint64_t Word(uint64_t key, uint64_t word, uint64_t computation) {
  uint64_t x = key * 0x9E3779B97F4A7C15u + word * 0xC2B2AE3D27D4EB4Fu + 1 + (computation << 32);
  x ^= x >> 29;
  return x * 0xBF58476D1CE4E5B9u;
}

}  // namespace

Worker::Worker(const std::string& socket, const Shape& shape) : shape_(shape) {
  auto client = Client::Connect({.grpc_socket = socket, .connect_timeout = kPatience});
  EXPECT_TRUE(client.ok()) << client.status();
  client_ = *std::move(client);
  v1::Namespace description;
  description.set_model("test");
  description.set_weights_fingerprint("w0");
  description.set_kv_dtype("bfloat16");
  description.set_layout("block-major");
  description.set_chunk_tokens(256);
  description.set_segment_bytes(shape.segment_bytes);
  description.add_groups()->set_chunk_bytes(shape.chunk_bytes);
  if (shape.change_namespace) shape.change_namespace(&description);
  auto name_space = client_->RegisterNamespace(description, {});
  EXPECT_TRUE(name_space.ok()) << name_space.status();
  namespace_ = *std::move(name_space);
  auto buffer = client_->CreateHostBuffer(shape.buffer_bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  buffer_ = *std::move(buffer);
}

v1::ChunkAt Worker::At(uint64_t key, size_t slot) const {
  v1::ChunkAt at;
  std::string hash(16, '\0');
  std::memcpy(hash.data(), &key, sizeof key);
  at.set_prefix_hash(hash);
  at.mutable_placement()->mutable_host()->set_buffer_id(buffer_.id());
  at.mutable_placement()->mutable_host()->set_offset(slot * shape_.chunk_bytes);
  return at;
}

v1::Store Worker::StoreOf(const std::vector<uint64_t>& keys, size_t first_slot) const {
  v1::Store store;
  store.set_namespace_id(namespace_.id);
  store.set_salt(shape_.salt);
  store.set_admission_ms(60000);
  store.set_deadline_ms(60000);
  for (const uint64_t key : keys) *store.add_chunks() = At(key, first_slot++);
  return store;
}

v1::ReadStep Worker::StepOf(const std::vector<uint64_t>& keys, size_t first_slot) const {
  v1::ReadStep step;
  step.set_mode(v1::ReadStep::MODE_INDEPENDENT);
  step.set_deadline_ms(60000);
  v1::ReadRequest& request = *step.add_requests();
  request.set_request_id(1);
  request.set_namespace_id(namespace_.id);
  request.set_salt(shape_.salt);
  for (const uint64_t key : keys) *request.add_chunks() = At(key, first_slot++);
  return step;
}

void Worker::Fill(uint64_t key, size_t slot) {
  for (uint64_t i = 0; i < shape_.chunk_bytes; i += 8) {
    const uint64_t word = Word(key, i / 8, shape_.computation);
    std::memcpy(SlotAt(slot) + i, &word, std::min<uint64_t>(8, shape_.chunk_bytes - i));
  }
}

bool Worker::Holds(uint64_t key, size_t slot, uint64_t computation) const {
  for (uint64_t i = 0; i < shape_.chunk_bytes; i += 8) {
    const uint64_t word = Word(key, i / 8, computation);
    if (std::memcmp(SlotAt(slot) + i, &word, std::min<uint64_t>(8, shape_.chunk_bytes - i)) != 0) {
      return false;
    }
  }
  return true;
}

void Worker::Poison(size_t slot, uint8_t value) {
  std::memset(SlotAt(slot), value, shape_.chunk_bytes);
}

bool Worker::IsPoisoned(size_t slot, uint8_t value) const {
  const auto* bytes = reinterpret_cast<const uint8_t*>(SlotAt(slot));
  return std::all_of(bytes, bytes + shape_.chunk_bytes, [value](uint8_t b) { return b == value; });
}

absl::Status Worker::Put(const std::vector<uint64_t>& keys, bool durable) {
  for (size_t i = 0; i < keys.size(); ++i) Fill(keys[i], i);
  v1::Store store = StoreOf(keys);
  store.set_want_durable(durable);
  auto operation = client_->Store(std::move(store));
  if (!operation.ok()) return operation.status();
  EXPECT_TRUE((*operation)->WaitEnded(kPatience));
  return (*operation)->status();
}

v1::RequestDone Worker::Get(const std::vector<uint64_t>& keys) {
  for (size_t i = 0; i < keys.size(); ++i) Poison(i);
  auto operation = client_->ReadStep(StepOf(keys));
  EXPECT_TRUE(operation.ok()) << operation.status();
  EXPECT_TRUE((*operation)->WaitEnded(kPatience));
  return (*operation)->results().at(0);
}

uint32_t Worker::Look(const std::vector<uint64_t>& keys) {
  v1::LookupRequest request;
  request.set_namespace_id(namespace_.id);
  request.set_salt(shape_.salt);
  for (const uint64_t key : keys) AddPrefixHash(At(key, 0).prefix_hash(), &request);
  auto reply = client_->Lookup(std::move(request));
  EXPECT_TRUE(reply.ok()) << reply.status();
  return reply->leading_run();
}

std::vector<uint64_t> Keys(uint64_t first, size_t count) {
  std::vector<uint64_t> keys;
  for (size_t i = 0; i < count; ++i) keys.push_back(first + i);
  return keys;
}

}  // namespace kvstream
