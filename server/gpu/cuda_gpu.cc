// The driver over the CUDA runtime, whose only user this file is. The runtime is linked statically
// and loads the driver itself, so that a machine without one answers error 35 and no more; the few
// calls that only the driver has are looked up by name.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "server/base/mutex.h"
#include "server/gpu/driver.h"

namespace kvstream::gpu {
namespace {

// More than a copier queues on a stream.
constexpr uint64_t kEvents = 16;
constexpr size_t kProbeBytes = 1 << 20;

std::string Describe(cudaError_t error) {
  return std::string(cudaGetErrorString(error)) + " (CUDA error " + std::to_string(error) + ")";
}

// What CUDA takes as a pointer and this room keeps as a number: it never follows it.
void* Pointer(uint64_t number) {
  return reinterpret_cast<void*>(number);  // NOLINT(performance-no-int-to-ptr)
}

std::string FormatUuid(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::array<char, 3> hex{};
    std::snprintf(hex.data(), hex.size(), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += hex.data();
  }
  return text;
}

// What only the driver has. Null until a driver was found.
struct DriverCalls {
  decltype(&cuMemGetAddressRange) address_range = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&cuMemGetAllocationPropertiesFromHandle) properties = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free_address = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemRelease) release = nullptr;

  cudaError_t Load() {
    cudaError_t error = cudaSuccess;
    const auto find = [&error](const char* name, auto* call) {
      if (error != cudaSuccess) return;
      cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
      void* address = nullptr;
      error = cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found);
      if (error == cudaSuccess && found != cudaDriverEntryPointSuccess) {
        error = cudaErrorSymbolNotFound;
      }
      std::memcpy(call, &address, sizeof(address));
    };
    find("cuMemGetAddressRange", &address_range);
    find("cuMemImportFromShareableHandle", &import_handle);
    find("cuMemGetAllocationPropertiesFromHandle", &properties);
    find("cuMemAddressReserve", &reserve);
    find("cuMemAddressFree", &free_address);
    find("cuMemMap", &map);
    find("cuMemUnmap", &unmap);
    find("cuMemSetAccess", &set_access);
    find("cuMemRelease", &release);
    return error;
  }
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, const DriverCalls* calls) : ordinal_(ordinal), calls_(*calls) {}
  ~CudaDevice() override {
    (void)cudaSetDevice(ordinal_);
    for (Stream& stream : streams_) {
      for (cudaEvent_t event : stream.events) {
        if (event != nullptr) (void)cudaEventDestroy(event);
      }
      if (stream.stream != nullptr) (void)cudaStreamDestroy(stream.stream);
    }
  }

  // Makes the context and the streams, and tries both with a real copy.
  absl::Status Start();

  const std::string& uuid() const override { return uuid_; }
  const std::string& name() const override { return name_; }
  absl::StatusOr<uint64_t> OpenIpc(std::string_view handle, uint64_t bytes) override;
  absl::StatusOr<uint64_t> Import(int fd, uint64_t bytes) override;
  absl::Status Close(uint64_t address) override;
  absl::Status Copy(Direction direction, std::span<const Fragment> fragments) override;
  absl::StatusOr<uint64_t> Completed(Direction direction) override;

 private:
  struct Stream {
    cudaStream_t stream = nullptr;
    std::array<cudaEvent_t, kEvents> events{};
    uint64_t queued = 0;
    uint64_t completed = 0;
  };

  // The error as a status, with CUDA's own state cleared: UNAVAILABLE when the context is broken.
  absl::Status Refused(const std::string& what, cudaError_t error);
  // What a failed copy leaves: no copy that runs.
  absl::Status Lost(cudaError_t error);
  absl::Status CheckOpened(void* memory, uint64_t bytes);
  absl::Status MapImported(CUmemGenericAllocationHandle handle, uint64_t bytes,
                           CUdeviceptr* address);
  absl::Status Probe();
  Stream& StreamOf(Direction direction) {
    return streams_[direction == Direction::kToDevice ? 0 : 1];
  }

  const int ordinal_;
  const DriverCalls& calls_;
  std::string uuid_;
  std::string name_;
  std::array<Stream, 2> streams_;
  absl::flat_hash_map<uint64_t, uint64_t> imported_;  // Bytes by address; the mapping thread's.
  std::vector<void*> destinations_;
  std::vector<const void*> sources_;
  std::vector<size_t> sizes_;
};

absl::Status CudaDevice::Refused(const std::string& what, cudaError_t error) {
  (void)cudaGetLastError();
  const cudaError_t context = cudaStreamQuery(streams_[0].stream);
  (void)cudaGetLastError();
  if (context != cudaSuccess && context != cudaErrorNotReady) {
    return absl::UnavailableError(what + ": " + Describe(context));
  }
  if (error == cudaErrorMemoryAllocation) {
    return absl::ResourceExhaustedError(what + ": " + Describe(error));
  }
  return absl::InvalidArgumentError(what + ": " + Describe(error));
}

absl::Status CudaDevice::Lost(cudaError_t error) {
  for (const Stream& stream : streams_) (void)cudaStreamSynchronize(stream.stream);
  return absl::UnavailableError(uuid_ + ": copy: " + Describe(error));
}

