#include "bench/sim/gpu_model.h"

#include <algorithm>

namespace kvstream::sim {
namespace {

// Parts of the limits that engines reach in prefill and decode, and what each costs beside. Not
// measured here: the usual range is 0.4 to 0.6, 0.6 to 0.8, and a few ms.
constexpr double kFlopsReached = 0.5;
constexpr double kMemoryReached = 0.7;
constexpr double kStepSeconds = 0.004;
// Of the GPU's memory, for weights and KV.
constexpr double kMemoryUsed = 0.9;

// NVIDIA's data sheets: A100 40 GB (PCIe 4 x16), H100 SXM and H200 (PCIe 5 x16).
constexpr Gpu kGpus[] = {
    {"a100-40", 312e12, 1.555e12, 40e9, 25e9},
    {"h100", 989e12, 3.35e12, 80e9, 54e9},
    {"h200", 989e12, 4.8e12, 141e9, 54e9},
};

// The models' config.json, as published with the weights.
constexpr Model kModels[] = {
    {"8b", 8.0e9, 32, 4096, 8, 128},    // Llama 3.1 8B
    {"14b", 14.8e9, 48, 5120, 8, 128},  // Qwen2.5 14B
    {"32b", 32.8e9, 64, 5120, 8, 128},  // Qwen2.5 32B
    {"70b", 70.6e9, 80, 8192, 8, 128},  // Llama 3.1 70B
    {"110b", 111e9, 80, 8192, 8, 128},  // Qwen1.5 110B
};

template <typename T, size_t N>
std::optional<T> Find(const T (&table)[N], std::string_view name) {
  for (const T& entry : table) {
    if (entry.name == name) return entry;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Gpu> FindGpu(std::string_view name) { return Find(kGpus, name); }
std::optional<Model> FindModel(std::string_view name) { return Find(kModels, name); }

double GpuModel::PrefillSeconds(uint64_t fresh, uint64_t cached) const {
  if (fresh == 0) return 0;
  const auto n = static_cast<double>(fresh);
  // Every weight once a token; of attention, scores and values against all tokens before.
  const double linear = 2 * model_.parameters * n;
  const double attention =
      4.0 * model_.layers * model_.hidden * n * (static_cast<double>(cached) + n / 2);
  return kStepSeconds + (linear + attention) / (gpu_.flops * kFlopsReached * gpus_);
}

double GpuModel::DecodeSeconds(uint64_t batch, uint64_t context) const {
  const double weights = 2 * model_.parameters;
  const double kv = static_cast<double>(context * kv_bytes_per_token());
  const double memory = (weights + kv) / (gpu_.bytes_per_second * kMemoryReached * gpus_);
  const double math =
      2 * model_.parameters * static_cast<double>(batch) / (gpu_.flops * kFlopsReached * gpus_);
  return kStepSeconds + std::max(memory, math);
}

uint64_t GpuModel::kv_memory_bytes() const {
  const double left = gpu_.memory_bytes * kMemoryUsed * gpus_ - 2 * model_.parameters;
  return static_cast<uint64_t>(std::max(0.0, left));
}

}  // namespace kvstream::sim
