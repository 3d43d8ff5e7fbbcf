#include "tests/engine/engine_rig.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "server/base/clock.h"
#include "server/tier/file_tier.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/faulty_queue.h"
#include "tests/support/log_recorder.h"

namespace kvstream::engine {
namespace {

constexpr TimeNs kPatience = 60 * kSecond;
constexpr size_t kSlots = 64;
constexpr uint8_t kPoison = 0xAB;

std::byte ByteOf(uint64_t key, uint64_t offset) {
  return static_cast<std::byte>(key * 31 + offset * 7 + offset / 4096);
}

uint64_t OperationOf(const SessionEvent& event) {
  return std::visit(
      [](const auto& e) -> uint64_t {
        if constexpr (requires { e.client_op; }) return e.client_op;
        return 0;
      },
      event);
}

tier::QueueWrapper WrapperOf(std::shared_ptr<FailingIo> failing) {
  return test::FaultyQueue::Wrapper(
      nullptr, [failing = std::move(failing)](const tier::Operation& operation, int32_t result) {
        using Kind = tier::Operation::Kind;
        const int error = operation.kind == Kind::kRead    ? failing->read.load()
                          : operation.kind == Kind::kWrite ? failing->write.load()
                          : operation.kind == Kind::kOpen  ? failing->open.load()
                                                           : 0;
        if (error == 0) return result;
        if (operation.kind == Kind::kOpen && result >= 0) close(result);
        return -error;
      });
}

}  // namespace

std::vector<uint64_t> Keys(uint64_t first, uint64_t count) {
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < count; ++i) keys.push_back(first + i);
  return keys;
}

absl::AnyInvocable<absl::Status()> GatedTier::Recheck() const {
  return [failing = failing_, inner = inner_->Recheck()]() mutable {
    const bool fails = failing->read != 0 || failing->write != 0 || failing->open != 0;
    return fails ? absl::UnavailableError("it fails, says the test") : inner();
  };
}

void GatedTier::Read(std::span<const tier::ReadRequest> requests) {
  MutexLock lock(&mu_);
  if (reads_closed_) {
    reads_.insert(reads_.end(), requests.begin(), requests.end());
  } else {
    inner_->Read(requests);
  }
}

void GatedTier::Write(tier::WriteRequest request) {
  MutexLock lock(&mu_);
  if (writes_closed_) {
    writes_.push_back(std::move(request));
  } else {
    inner_->Write(std::move(request));
  }
}

void GatedTier::GateReads(bool closed) {
  MutexLock lock(&mu_);
  reads_closed_ = closed;
  if (closed || reads_.empty()) return;
  inner_->Read(reads_);
  reads_.clear();
}

void GatedTier::GateWrites(bool closed) {
  MutexLock lock(&mu_);
  writes_closed_ = closed;
  if (closed) return;
  for (tier::WriteRequest& request : writes_) inner_->Write(std::move(request));
  writes_.clear();
}

size_t GatedTier::reads_held() const {
  MutexLock lock(&mu_);
  return reads_.size();
}

bool GatedTier::Stop(TimeNs deadline) { return inner_->Stop(deadline); }

void RecordingSink::Send(SessionEvent event) {
  MutexLock lock(&mu_);
  events_.push_back(std::move(event));
  changed_.NotifyAll();
}

void RecordingSink::End(absl::Status status) {
  MutexLock lock(&mu_);
  ended_ = true;
  end_ = std::move(status);
  changed_.NotifyAll();
}

template <typename T>
bool RecordingSink::Has(uint64_t client_op) const {
  MutexLock lock(&mu_);
  return std::any_of(events_.begin(), events_.end(), [client_op](const SessionEvent& e) {
    return std::holds_alternative<T>(e) && OperationOf(e) == client_op;
  });
}

template <typename T>
T RecordingSink::Wait(uint64_t client_op) {
  const TimeNs deadline = Now() + kPatience;
  MutexLock lock(&mu_);
  do {
    for (const SessionEvent& e : events_) {
      if (std::holds_alternative<T>(e) && OperationOf(e) == client_op) return std::get<T>(e);
    }
  } while (changed_.WaitUntil(&mu_, deadline));
  ADD_FAILURE() << "no such event came";
  return {};
}