absl::Status CudaDevice::Start() {
  cudaDeviceProp properties{};
  if (const auto error = cudaGetDeviceProperties(&properties, ordinal_); error != cudaSuccess) {
    return absl::UnavailableError("device " + std::to_string(ordinal_) + ": " + Describe(error));
  }
  uuid_ = FormatUuid(properties.uuid);
  name_ = properties.name;
  cudaError_t error = cudaSetDevice(ordinal_);
  for (Stream& stream : streams_) {
    if (error == cudaSuccess) {
      error = cudaStreamCreateWithFlags(&stream.stream, cudaStreamNonBlocking);
    }
    for (cudaEvent_t& event : stream.events) {
      if (error == cudaSuccess) error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    }
  }
  if (error != cudaSuccess) return absl::UnavailableError(uuid_ + ": " + Describe(error));
  return Probe();
}

absl::Status CudaDevice::Probe() {
  void* host = nullptr;
  void* device = nullptr;
  cudaError_t error = cudaMallocHost(&host, 2 * kProbeBytes);
  if (error == cudaSuccess) error = cudaMalloc(&device, kProbeBytes);
  bool same = false;
  if (error == cudaSuccess) {
    auto* bytes = static_cast<unsigned char*>(host);
    for (size_t i = 0; i < kProbeBytes; ++i) bytes[i] = static_cast<unsigned char>(i * 131 >> 3);
    error = cudaMemcpy(device, host, kProbeBytes, cudaMemcpyHostToDevice);
    if (error == cudaSuccess) {
      error = cudaMemcpy(bytes + kProbeBytes, device, kProbeBytes, cudaMemcpyDeviceToHost);
    }
    same = std::memcmp(bytes, bytes + kProbeBytes, kProbeBytes) == 0;
  }
  (void)cudaFree(device);
  (void)cudaFreeHost(host);
  if (error != cudaSuccess) return absl::UnavailableError(uuid_ + ": probe: " + Describe(error));
  if (!same) return absl::UnavailableError(uuid_ + ": probe: a copy changed the bytes");
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> CudaDevice::OpenIpc(std::string_view handle, uint64_t bytes) {
  cudaIpcMemHandle_t raw;
  if (handle.size() != sizeof(raw)) {
    return absl::InvalidArgumentError("cuda_ipc_handle: " + std::to_string(handle.size()) +
                                      " bytes, and a handle has " + std::to_string(sizeof(raw)));
  }
  std::memcpy(&raw, handle.data(), sizeof(raw));
  (void)cudaSetDevice(ordinal_);
  void* memory = nullptr;
  const auto error = cudaIpcOpenMemHandle(&memory, raw, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    return Refused("cuda_ipc_handle: no live allocation of another process", error);
  }
  if (auto status = CheckOpened(memory, bytes); !status.ok()) {
    (void)cudaIpcCloseMemHandle(memory);
    (void)cudaGetLastError();
    return status;
  }
  return reinterpret_cast<uint64_t>(memory);
}

absl::Status CudaDevice::CheckOpened(void* memory, uint64_t bytes) {
  cudaPointerAttributes attributes{};
  if (const auto error = cudaPointerGetAttributes(&attributes, memory); error != cudaSuccess) {
    return Refused("cuda_ipc_handle", error);
  }
  if (attributes.type != cudaMemoryTypeDevice || attributes.device != ordinal_) {
    return absl::InvalidArgumentError("cuda_ipc_handle: memory of device " +
                                      std::to_string(attributes.device) + ", not of " + uuid_);
  }
  CUdeviceptr base = 0;
  size_t size = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  if (calls_.address_range(&base, &size, address) != CUDA_SUCCESS || base != address ||
      size != bytes) {
    return absl::InvalidArgumentError("allocation_bytes: " + std::to_string(bytes) +
                                      ", and the allocation has " + std::to_string(size));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> CudaDevice::Import(int fd, uint64_t bytes) {
  (void)cudaSetDevice(ordinal_);
  CUmemGenericAllocationHandle handle = 0;
  void* shareable = Pointer(static_cast<uint64_t>(fd));  // That is how the driver takes it.
  if (const auto error =
          calls_.import_handle(&handle, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      error != CUDA_SUCCESS) {
    return Refused("handoff_memory_id: the descriptor is no exported allocation",
                   static_cast<cudaError_t>(error));
  }
  CUmemAllocationProp properties{};
  absl::Status status;
  if (calls_.properties(&properties, handle) != CUDA_SUCCESS ||
      properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      properties.location.id != ordinal_) {
    status = absl::InvalidArgumentError("handoff_memory_id: not memory of " + uuid_);
  }
  CUdeviceptr address = 0;
  if (status.ok()) status = MapImported(handle, bytes, &address);
  (void)calls_.release(handle);  // A mapping keeps the memory.
  if (!status.ok()) return status;
  imported_[address] = bytes;
  return address;
}

absl::Status CudaDevice::MapImported(CUmemGenericAllocationHandle handle, uint64_t bytes,
                                     CUdeviceptr* address) {
  const std::string what =
      "allocation_bytes: " + std::to_string(bytes) + " bytes of the allocation cannot be mapped";
  CUresult error = calls_.reserve(address, bytes, 0, 0, 0);
  if (error != CUDA_SUCCESS) return Refused(what, static_cast<cudaError_t>(error));
  error = calls_.map(*address, bytes, 0, handle, 0);
  if (error == CUDA_SUCCESS) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = ordinal_;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    error = calls_.set_access(*address, bytes, &access, 1);
    if (error != CUDA_SUCCESS) (void)calls_.unmap(*address, bytes);
  }
  if (error == CUDA_SUCCESS) return absl::OkStatus();
  (void)calls_.free_address(*address, bytes);
  return Refused(what, static_cast<cudaError_t>(error));
}

absl::Status CudaDevice::Close(uint64_t address) {
  (void)cudaSetDevice(ordinal_);
  const auto imported = imported_.find(address);
  if (imported == imported_.end()) {
    const auto error = cudaIpcCloseMemHandle(Pointer(address));
    return error == cudaSuccess ? absl::OkStatus() : Refused("close", error);
  }
  const uint64_t bytes = imported->second;
  imported_.erase(imported);
  const CUresult error = calls_.unmap(address, bytes);
  (void)calls_.free_address(address, bytes);
  return error == CUDA_SUCCESS ? absl::OkStatus()
                               : Refused("close", static_cast<cudaError_t>(error));
}

absl::Status CudaDevice::Copy(Direction direction, std::span<const Fragment> fragments) {
  (void)cudaSetDevice(ordinal_);
  const bool in = direction == Direction::kToDevice;
  destinations_.clear();
  sources_.clear();
  sizes_.clear();
  for (const auto& [host, device, bytes] : fragments) {
    destinations_.push_back(in ? Pointer(device) : host);
    sources_.push_back(in ? host : Pointer(device));
    sizes_.push_back(bytes);
  }
  Stream& stream = StreamOf(direction);
  if (stream.queued - stream.completed == kEvents) {
    (void)cudaEventSynchronize(stream.events[stream.completed % kEvents]);
    if (auto completed = Completed(direction); !completed.ok()) return completed.status();
  }
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;
  cudaError_t error =
      fragments.size() == 1
          ? cudaMemcpyAsync(destinations_[0], sources_[0], sizes_[0],
                            in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream.stream)
          : cudaMemcpyBatchAsync(destinations_.data(), sources_.data(), sizes_.data(),
                                 sizes_.size(), &attributes, &first, 1, stream.stream);
  if (error == cudaSuccess) {
    error = cudaEventRecord(stream.events[stream.queued % kEvents], stream.stream);
  }
  // Every address was checked when its memory was opened: what fails here is the GPU.
  if (error != cudaSuccess) return Lost(error);
  stream.queued += 1;
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> CudaDevice::Completed(Direction direction) {
  (void)cudaSetDevice(ordinal_);
  Stream& stream = StreamOf(direction);
  while (true) {  // Past the last one an old event is asked: for the device's error.
    const auto error = cudaEventQuery(stream.events[stream.completed % kEvents]);
    if (error != cudaSuccess && error != cudaErrorNotReady) return Lost(error);
    if (error != cudaSuccess || stream.completed == stream.queued) return stream.completed;
    stream.completed += 1;
  }
}

class CudaDriver final : public Driver {
 public:
  CudaDriver();

  std::vector<Device*> devices() override {
    std::vector<Device*> all;
    for (const auto& device : devices_) all.push_back(device.get());
    return all;
  }
  const std::string& reason() const override { return reason_; }
  const std::vector<std::string>& unused() const override { return unused_; }
  absl::Status Pin(std::span<std::byte> memory) override;
  void Unpin(std::span<std::byte> memory) override { (void)cudaHostUnregister(memory.data()); }

 private:
  DriverCalls calls_;
  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::string reason_;
  std::vector<std::string> unused_;
};

CudaDriver::CudaDriver() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) error = calls_.Load();
  if (error != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    int version = 0;
    (void)cudaDriverGetVersion(&version);
    reason_ = "no GPU: " + (version == 0           ? "no NVIDIA driver"
                            : error == cudaSuccess ? "CUDA sees no device"
                                                   : Describe(error));
    return;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    auto device = std::make_unique<CudaDevice>(ordinal, &calls_);
    if (const auto status = device->Start(); status.ok()) {
      devices_.push_back(std::move(device));
    } else {
      (void)cudaGetLastError();
      unused_.emplace_back(status.message());
    }
  }
  if (devices_.empty()) reason_ = "no GPU: " + unused_.back();
}

absl::Status CudaDriver::Pin(std::span<std::byte> memory) {
  const auto error = cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable);
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();
  return absl::ResourceExhaustedError("pin " + std::to_string(memory.size()) +
                                      " bytes: " + Describe(error));
}

}  // namespace

std::unique_ptr<Driver> OpenDriver() { return std::make_unique<CudaDriver>(); }

}  // namespace kvstream::gpu
