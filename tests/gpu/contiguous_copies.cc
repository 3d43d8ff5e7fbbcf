#include "tests/gpu/contiguous_copies.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/time/clock.h"

namespace kvstream {
namespace {

constexpr size_t kBytes = 16 * 1024 * 1024;
// Copies between two looks at the clock.
constexpr int kCopies = 16;

}  // namespace

struct ContiguousCopies::Memory {
  ~Memory() {
    (void)cudaFree(device);
    (void)cudaFreeHost(host);
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
  }

  void* device = nullptr;
  void* host = nullptr;
  cudaStream_t stream = nullptr;
};

ContiguousCopies::ContiguousCopies(std::unique_ptr<Memory> memory) : memory_(std::move(memory)) {}

ContiguousCopies::~ContiguousCopies() = default;

absl::StatusOr<std::unique_ptr<ContiguousCopies>> ContiguousCopies::Create() {
  auto memory = std::make_unique<Memory>();
  cudaError_t error = cudaMalloc(&memory->device, kBytes);
  if (error == cudaSuccess) error = cudaMallocHost(&memory->host, kBytes);
  if (error == cudaSuccess) {
    error = cudaStreamCreateWithFlags(&memory->stream, cudaStreamNonBlocking);
  }
  if (error != cudaSuccess) return absl::InternalError(cudaGetErrorString(error));
  return std::unique_ptr<ContiguousCopies>(new ContiguousCopies(std::move(memory)));
}

double ContiguousCopies::Measure(bool in, absl::Duration time) const {
  const Memory& memory = *memory_;
  const absl::Time begun = absl::Now();
  double bytes = 0;
  while (absl::Now() - begun < time) {
    for (int i = 0; i < kCopies; ++i) {
      (void)cudaMemcpyAsync(in ? memory.device : memory.host, in ? memory.host : memory.device,
                            kBytes, in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                            memory.stream);
      bytes += kBytes;
    }
    if (cudaStreamSynchronize(memory.stream) != cudaSuccess) return 0;
  }
  return bytes / absl::ToDoubleSeconds(absl::Now() - begun) / 1e9;
}

}  // namespace kvstream