template <typename T>
std::vector<T> RecordingSink::All(uint64_t client_op) const {
  std::vector<T> all;
  MutexLock lock(&mu_);
  for (const SessionEvent& e : events_) {
    if (std::holds_alternative<T>(e) && OperationOf(e) == client_op) all.push_back(std::get<T>(e));
  }
  return all;
}

template Quiesced RecordingSink::Wait<Quiesced>(uint64_t);
template RequestDone RecordingSink::Wait<RequestDone>(uint64_t);
template StoreReleased RecordingSink::Wait<StoreReleased>(uint64_t);
template StoreDurable RecordingSink::Wait<StoreDurable>(uint64_t);
template bool RecordingSink::Has<Quiesced>(uint64_t) const;
template bool RecordingSink::Has<StoreDurable>(uint64_t) const;
template std::vector<RequestDone> RecordingSink::All<RequestDone>(uint64_t) const;

absl::Status RecordingSink::WaitEnd() {
  const TimeNs deadline = Now() + kPatience;
  MutexLock lock(&mu_);
  while (!ended_ && changed_.WaitUntil(&mu_, deadline)) {
  }
  EXPECT_TRUE(ended_) << "the stream goes on";
  return end_;
}

EngineRig::EngineRig(const std::function<void(EngineOptions&)>& tweak) {
  test::LogErrorsOnly();
  std::string name = (std::filesystem::temp_directory_path() / "kvstream-rig-XXXXXX").string();
  dir_ = mkdtemp(name.data());
  pool_ = *memory::SealedMemory::Create("pool", 8 * kMiB, false);
  driver_ = gpu::OpenFakeDriver(1);
  gpus_ = std::make_unique<gpu::Gpus>(driver_.get());
  engine_ = std::make_unique<Engine>(pool_.get(), gpus_.get());
  EngineOptions options;
  options.pool_reserved_bytes = 4 * kMiB;
  // Which tier reads what is for the test to say, not for how busy the machine is.
  options.router.hedge_after = kPatience;
  options.writes.watermark_bytes = kMiB;
  std::vector<tier::Tier*> raw;
  for (uint32_t i = 0; i < 2; ++i) {
    const std::filesystem::path root = dir_ / std::to_string(i);
    std::filesystem::create_directory(root);
    tier::TierOptions tier{.id = TierId{i}, .name = std::to_string(i), .root = root};
    auto failing = std::make_shared<FailingIo>();
    auto opened = tier::FileTier::Open(tier, pool_->bytes(), engine_.get(), WrapperOf(failing));
    EXPECT_TRUE(opened.ok()) << opened.status();
    tiers_.push_back(std::make_unique<GatedTier>(*std::move(opened), failing));
    raw.push_back(tiers_.back().get());
    options.router.lanes.push_back({.window_bytes = 2 * kMiB, .quarantine_bytes = 256 * kKiB});
    options.writes.lanes.push_back({});
  }
  if (tweak) tweak(options);
  engine_->Start(options, raw, this);
  store::NamespaceSpec spec;
  spec.model = "rig";
  spec.weights_fingerprint = "w";
  spec.kv_dtype = "bytes";
  spec.layout = "opaque";
  spec.chunk_tokens = 1;
  spec.segment_bytes = kSegmentBytes;
  spec.groups.push_back({.name = "", .chunk_bytes = kChunkBytes});
  name_space_ = *registry_.Register(spec, {});
}

EngineRig::~EngineRig() {
  for (auto& tier : tiers_) {
    tier->GateReads(false);
    tier->GateWrites(false);
  }
  engine_->BeginDrain();
  EXPECT_TRUE(engine_->WaitDrained(Now() + kPatience));
  EXPECT_TRUE(engine_->EndSessions(Now() + kPatience));
  EXPECT_EQ(stats().pool_used_bytes.Get(), 0u);
  EXPECT_EQ(stats().leases.Get(), 0u);
  (void)engine_->Stop(kNever);
  for (auto& tier : tiers_) {
    EXPECT_TRUE(tier->Stop(Now() + kPatience));
  }
  std::filesystem::remove_all(dir_);
}

