// What server/gpu/driver.h promises, of every driver: the fake one, and CUDA's where there is a
// GPU.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/gpu/driver_fixture.h"

namespace kvstream::gpu {
namespace {

using Fragments = std::vector<Fragment>;

TEST_F(DriverRigTest, TheReasonIsEmptyExactlyWithDevices) {
  if (driver().devices().empty()) {
    EXPECT_THAT(driver().reason(), testing::StartsWith("no GPU: "));
    EXPECT_GT(driver().reason().size(), std::strlen("no GPU: "));
  } else {
    EXPECT_EQ(driver().reason(), "");
  }
}

TEST_F(DriverTest, DevicesAreNamedAndKeepTheirOrder) {
  const auto devices = driver().devices();
  EXPECT_EQ(devices, driver().devices());
  std::set<std::string> uuids;
  for (const Device* d : devices) {
    EXPECT_EQ(d->uuid().size(), 40u);
    EXPECT_EQ(d->uuid().substr(0, 4), "GPU-");
    for (size_t i = 4; i < d->uuid().size(); ++i) {
      const bool dash = i == 12 || i == 17 || i == 22 || i == 27;
      EXPECT_NE((dash ? std::string("-") : std::string("0123456789abcdef")).find(d->uuid()[i]),
                std::string::npos)
          << d->uuid();
    }
    EXPECT_FALSE(d->name().empty());
    EXPECT_TRUE(uuids.insert(d->uuid()).second) << d->uuid();
  }
}

class DriverMemoryTest : public DriverTest, public testing::WithParamInterface<MemoryKind> {
 protected:
  const WorkerMemory& AllocateKind(uint64_t bytes = kBytes) { return Allocate(GetParam(), bytes); }
};

INSTANTIATE_TEST_SUITE_P(Kinds, DriverMemoryTest,
                         testing::Values(MemoryKind::kIpc, MemoryKind::kVmm), [](const auto& kind) {
                           return kind.param == MemoryKind::kIpc ? "Ipc" : "Vmm";
                         });

TEST_P(DriverMemoryTest, ManyFragmentsOfOddSizesAreCopiedExactly) {
  const WorkerMemory& memory = AllocateKind();
  const uint64_t address = Open(memory);
  for (const uint64_t most : {1000, 20000, 700001}) ExpectExact(memory, address, most, most);
}

TEST_P(DriverMemoryTest, SingleFragmentsAreCopiedExactly) {
  const WorkerMemory& memory = AllocateKind();
  const uint64_t address = Open(memory);
  PinnedMemory host(&driver(), memory.bytes);
  std::ranges::copy(RandomBytes(memory.bytes, 5), host.bytes().begin());
  std::vector<std::byte> image(memory.bytes, std::byte{0x5A});
  Write(memory, image);
  std::byte* const base = host.bytes().data();
  const uint64_t last = memory.bytes - 1;
  const Fragments fragments = {
      {base, address, 1}, {base + 3, address + last, 1}, {base + 13, address + 77, 4097}};
  for (const Fragment& fragment : fragments) {
    Copy(Direction::kToDevice, {&fragment, 1});
    std::memcpy(image.data() + (fragment.device - address), fragment.host, fragment.bytes);
  }
  EXPECT_TRUE(Read(memory) == image);
  for (const Fragment& fragment : fragments) {
    std::memset(fragment.host, 0, fragment.bytes);
    Copy(Direction::kToHost, {&fragment, 1});
    EXPECT_EQ(
        std::memcmp(image.data() + (fragment.device - address), fragment.host, fragment.bytes), 0);
  }
  const Fragment whole = {base, address, memory.bytes};
  Copy(Direction::kToHost, {&whole, 1});
  EXPECT_TRUE(std::ranges::equal(host.bytes(), image));
}

TEST_P(DriverMemoryTest, BatchesCompleteInOrderAndAreCounted) {
  constexpr uint64_t kBatches = 8;
  const WorkerMemory& memory = AllocateKind(512 * 1024);
  const uint64_t address = Open(memory);
  const std::vector<std::byte> image = RandomBytes(memory.bytes, 9);
  Write(memory, image);
  PinnedMemory host(&driver(), kBatches * memory.bytes);
  const auto area = [&](uint64_t i) {
    return host.bytes().subspan(i * memory.bytes, memory.bytes);
  };
  const uint64_t before = Completed(Direction::kToHost);
  const uint64_t others = Completed(Direction::kToDevice);
  for (uint64_t i = 0; i < kBatches; ++i) {
    ASSERT_TRUE(device().Copy(Direction::kToHost, Cut(area(i), address, 3000, i)).ok());
  }
  for (uint64_t i = 0; i < kBatches; ++i) {
    Await(Direction::kToHost, before + i + 1);
    for (const Fragment& f : Cut(area(i), address, 3000, i)) {
      ASSERT_EQ(std::memcmp(f.host, image.data() + (f.device - address), f.bytes), 0) << i;
    }
  }
  EXPECT_EQ(Completed(Direction::kToHost), before + kBatches);
  EXPECT_EQ(Completed(Direction::kToDevice), others);
  // Into the same bytes: the last one stays.
  for (uint64_t i = 0; i < kBatches; ++i) {
    std::ranges::copy(RandomBytes(memory.bytes, 20 + i), area(i).begin());
    const Fragment whole = {area(i).data(), address, memory.bytes};
    ASSERT_TRUE(device().Copy(Direction::kToDevice, {&whole, 1}).ok());
  }
  Await(Direction::kToDevice, others + kBatches);
  EXPECT_EQ(Completed(Direction::kToDevice), others + kBatches);
  EXPECT_TRUE(Read(memory) == RandomBytes(memory.bytes, 20 + kBatches - 1));
}

TEST_P(DriverMemoryTest, SizesThatTheAllocationDoesNotHaveAreRefused) {
  const WorkerMemory& memory = AllocateKind();
  const WorkerMemory& open = AllocateKind();
  const uint64_t address = Open(open);
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, memory.bytes - 1, memory.bytes + 1,
                               memory.bytes + (2 << 20), 2 * memory.bytes}) {
    ExpectRefused(TryOpen(memory, bytes), std::to_string(bytes) + " bytes");
  }
  ExpectExact(open, address);
  ExpectExact(memory, Open(memory));
  ExpectUsable();
}

