#include "client/replay/generator.h"

#include <cstddef>
#include <utility>

namespace kvstream::replay {
namespace {

constexpr size_t kSystemPrompts = 4;
constexpr size_t kConversations = 16;

// SplitMix64: the standard library's distributions differ between implementations.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // Within min .. max.
  uint64_t Pick(uint64_t min, uint64_t max) {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return min + (z ^ (z >> 31)) % (max - min + 1);
  }

 private:
  uint64_t state_;
};

struct Conversation {
  std::vector<uint64_t> ids;
  uint64_t turns_left = 0;
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed), conversations_(kConversations) {
    for (size_t i = 0; i < kSystemPrompts; ++i) {
      system_prompts_.emplace_back();
      Extend(&system_prompts_.back(), random_.Pick(4, 12));
    }
  }

  Request Next() {
    Conversation& conversation = conversations_[random_.Pick(0, kConversations - 1)];
    if (conversation.turns_left == 0) {
      conversation.ids = system_prompts_[random_.Pick(0, kSystemPrompts - 1)];
      conversation.turns_left = random_.Pick(2, 10);
    }
    --conversation.turns_left;
    Extend(&conversation.ids, random_.Pick(1, 6));
    now_ms_ += random_.Pick(0, 600);
    Request request{now_ms_, conversation.ids.size() * kBlockTokens, random_.Pick(50, 1000),
                    conversation.ids};
    // The answer is part of the next turn's prompt.
    Extend(&conversation.ids, (request.output_tokens + kBlockTokens - 1) / kBlockTokens);
    return request;
  }

 private:
  void Extend(std::vector<uint64_t>* ids, uint64_t blocks) {
    for (uint64_t i = 0; i < blocks; ++i) ids->push_back(next_id_++);
  }

  Random random_;
  std::vector<std::vector<uint64_t>> system_prompts_;
  std::vector<Conversation> conversations_;
  uint64_t next_id_ = 0;
  uint64_t now_ms_ = 0;
};

}  // namespace

std::vector<Request> GenerateTrace(uint64_t requests, uint64_t seed) {
  Generator generator(seed);
  std::vector<Request> trace;
  trace.reserve(requests);
  for (uint64_t i = 0; i < requests; ++i) trace.push_back(generator.Next());
  return trace;
}

}  // namespace kvstream::replay
