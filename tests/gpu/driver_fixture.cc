#include "tests/gpu/driver_fixture.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "server/base/check.h"
#include "server/base/clock.h"

namespace kvstream::gpu {

std::span<std::byte> MapMemfd(uint64_t bytes) {
  const UniqueFd fd(memfd_create("driver-test", MFD_CLOEXEC));
  KV_CHECK(fd.valid() && ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  KV_CHECK(memory != MAP_FAILED);
  return {static_cast<std::byte*>(memory), bytes};
}

PinnedMemory::PinnedMemory(Driver* driver, uint64_t bytes)
    : driver_(*driver), bytes_(MapMemfd(bytes)) {
  const absl::Status status = driver_.Pin(bytes_);
  EXPECT_TRUE(status.ok()) << status;
}

PinnedMemory::~PinnedMemory() {
  driver_.Unpin(bytes_);
  munmap(bytes_.data(), bytes_.size());
}

std::vector<std::byte> RandomBytes(uint64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> made(bytes);
  for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(made.data() + i, &word, std::min<uint64_t>(sizeof word, bytes - i));
  }
  return made;
}

std::vector<Fragment> Cut(std::span<std::byte> host, uint64_t device, uint64_t most,
                          uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> sizes;
  for (uint64_t left = host.size(); left > 0; left -= sizes.back()) {
    sizes.push_back(std::min(left, (1 + random() % most) | 1));
  }
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<uint64_t> places(sizes.size());
  uint64_t at = device;
  for (const size_t i : order) {
    places[i] = at;
    at += sizes[i];
  }
  std::vector<Fragment> fragments;
  std::byte* from = host.data();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i % 7 != 5) fragments.push_back({from, places[i], sizes[i]});
    from += sizes[i];
  }
  return fragments;
}

namespace {

class RigOfTheProgram final : public testing::Environment {
 public:
  void SetUp() override { rig_ = MakeDriverRig(); }
  void TearDown() override { rig_.reset(); }
  DriverRig& rig() { return *rig_; }

 private:
  std::unique_ptr<DriverRig> rig_;
};

// Google Test's from here on.
RigOfTheProgram* const kRig =
    static_cast<RigOfTheProgram*>(testing::AddGlobalTestEnvironment(new RigOfTheProgram));

}  // namespace

DriverRig& DriverRigTest::rig() { return kRig->rig(); }

void DriverTest::SetUp() {
  if (driver().devices().empty()) GTEST_SKIP() << driver().reason();
}

void DriverTest::TearDown() {
  for (const uint64_t address : std::exchange(opened_, {})) {
    const absl::Status status = device().Close(address);
    EXPECT_TRUE(status.ok()) << status;
  }
  while (!allocated_.empty()) Free(allocated_.back());
}

const WorkerMemory& DriverTest::Allocate(MemoryKind kind, uint64_t bytes) {
  auto memory = rig().Allocate(kind, 0, bytes);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return allocated_.emplace_back(memory.ok() ? *std::move(memory) : WorkerMemory());
}

void DriverTest::Free(const WorkerMemory& memory) {
  const absl::Status status = rig().Free(memory);
  EXPECT_TRUE(status.ok()) << status;
  std::erase_if(allocated_, [&](const WorkerMemory& other) { return &other == &memory; });
}

absl::StatusOr<uint64_t> DriverTest::TryOpen(const WorkerMemory& memory, uint64_t bytes) {
  auto address = memory.fd.valid() ? device().Import(memory.fd.get(), bytes)
                                   : device().OpenIpc(memory.handle, bytes);
  if (address.ok()) opened_.insert(*address);
  return address;
}

uint64_t DriverTest::Open(const WorkerMemory& memory) {
  const auto address = TryOpen(memory, memory.bytes);
  EXPECT_TRUE(address.ok()) << address.status();
  return address.value_or(0);
}

void DriverTest::Close(uint64_t address) {
  EXPECT_EQ(opened_.erase(address), 1u);
  const absl::Status status = device().Close(address);
  EXPECT_TRUE(status.ok()) << status;
}

uint64_t DriverTest::Completed(Direction direction) {
  const auto completed = device().Completed(direction);
  EXPECT_TRUE(completed.ok()) << completed.status();
  return completed.value_or(0);
}

void DriverTest::Await(Direction direction, uint64_t batches) {
  const TimeNs deadline = Now() + 60 * kSecond;
  while (Completed(direction) < batches) {
    ASSERT_LT(Now(), deadline) << "waited in vain for batch " << batches;
    ASSERT_FALSE(HasFailure());
    std::this_thread::yield();
  }
}

void DriverTest::Copy(Direction direction, std::span<const Fragment> fragments) {
  const uint64_t before = Completed(direction);
  const absl::Status status = device().Copy(direction, fragments);
  ASSERT_TRUE(status.ok()) << status;
  Await(direction, before + 1);
}

void DriverTest::Write(const WorkerMemory& memory, std::span<const std::byte> bytes) {
  const absl::Status status = rig().Write(memory, bytes);
  EXPECT_TRUE(status.ok()) << status;
}

std::vector<std::byte> DriverTest::Read(const WorkerMemory& memory) {
  auto bytes = rig().Read(memory);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.ok() ? *std::move(bytes) : std::vector<std::byte>();
}

void DriverTest::ExpectExact(const WorkerMemory& memory, uint64_t address, uint64_t most,
                             uint64_t seed) {
  ASSERT_NE(address, 0u);
  PinnedMemory host(&driver(), memory.bytes);
  std::vector<std::byte> image = RandomBytes(memory.bytes, seed);
  Write(memory, image);
  std::ranges::copy(RandomBytes(memory.bytes, seed + 1), host.bytes().begin());
  std::vector<Fragment> fragments = Cut(host.bytes(), address, most, seed + 2);
  for (const Fragment& f : fragments) {
    std::memcpy(image.data() + (f.device - address), f.host, f.bytes);
  }
  ASSERT_NO_FATAL_FAILURE(Copy(Direction::kToDevice, fragments));
  EXPECT_TRUE(Read(memory) == image) << "to the device";

  std::ranges::fill(host.bytes(), std::byte{0xAB});
  std::vector<std::byte> expected(host.bytes().begin(), host.bytes().end());
  fragments = Cut(host.bytes(), address, most, seed + 3);
  for (const Fragment& f : fragments) {
    std::memcpy(expected.data() + (f.host - host.bytes().data()),
                image.data() + (f.device - address), f.bytes);
  }
  ASSERT_NO_FATAL_FAILURE(Copy(Direction::kToHost, fragments));
  EXPECT_TRUE(std::ranges::equal(host.bytes(), expected)) << "to the host";
}

void DriverTest::ExpectUsable() {
  for (const MemoryKind kind : {MemoryKind::kIpc, MemoryKind::kVmm}) {
    const WorkerMemory& memory = Allocate(kind);
    const uint64_t address = Open(memory);
    ExpectExact(memory, address);
    if (address != 0) Close(address);
    Free(memory);
  }
}

void DriverTest::ExpectRefused(const absl::StatusOr<uint64_t>& opened, const std::string& what) {
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument)
      << what << ": " << opened.status();
  if (opened.ok()) opened_.insert(*opened);
}

}  // namespace kvstream::gpu
