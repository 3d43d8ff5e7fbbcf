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
      host_(options.host_cache_bytes / chunk_bytes) {
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
  InstanceOf(request->session).Submit(request);
}

Node::Instance& Node::InstanceOf(uint64_t session) {
  const auto fresh = static_cast<uint32_t>(instance_of_.size() % instances_.size());
  return *instances_[instance_of_.try_emplace(session, fresh).first->second];
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

Storage::Request Node::NextToPreload(const Instance& instance) const {
  const size_t most = kPreloadBytes / chunk_bytes_ + 1;
  for (const Instance::Job& job : instance.queue()) {
    Storage::Request chunks;
    for (const uint64_t chunk : job.request->chunks) {
      if (instance.gpu().Has(chunk) || host_.Has(chunk) || preloaded_.contains(chunk)) continue;
      if (!storage_->Has(chunk) || chunks.size() == most) break;
      chunks.push_back(chunk);
    }
    if (!chunks.empty()) return chunks;
  }
  return {};
}

void Node::MaybePreload() {
  if (!options_.preload || !options_.use_storage || storage_->reading()) return;
  if (preloaded_.size() * chunk_bytes_ >= options_.preload_bytes) return;
  for (size_t n = 0; n < instances_.size(); ++n) {
    const Instance& instance = *instances_[preload_next_++ % instances_.size()];
    const Storage::Request chunks = NextToPreload(instance);
    if (chunks.empty()) continue;
    preload_ = storage_->Read({chunks}, [this, chunks, number = ++preload_number_] {
      if (number != preload_number_) return;  // Stopped.
      preload_ = OperationId{};
      preloaded_.insert(chunks.begin(), chunks.end());
      stats_.preloaded_chunks += chunks.size();
      MaybePreload();
    });
    return;
  }
}

void Node::StopPreload() {
  if (preload_.value == 0) return;
  preload_number_ += 1;
  storage_->Cancel(std::exchange(preload_, OperationId{}));
}

}  // namespace kvstream::sim