TEST_P(DriverMemoryTest, ClosedMemoryCanBeOpenedAgain) {
  const WorkerMemory& memory = AllocateKind();
  const WorkerMemory& other = AllocateKind();
  const uint64_t others = Open(other);
  for (uint64_t round = 0; round < 5; ++round) {
    const uint64_t address = Open(memory);
    EXPECT_NE(address, others);
    ExpectExact(memory, address, 5000, round);
    Close(address);
    ExpectExact(other, others, 5000, round);
  }
}

TEST_P(DriverMemoryTest, SmallAllocationsAreApart) {
  // cudaMalloc takes both from one block of 2 MiB.
  const WorkerMemory& first = AllocateKind(4096);
  const WorkerMemory& second = AllocateKind(4096);
  const uint64_t a = Open(first);
  const uint64_t b = Open(second);
  EXPECT_NE(a, b);
  ExpectExact(first, a, 100, 1);
  const std::vector<std::byte> image = Read(first);
  ExpectExact(second, b, 100, 7);
  EXPECT_TRUE(Read(first) == image);
  if (a != 0 && b != 0) Close(a);
  ExpectExact(second, b, 100, 9);
}

TEST_P(DriverMemoryTest, OneThreadOpensAndClosesWhileAnotherCopies) {
  const WorkerMemory& memory = AllocateKind();
  const WorkerMemory& other = AllocateKind();
  const uint64_t address = Open(memory);
  std::atomic<bool> done{false};
  absl::Status failed;
  std::thread mapping([&] {
    for (int round = 0; round < 20; ++round) {
      auto opened = other.fd.valid() ? device().Import(other.fd.get(), other.bytes)
                                     : device().OpenIpc(other.handle, other.bytes);
      failed.Update(opened.ok() ? device().Close(*opened) : opened.status());
    }
    done = true;
  });
  for (uint64_t round = 0; round < 2 || !done; ++round) ExpectExact(memory, address, 5000, round);
  mapping.join();
  EXPECT_TRUE(failed.ok()) << failed;
}

TEST_F(DriverTest, WhatIsNoHandleIsRefused) {
  const WorkerMemory& memory = Allocate(MemoryKind::kIpc);
  std::string noise(memory.handle.size(), '\0');
  std::memcpy(noise.data(), RandomBytes(noise.size(), 3).data(), noise.size());
  const std::string cut = memory.handle.substr(0, memory.handle.size() / 2);
  for (const std::string& handle :
       {std::string(), std::string(64, '\0'), std::string(64, 'x'), noise, cut,
        memory.handle.substr(1), memory.handle + 'x', cut + std::string(cut.size(), '\0')}) {
    ExpectRefused(device().OpenIpc(handle, memory.bytes),
                  "a handle of " + std::to_string(handle.size()) + " bytes");
  }
  ExpectExact(memory, Open(memory));
  ExpectUsable();
}

