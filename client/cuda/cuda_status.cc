#include "client/cuda/cuda_status.h"

#include <string>

namespace kvstream::cuda {

absl::Status FromCuda(cudaError_t error, std::string_view operation) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();
  const std::string text =
      std::string(operation) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error);
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(text);
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
      return absl::FailedPreconditionError(text);
    default:
      return absl::UnavailableError(text);
  }
}

absl::Status FromDriver(CUresult result, std::string_view operation) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  // The runtime's errors have the driver's numbers.
  return FromCuda(static_cast<cudaError_t>(result), operation);
}

absl::StatusOr<void*> DriverFunction(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const std::string operation = std::string("find driver function ") + name;
  if (auto s = FromCuda(
          cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found),
          operation);
      !s.ok()) {
    return s;
  }
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return absl::FailedPreconditionError(operation + ": the driver does not have it");
  }
  return function;
}

CurrentDevice::CurrentDevice(int device) : device_(device) {
  status_ = FromCuda(cudaGetDevice(&before_), "get current device");
  if (!status_.ok()) return;
  // The first use of a device creates its context, which the driver's functions need.
  status_ = FromCuda(cudaSetDevice(device), "use device " + std::to_string(device));
}

CurrentDevice::~CurrentDevice() {
  if (before_ < 0 || before_ == device_) return;
  // A device that the thread had by default and nobody used would get a context from this.
  decltype(cuDevicePrimaryCtxGetState)* get_state = nullptr;
  unsigned flags = 0;
  int active = 0;
  if (!GetDriverFunction("cuDevicePrimaryCtxGetState", 12000, &get_state).ok()) return;
  if (get_state(before_, &flags, &active) != CUDA_SUCCESS || active == 0) return;
  (void)cudaSetDevice(before_);
}

}  // namespace kvstream::cuda
