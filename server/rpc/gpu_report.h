// What the status says of the GPUs. `gpus` may be null: then there are none. Thread rule: any
// thread; nothing blocks.
#pragma once

#include <string>
#include <vector>

#include "kvstream/v1/admin.pb.h"
#include "server/engine/stats.h"
#include "server/gpu/gpu.h"

namespace kvstream::rpc {

void FillGpus(const gpu::Gpus* gpus, v1::Status* status);
void FillRegions(const engine::EngineStats& stats, v1::RegionsStatus* regions);

// A sentence for each GPU that is lost or hangs. While there is one the daemon is not ready.
std::vector<std::string> GpusOut(const gpu::Gpus* gpus);

}  // namespace kvstream::rpc