TEST_F(DriverTest, AHandleOfFreedMemoryIsRefused) {
  const WorkerMemory& memory = Allocate(MemoryKind::kIpc, 4 * kBytes);
  const std::string handle = memory.handle;
  const uint64_t bytes = memory.bytes;
  const uint64_t address = Open(memory);
  ExpectExact(memory, address);
  if (address != 0) Close(address);
  Free(memory);
  ExpectRefused(device().OpenIpc(handle, bytes), "a freed allocation");
  ExpectUsable();
}

// A worker that dies takes its memory with it once nobody else has it open.
TEST_P(DriverMemoryTest, MemoryOfAKilledWorkerStaysUntilItIsClosed) {
  const WorkerMemory& memory = AllocateKind();
  const uint64_t address = Open(memory);
  std::vector<std::byte> image = RandomBytes(memory.bytes, 41);
  Write(memory, image);
  const std::string handle = memory.handle;
  const uint64_t bytes = memory.bytes;
  rig().Kill();
  PinnedMemory host(&driver(), bytes);
  const Fragment whole = {host.bytes().data(), address, bytes};
  ASSERT_NO_FATAL_FAILURE(Copy(Direction::kToHost, {&whole, 1}));
  EXPECT_TRUE(std::ranges::equal(host.bytes(), image));
  ASSERT_NO_FATAL_FAILURE(Copy(Direction::kToDevice, {&whole, 1}));
  Close(address);
  if (!handle.empty()) ExpectRefused(device().OpenIpc(handle, bytes), "a dead worker's");
  ExpectUsable();
}

TEST_F(DriverTest, MemoryOfAnotherDeviceIsRefused) {
  if (driver().devices().size() < 2) GTEST_SKIP() << "there is one GPU";
  auto memory = rig().Allocate(MemoryKind::kIpc, 1, kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  ExpectRefused(device().OpenIpc(memory->handle, memory->bytes), "another device's");
  EXPECT_TRUE(rig().Free(*memory).ok());
  ExpectUsable();
}

TEST_F(DriverTest, DescriptorsThatAreNoAllocationAreRefused) {
  const WorkerMemory& memory = Allocate(MemoryKind::kVmm);
  const UniqueFd memfd(memfd_create("no-allocation", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memfd.get(), 4096), 0);
  const UniqueFd directory(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  for (const int fd : {-1, memfd.get(), directory.get(), null.get(), socket.get()}) {
    ExpectRefused(device().Import(fd, memory.bytes), "descriptor " + std::to_string(fd));
    // It stays the caller's.
    EXPECT_TRUE(fd < 0 || fcntl(fd, F_GETFD) >= 0) << fd;
  }
  ExpectExact(memory, Open(memory));
  EXPECT_GE(fcntl(memory.fd.get(), F_GETFD), 0);
  ExpectUsable();
}

TEST_F(DriverTest, UnpinnedMemoryCanBePinnedAgain) {
  const WorkerMemory& memory = Allocate(MemoryKind::kIpc);
  const uint64_t address = Open(memory);
  const std::span<std::byte> host = MapMemfd(memory.bytes);
  for (uint64_t round = 0; round < 3; ++round) {
    ASSERT_TRUE(driver().Pin(host).ok());
    const std::vector<std::byte> image = RandomBytes(memory.bytes, round);
    std::ranges::copy(image, host.begin());
    const Fragment whole = {host.data(), address, host.size()};
    Copy(Direction::kToDevice, {&whole, 1});
    EXPECT_TRUE(Read(memory) == image);
    driver().Unpin(host);
    // The bytes stay, and are the caller's.
    EXPECT_TRUE(std::ranges::equal(host, image));
  }
  munmap(host.data(), host.size());
}

TEST_F(DriverTest, PinningTwiceLeavesTheFirstPin) {
  const WorkerMemory& memory = Allocate(MemoryKind::kIpc);
  const uint64_t address = Open(memory);
  PinnedMemory host(&driver(), memory.bytes);
  const absl::Status again = driver().Pin(host.bytes());
  EXPECT_TRUE(again.ok() || again.code() == absl::StatusCode::kResourceExhausted) << again;
  const std::vector<std::byte> image = RandomBytes(memory.bytes, 4);
  std::ranges::copy(image, host.bytes().begin());
  const Fragment whole = {host.bytes().data(), address, memory.bytes};
  Copy(Direction::kToDevice, {&whole, 1});
  EXPECT_TRUE(Read(memory) == image);
}

}  // namespace
}  // namespace kvstream::gpu
