// CUDA's errors as absl::Status, the driver's functions without linking libcuda, and a device made
// current for a while.
//
// Thread rule: any thread; the current device is the thread's own.
// Errors: RESOURCE_EXHAUSTED for too little memory, FAILED_PRECONDITION without a driver or a GPU,
// UNAVAILABLE otherwise.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvstream::cuda {

// "<operation>: <CUDA's name and words>". Clears the thread's error state: a failure that was told
// must not come up again in somebody else's check.
absl::Status FromCuda(cudaError_t error, std::string_view operation);
absl::Status FromDriver(CUresult result, std::string_view operation);

// The driver's function of that name with the ABI of `version`, such as 12000.
absl::StatusOr<void*> DriverFunction(const char* name, unsigned version);

// As above into a pointer of type decltype(cuMemCreate)*, which refers to no symbol of libcuda.
template <typename Function>
absl::Status GetDriverFunction(const char* name, unsigned version, Function** function) {
  const absl::StatusOr<void*> found = DriverFunction(name, version);
  if (found.ok()) *function = reinterpret_cast<Function*>(*found);
  return found.status();
}

// Makes a device current, and at its end the one that was, if that one is in use.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  // Whether the device is current.
  const absl::Status& status() const { return status_; }

 private:
  const int device_;
  int before_ = -1;
  absl::Status status_;
};

}  // namespace kvstream::cuda
