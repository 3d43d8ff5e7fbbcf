#include "bench/sim/node.h"

#include <utility>

#include "bench/sim/instance.h"

namespace kvstream::sim {
namespace {

// That a preload reads at a time: what demand that comes meanwhile may find in its way.
constexpr uint64_t kPreloadBytes = 512 * kMiB;

}  // namespace

Node::Node(const NodeOptions& options, const GpuModel* model, EventQueue* events, Storage* storage,
           uint64_t chunk_bytes, std::vector<Bandwidth*> tiers)
    : options_(options),
      model_(model),
      events_(events),
      storage_(storage),
      chunk_bytes_(chunk_bytes),
      tiers_(std::move(tiers)),
      host_(options.host_cache_bytes / chunk_bytes),
      preloaded_(options.preload ? options.preload_bytes / chunk_bytes : 0) {
  for (uint32_t i = 0; i < options.instances; ++i) {
    instances_.push_back(std::make_unique<Instance>(this));
  }
}

Node::~Node() = default;

void Node::Arrive(const SimRequest* request) {
  unfinished_ += 1;
  Session& session = sessions_[request->session];
  if (session.busy) {
    session.waiting.push_back(request);
    return;
  }
  session.busy = true;
  instances_[request->session % instances_.size()]->Submit(request);
}

void Node::Finish(const SimRequest& request) {
  unfinished_ -= 1;
  stats_.last_end = events_->now();
  const auto it = sessions_.find(request.session);
  if (it->second.waiting.empty()) {
    sessions_.erase(it);
    return;
  }
  const SimRequest* next = it->second.waiting.front();
  it->second.waiting.pop_front();
  // Not from within the instance that has just ended a request.
  events_->At(events_->now(),
              [this, next] { instances_[next->session % instances_.size()]->Submit(next); });
}

void Node::MaybePreload() {
  if (!options_.preload || !options_.use_storage || storage_->reading()) return;
  const size_t most = kPreloadBytes / chunk_bytes_ + 1;
  for (const auto& instance : instances_) {
    for (const Instance::Job& job : instance->queue()) {
      Storage::Request chunks;
      for (const uint64_t chunk : job.request->chunks) {
        if (instance->gpu().Has(chunk) || host_.Has(chunk) || preloaded_.Has(chunk)) continue;
        if (!storage_->Has(chunk) || chunks.size() == most) break;
        chunks.push_back(chunk);
      }
      if (chunks.empty()) continue;
      preload_ = storage_->Read({chunks}, [this, chunks, number = ++preload_number_] {
        if (number != preload_number_) return;  // Stopped.
        preload_ = OperationId{};
        for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) preloaded_.Use(*chunk);
        stats_.preloaded_chunks += chunks.size();
        MaybePreload();
      });
      return;
    }
  }
}

void Node::StopPreload() {
  if (preload_.value == 0) return;
  preload_number_ += 1;
  storage_->Cancel(std::exchange(preload_, OperationId{}));
}

}  // namespace kvstream::sim
