// How long a model's prefill and decode take on its GPUs, and how many bytes its KV has: a roofline
// from the model's published shape and the GPU's published limits.
//
// Stateless; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvstream::sim {

struct Gpu {
  const char* name;
  double flops;             // Dense bf16.
  double bytes_per_second;  // Of its memory.
  double memory_bytes;
  double link_bytes_per_second;  // To host memory, one direction.
};

struct Model {
  const char* name;
  double parameters;
  uint32_t layers;
  uint32_t hidden;
  uint32_t kv_heads;
  uint32_t head_dim;
};

// Numbers beside each in gpu_model.cc, with their source. Nothing for a name that is not known.
std::optional<Gpu> FindGpu(std::string_view name);
std::optional<Model> FindModel(std::string_view name);

class GpuModel {
 public:
  // `gpus` serve the model together (tensor parallel).
  GpuModel(const Model& model, const Gpu& gpu, uint32_t gpus)
      : model_(model), gpu_(gpu), gpus_(gpus) {}

  // Keys and values of one token, all layers, two bytes a number.
  uint64_t kv_bytes_per_token() const {
    return 2ull * 2 * model_.layers * model_.kv_heads * model_.head_dim;
  }
  // Of `fresh` tokens behind `cached` ones.
  double PrefillSeconds(uint64_t fresh, uint64_t cached) const;
  // Of one token of each of `batch` requests, which together have `context` tokens.
  double DecodeSeconds(uint64_t batch, uint64_t context) const;
  // What is left for KV beside the weights.
  uint64_t kv_memory_bytes() const;
  // From host memory to all GPUs.
  double link_bytes_per_second() const { return gpu_.link_bytes_per_second * gpus_; }

 private:
  const Model model_;
  const Gpu gpu_;
  const uint32_t gpus_;
};

}  // namespace kvstream::sim
