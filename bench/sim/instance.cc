#include "bench/sim/instance.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "bench/sim/event_queue.h"

namespace kvstream::sim {
Node::Instance::Instance(Node* node)
    : node_(node),
      tokens_max_(node->model_->kv_memory_bytes() / node->model_->kv_bytes_per_token()),
      gpu_(tokens_max_ / node->options_.chunk_tokens) {}

void Node::Instance::Submit(const SimRequest* request) {
  queue_.push_back(Job{.request = request, .released = now()});
  if (decoding_) Interrupt();
  if (look_due_) return;
  look_due_ = true;
  // Once all that comes at this time is queued.
  node_->events_->At(now(), [this] {
    look_due_ = false;
    Advance();
    node_->MaybePreload();
  });
}

void Node::Instance::Advance() {
  if (!step_.empty() || decoding_) return;
  step_ = TakeStep();
  if (!step_.empty()) {
    BeginStep();
  } else if (!running_.empty()) {
    Decode();
  }
}

std::vector<Node::Instance::Job> Node::Instance::TakeStep() {
  uint64_t held = 0;
  for (const Job& job : running_) held += TokensOf(job);
  uint64_t fresh = 0;
  std::vector<Job> step;
  while (!queue_.empty() && running_.size() + step.size() < node_->options_.running_max) {
    const Job& next = queue_.front();
    const bool first = step.empty() && running_.empty();
    if (!first && held + TokensOf(next) > tokens_max_) break;
    // What it has to compute is known once it is planned; at most what no cache knows now.
    const std::vector<uint64_t>& chunks = next.request->chunks;
    const auto unknown = std::find_if(chunks.begin(), chunks.end(), [this](uint64_t c) {
      return !gpu_.Has(c) && !node_->host_.Has(c) && !node_->preloaded_.contains(c) &&
             !(node_->options_.use_storage && node_->storage_->Has(c));
    });
    const uint64_t cached =
        static_cast<uint64_t>(unknown - chunks.begin()) * node_->options_.chunk_tokens;
    fresh += next.request->input_tokens - std::min<uint64_t>(cached, next.request->input_tokens);
    if (!step.empty() && fresh > node_->options_.step_tokens) break;
    held += TokensOf(next);
    step.push_back(next);
    queue_.pop_front();
  }
  return step;
}

void Node::Instance::BeginStep() {
  node_->StopPreload();
  load_began_ = now();
  uint64_t host_bytes = 0;
  std::vector<Storage::Request> reads;
  for (Job& job : step_) {
    Storage::Request request = Plan(job, &host_bytes);
    if (!request.empty()) reads.push_back(std::move(request));
  }
  loads_left_ = 1;
  if (!reads.empty()) {
    loads_left_ += 1;
    if (!node_->tiers_.empty()) {
      const size_t bytes = node_->storage_->OnTiers(reads).size() * node_->chunk_bytes_;
      node_->stats_.bound_seconds += BoundSeconds(node_->tiers_, now(), static_cast<double>(bytes));
    }
    node_->storage_->Read(reads, [this] { Loaded(); });
  }
  const double link = static_cast<double>(host_bytes) / node_->model_->link_bytes_per_second();
  node_->events_->At(now() + ToNs(link), [this] { Loaded(); });
}

Storage::Request Node::Instance::Plan(Job& job, uint64_t* host_bytes) {
  NodeStats& stats = node_->stats_;
  const std::vector<uint64_t>& chunks = job.request->chunks;
  Storage::Request reads;
  size_t i = 0;
  for (; i < chunks.size(); ++i) {
    const uint64_t chunk = chunks[i];
    if (gpu_.Has(chunk)) {
      stats.gpu_hit_chunks += 1;
    } else if (node_->preloaded_.erase(chunk) > 0 || node_->host_.Has(chunk)) {
      stats.host_hit_chunks += 1;
      *host_bytes += node_->chunk_bytes_;
    } else if (node_->options_.use_storage && node_->storage_->Has(chunk)) {
      reads.push_back(chunk);
    } else {
      break;
    }
  }
  // The last token is computed always.
  if (i * node_->options_.chunk_tokens >= job.request->input_tokens && i > 0) {
    i -= 1;
    if (!reads.empty() && reads.back() == chunks[i]) reads.pop_back();
  }
  if (node_->options_.break_even && !reads.empty()) {
    const size_t first = i - reads.size();  // What follows is read, as caches keep heads longest.
    if (!WorthLoading(job, first, reads)) {
      stats.declined_chunks += reads.size();
      i = first;
      reads.clear();
    }
  }
  stats.storage_hit_chunks += reads.size();
  job.cached_chunks = i;
  return reads;
}

bool Node::Instance::WorthLoading(const Job& job, size_t cached,
                                  const Storage::Request& reads) const {
  const uint64_t tokens = node_->options_.chunk_tokens;
  const auto seconds = [&](size_t chunks) {
    return node_->model_->PrefillSeconds(job.request->input_tokens - chunks * tokens,
                                         chunks * tokens);
  };
  return node_->storage_->ExpectedSeconds(reads) < seconds(cached) - seconds(cached + reads.size());
}

void Node::Instance::Loaded() {
  if (--loads_left_ > 0) return;
  node_->stats_.load_seconds += static_cast<double>(now() - load_began_) / 1e9;
  double seconds = 0;
  for (const Job& job : step_) {
    const uint64_t cached = job.cached_chunks * node_->options_.chunk_tokens;
    const uint64_t fresh = job.request->input_tokens - cached;
    seconds += node_->model_->PrefillSeconds(fresh, cached);
    node_->stats_.computed_tokens += fresh;
  }
  node_->stats_.prefill_seconds += seconds;
  node_->events_->At(now() + ToNs(seconds), [this] { Prefilled(); });
  node_->MaybePreload();
}

void Node::Instance::Prefilled() {
  for (Job& job : step_) {
    NodeStats& stats = node_->stats_;
    stats.first_token_seconds.push_back(static_cast<double>(now() - job.released) / 1e9);
    stats.input_tokens += job.request->input_tokens;
    Keep(job.request->chunks);
    job.tokens_left = job.request->output_tokens;
    running_.push_back(job);
  }
  step_.clear();
  Decoded(0);
}

void Node::Instance::Keep(const std::vector<uint64_t>& chunks) {
  std::for_each(chunks.rbegin(), chunks.rend(), [this](uint64_t chunk) {
    gpu_.Use(chunk);
    node_->host_.Use(chunk);
  });
  if (node_->options_.use_storage) node_->storage_->Store(chunks);
}

void Node::Instance::Decode() {
  uint64_t context = 0;
  uint64_t tokens = UINT64_MAX;
  for (const Job& job : running_) {
    context += TokensOf(job) - job.tokens_left;
    tokens = std::min(tokens, job.tokens_left);
  }
  token_seconds_ = node_->model_->DecodeSeconds(running_.size(), context);
  decoding_ = true;
  interrupted_ = false;
  decode_began_ = now();
  const double seconds = token_seconds_ * static_cast<double>(tokens);
  node_->events_->At(now() + ToNs(seconds), [this, number = ++decode_number_, tokens] {
    if (number == decode_number_) Decoded(tokens);
  });
  node_->MaybePreload();
}

void Node::Instance::Interrupt() {
  if (interrupted_) return;
  interrupted_ = true;
  // At the end of the token at hand.
  const double past = static_cast<double>(now() - decode_began_) / 1e9;
  uint64_t tokens = UINT64_MAX;
  for (const Job& job : running_) tokens = std::min(tokens, job.tokens_left);
  tokens = std::min(tokens, static_cast<uint64_t>(past / token_seconds_) + 1);
  const TimeNs end = decode_began_ + ToNs(token_seconds_ * static_cast<double>(tokens));
  node_->events_->At(std::max(now(), end), [this, number = ++decode_number_, tokens] {
    if (number == decode_number_) Decoded(tokens);
  });
}

void Node::Instance::Decoded(uint64_t tokens) {
  decoding_ = false;
  std::vector<Job> ended;
  for (Job& job : running_) {
    job.tokens_left -= std::min(tokens, job.tokens_left);
    if (job.tokens_left == 0) ended.push_back(job);
  }
  std::erase_if(running_, [](const Job& job) { return job.tokens_left == 0; });
  for (const Job& job : ended) {
    node_->stats_.output_tokens += job.request->output_tokens;
    Keep(job.request->made);
    node_->Finish(*job.request);
  }
  Advance();
}

}  // namespace kvstream::sim