void EngineRig::WaitUntil(const std::function<bool()>& condition, const char* what) {
  const TimeNs deadline = Now() + kPatience;
  while (!condition()) {
    ASSERT_LT(Now(), deadline) << "waited in vain until " << what;
    std::this_thread::yield();
  }
}

SessionId EngineRig::Open(std::shared_ptr<SessionSink> sink) {
  const SessionId session{next_session_++};
  engine_->Post(SessionConnected{session});
  auto memory = *memory::SealedMemory::Create("buffer", kSlots * kChunkBytes, false);
  mappings_.push_back(*memory::SealedMemory::Attach(UniqueFd(dup(memory->fd())), 0));
  engine_->Post(BufferAttached{session, 1, std::move(memory)});
  engine_->Post(StreamOpened{session, "rig", std::move(sink)});
  return session;
}

std::span<std::byte> EngineRig::buffer(SessionId session) {
  return mappings_.at(session.value - 1)->bytes();
}

void EngineRig::Send(SessionId session, const SessionSink& sink, SessionMessage message) {
  engine_->Post(MessageArrived{session, &sink, std::move(message)});
}

void EngineRig::Close(SessionId session) {
  MutexLock lock(&mu_);
  closed_.push_back(session);
}

bool EngineRig::closed(SessionId session) const {
  MutexLock lock(&mu_);
  return std::find(closed_.begin(), closed_.end(), session) != closed_.end();
}

store::ChunkKey EngineRig::KeyOf(uint64_t key) const {
  store::ChunkKey out;
  out.name_space = name_space_->id;
  out.salt = store::DigestOfSalt("");
  out.prefix_hash.assign(16, '\0');
  std::memcpy(out.prefix_hash.data(), &key, sizeof key);
  return out;
}

Store EngineRig::StoreOf(uint64_t client_op, const std::vector<uint64_t>& keys) const {
  Store store;
  store.client_op = client_op;
  store.name_space = name_space_;
  store.admission_deadline = kNever;
  for (size_t i = 0; i < keys.size(); ++i) {
    const store::ChunkKey key = KeyOf(keys[i]);
    store.chunks.push_back({key, store::DigestOfKey(key), HostRange{1, i * kChunkBytes}});
  }
  return store;
}

ReadStep EngineRig::StepOf(uint64_t client_op, const std::vector<uint64_t>& keys) const {
  ReadStep step;
  step.client_op = client_op;
  ReadRequest& request = step.requests.emplace_back();
  request.name_space = name_space_;
  for (size_t i = 0; i < keys.size(); ++i) {
    request.chunks.push_back(
        {store::DigestOfKey(KeyOf(keys[i])), 0, HostRange{1, i * kChunkBytes}});
  }
  return step;
}

void EngineRig::Fill(SessionId session, const std::vector<uint64_t>& keys) {
  for (size_t i = 0; i < keys.size(); ++i) {
    for (uint64_t b = 0; b < kChunkBytes; ++b) {
      buffer(session)[i * kChunkBytes + b] = ByteOf(keys[i], b);
    }
  }
}

bool EngineRig::Holds(SessionId session, const std::vector<uint64_t>& keys) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!Holds(session, keys[i], i)) return false;
  }
  return true;
}

bool EngineRig::Holds(SessionId session, uint64_t key, size_t slot) {
  const auto chunk = buffer(session).subspan(slot * kChunkBytes, kChunkBytes);
  for (uint64_t b = 0; b < kChunkBytes; ++b) {
    if (chunk[b] != ByteOf(key, b)) return false;
  }
  return true;
}

void EngineRig::Poison(SessionId session) {
  std::memset(buffer(session).data(), kPoison, buffer(session).size());
}

bool EngineRig::IsPoisoned(SessionId session, size_t slot) {
  const auto chunk = buffer(session).subspan(slot * kChunkBytes, kChunkBytes);
  return std::all_of(chunk.begin(), chunk.end(),
                     [](std::byte b) { return b == std::byte{kPoison}; });
}

}  // namespace kvstream::engine
