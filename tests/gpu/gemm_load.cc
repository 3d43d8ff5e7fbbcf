#include "tests/gpu/gemm_load.h"

#include <cublas_v2.h>
#include <dlfcn.h>

#include <array>
#include <random>
#include <vector>

#include "absl/time/clock.h"
#include "client/cuda/cuda_status.h"

namespace kvstream {
namespace {

using cuda::CurrentDevice;
using cuda::FromCuda;

// Queued at a time: enough that the GPU never waits for the thread.
constexpr int kInFlight = 8;

absl::StatusOr<void*> OpenCublas() {
  for (const char* name : {"libcublas.so.13", "/usr/local/cuda/lib64/libcublas.so.13",
                           "libcublas.so.12", "/usr/local/cuda/lib64/libcublas.so.12"}) {
    // Left open for good: the library does not unload well.
    if (void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return absl::FailedPreconditionError(std::string("load cuBLAS: ") + ::dlerror());
}

absl::Status FromCublas(cublasStatus_t status, const char* operation) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::UnavailableError(std::string(operation) + ": cuBLAS status " +
                                std::to_string(static_cast<int>(status)));
}

}  // namespace

struct GemmLoad::Gpu {
  // The header overloads the name for C++, so its type is written out.
  using GemmEx = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                const void*, const void*, cudaDataType, int, const void*,
                                cudaDataType, int, const void*, void*, cudaDataType, int,
                                cublasComputeType_t, cublasGemmAlgo_t);
  cublasStatus_t (*create)(cublasHandle_t*) = nullptr;
  cublasStatus_t (*destroy)(cublasHandle_t) = nullptr;
  cublasStatus_t (*set_stream)(cublasHandle_t, cudaStream_t) = nullptr;
  GemmEx* gemm = nullptr;

  cublasHandle_t handle = nullptr;
  cudaStream_t stream = nullptr;
  std::array<cudaEvent_t, kInFlight> events = {};
  // a, b and their product.
  std::array<void*, 3> matrices = {};

  ~Gpu() {
    if (handle != nullptr) (void)destroy(handle);
    for (void* matrix : matrices) (void)cudaFree(matrix);
    for (cudaEvent_t event : events) {
      if (event != nullptr) (void)cudaEventDestroy(event);
    }
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
  }

  absl::Status Load();
  absl::Status Open(int size);
  absl::Status Multiply(int size, uint64_t number);
};

absl::Status GemmLoad::Gpu::Load() {
  const auto library = OpenCublas();
  if (!library.ok()) return library.status();
  create = reinterpret_cast<decltype(create)>(::dlsym(*library, "cublasCreate_v2"));
  destroy = reinterpret_cast<decltype(destroy)>(::dlsym(*library, "cublasDestroy_v2"));
  set_stream = reinterpret_cast<decltype(set_stream)>(::dlsym(*library, "cublasSetStream_v2"));
  gemm = reinterpret_cast<GemmEx*>(::dlsym(*library, "cublasGemmEx"));
  if (create != nullptr && destroy != nullptr && set_stream != nullptr && gemm != nullptr) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError("load cuBLAS: it lacks a function");
}

absl::Status GemmLoad::Gpu::Open(int size) {
  cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  for (cudaEvent_t& event : events) {
    if (error != cudaSuccess) break;
    error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync);
  }
  // Values from 1 to 2 of both signs: zeros would draw less power, and so run at another clock.
  std::vector<uint16_t> values(static_cast<size_t>(size) * size);
  std::minstd_rand random(1);
  for (uint16_t& value : values) value = 0x3f80 | (random() & 0x807f);
  for (void*& matrix : matrices) {
    if (error == cudaSuccess) error = cudaMalloc(&matrix, values.size() * sizeof(uint16_t));
    if (error == cudaSuccess) {
      error = cudaMemcpy(matrix, values.data(), values.size() * sizeof(uint16_t),
                         cudaMemcpyHostToDevice);
    }
  }
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error != cudaSuccess) return FromCuda(error, "open GEMM load");
  if (auto s = FromCublas(create(&handle), "create cuBLAS handle"); !s.ok()) return s;
  return FromCublas(set_stream(handle, stream), "set cuBLAS stream");
}

absl::Status GemmLoad::Gpu::Multiply(int size, uint64_t number) {
  const float one = 1;
  const float zero = 0;
  if (auto s =
          FromCublas(gemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, size, size, size, &one, matrices[0],
                          CUDA_R_16BF, size, matrices[1], CUDA_R_16BF, size, &zero, matrices[2],
                          CUDA_R_16BF, size, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                     "multiply");
      !s.ok()) {
    return s;
  }
  return FromCuda(cudaEventRecord(events[number % kInFlight], stream), "multiply: record event");
}

absl::StatusOr<std::unique_ptr<GemmLoad>> GemmLoad::Start(int device, int size) {
  std::unique_ptr<GemmLoad> load(new GemmLoad(device, size));
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  if (auto s = load->gpu_->Load(); !s.ok()) return s;
  if (auto s = load->gpu_->Open(size); !s.ok()) return s;
  load->thread_ = std::thread([l = load.get()] { l->Run(); });
  return load;
}

GemmLoad::GemmLoad(int device, int size)
    : device_(device), size_(size), gpu_(std::make_unique<Gpu>()) {}

GemmLoad::~GemmLoad() {
  (void)Stop();
  const CurrentDevice current(device_);
  gpu_.reset();
}

absl::Status GemmLoad::Stop() {
  stopping_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
  return failure_;
}

double GemmLoad::MeasureRate(absl::Duration time) const {
  const absl::Time begin = absl::Now();
  const uint64_t before = finished();
  absl::SleepFor(time);
  const uint64_t after = finished();
  return static_cast<double>(after - before) / absl::ToDoubleSeconds(absl::Now() - begin);
}

void GemmLoad::Run() {
  failure_ = FromCuda(cudaSetDevice(device_), "run GEMM load: use the device");
  uint64_t queued = 0;
  for (; failure_.ok() && !stopping_.load(std::memory_order_relaxed); ++queued) {
    if (queued >= kInFlight) {
      failure_ = FromCuda(cudaEventSynchronize(gpu_->events[queued % kInFlight]), "multiply: wait");
      if (!failure_.ok()) return;
      finished_.fetch_add(1, std::memory_order_relaxed);
    }
    failure_ = gpu_->Multiply(size_, queued);
  }
  if (failure_.ok()) failure_ = FromCuda(cudaStreamSynchronize(gpu_->stream), "multiply: wait");
}

}  // namespace kvstream
