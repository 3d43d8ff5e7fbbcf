#include "server/rpc/gpu_report.h"

namespace kvstream::rpc {

void FillGpus(const gpu::Gpus* gpus, v1::Status* status) {
  for (size_t i = 0; gpus != nullptr && i < gpus->unused().size(); ++i) {
    status->add_conditions("a GPU is not used: " + gpus->unused()[i]);
  }
  if (gpus == nullptr || gpus->size() == 0) {
    status->set_gpu_reason(gpus == nullptr ? "no GPU" : gpus->reason());
    return;
  }
  for (size_t i = 0; i < gpus->size(); ++i) {
    const gpu::DeviceStats& stats = gpus->stats(i);
    v1::GpuStatus* out = status->add_gpus();
    out->set_uuid(gpus->uuid(i));
    out->set_name(gpus->name(i));
    out->set_usable(stats.usable.Get() != 0);
    out->set_hung(stats.hung.Get() != 0);
    out->set_regions(stats.regions.Get());
    out->set_mapped_bytes(stats.mapped_bytes.Get());
    out->set_bytes_in(stats.bytes_in.Get());
    out->set_bytes_out(stats.bytes_out.Get());
    out->set_queued_bytes(stats.queued_bytes.Get());
    out->set_fragments(stats.fragments.Get());
    out->set_batches(stats.batches.Get());
    out->set_unclosed(stats.unclosed.Get());
  }
}

void FillRegions(const engine::EngineStats& stats, v1::RegionsStatus* regions) {
  regions->set_open(stats.regions.Get());
  regions->set_landing(stats.landing_regions.Get());
  regions->set_parts_overdue(stats.landing_parts_overdue.Get());
  regions->set_landing_timeouts(stats.landing_timeouts.Get());
}

std::vector<std::string> GpusOut(const gpu::Gpus* gpus) {
  std::vector<std::string> lost;
  for (size_t i = 0; gpus != nullptr && i < gpus->size(); ++i) {
    const gpu::DeviceStats& stats = gpus->stats(i);
    if (stats.usable.Get() == 0) {
      lost.push_back("GPU " + gpus->uuid(i) + " is lost after a CUDA error: restart the daemon");
    } else if (stats.hung.Get() != 0) {
      lost.push_back("GPU " + gpus->uuid(i) + " hangs: its copies do not end");
    }
  }
  return lost;
}

}  // namespace kvstream::rpc
