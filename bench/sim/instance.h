// One engine on its GPUs. Private to the node.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "bench/sim/node.h"

namespace kvstream::sim {

class Node::Instance {
 public:
  // What is known of a queued or running request.
  struct Job {
    const SimRequest* request = nullptr;
    TimeNs released = 0;
    size_t cached_chunks = 0;  // Of the prompt, when its step began.
    uint64_t tokens_left = 0;  // To decode.
  };

  explicit Instance(Node* node);

  void Submit(const SimRequest* request);
  const std::deque<Job>& queue() const { return queue_; }
  const ChunkCache& gpu() const { return gpu_; }

 private:
  void Advance();
  // Takes jobs from the queue that a step has room for.
  std::vector<Job> TakeStep();
  void BeginStep();
  // Which leading chunks of the job are cached, and which of them storage has to read.
  Storage::Request Plan(Job& job, uint64_t* host_bytes);
  // Whether these chunks, which follow `cached` ones, are sooner loaded than computed.
  bool WorthLoading(const Job& job, size_t cached, const Storage::Request& reads) const;
  void Loaded();
  void Prefilled();
  void Decode();
  void Interrupt();
  void Decoded(uint64_t tokens);
  // Keeps chunks in the caches, the first ones longest.
  void Keep(const std::vector<uint64_t>& chunks);
  uint64_t TokensOf(const Job& job) const {
    return job.request->input_tokens + job.request->output_tokens;
  }
  TimeNs now() const { return node_->events_->now(); }

  Node* const node_;
  const uint64_t tokens_max_;  // That the GPUs hold.
  ChunkCache gpu_;
  std::deque<Job> queue_;
  std::vector<Job> step_;  // Being loaded or computed.
  std::vector<Job> running_;
  bool look_due_ = false;  // At what was submitted.
  uint32_t loads_left_ = 0;
  TimeNs load_began_ = 0;
  // Of the decoding in progress.
  bool decoding_ = false;
  bool interrupted_ = false;
  TimeNs decode_began_ = 0;
  double token_seconds_ = 0;
  uint64_t decode_number_ = 0;
};

}  // namespace kvstream::sim
