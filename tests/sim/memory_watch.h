// Which memory somebody is reading or writing right now: slots of the pool and clients' buffers.
// What one writes nobody else may touch, so a slot that was freed too early shows as soon as it is
// used again, and a destination that is still written after Quiesced shows at once.
//
// Thread rule: one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvstream::sim {

class MemoryWatch {
 public:
  // Of a request to a tier, or of a copy.
  using User = uint64_t;

  User NewUser() { return ++last_user_; }
  // False when somebody else uses some of it in a way that this must not meet.
  [[nodiscard]] bool Begin(User user, std::span<const std::byte> bytes, bool writes) {
    bool apart = true;
    for (const Use& use : uses_) {
      if ((writes || use.writes) && use.user != user && Meet(use.bytes, bytes)) apart = false;
    }
    uses_.push_back({user, bytes, writes});
    return apart;
  }
  void End(User user) {
    std::erase_if(uses_, [user](const Use& use) { return use.user == user; });
  }
  bool InUse(std::span<const std::byte> bytes) const {
    for (const Use& use : uses_) {
      if (Meet(use.bytes, bytes)) return true;
    }
    return false;
  }
  // How many bytes of `memory` somebody uses.
  uint64_t BytesInUse(std::span<const std::byte> memory) {
    sorted_.clear();
    for (const Use& use : uses_) {
      if (Meet(use.bytes, memory)) sorted_.push_back(use.bytes);
    }
    std::sort(sorted_.begin(), sorted_.end(),
              [](const auto& a, const auto& b) { return a.data() < b.data(); });
    uint64_t bytes = 0;
    const std::byte* end = memory.data();
    for (const auto& used : sorted_) {
      const std::byte* begin = std::max(end, used.data());
      end = std::max(end, used.data() + used.size());
      bytes += static_cast<uint64_t>(end - begin);
    }
    return bytes;
  }
  // All uses end: the machine died.
  void Clear() { uses_.clear(); }
  bool empty() const { return uses_.empty(); }

 private:
  struct Use {
    User user;
    std::span<const std::byte> bytes;
    bool writes;
  };

  static bool Meet(std::span<const std::byte> a, std::span<const std::byte> b) {
    return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
  }

  std::vector<Use> uses_;
  std::vector<std::span<const std::byte>> sorted_;  // Of BytesInUse.
  User last_user_ = 0;
};

}  // namespace kvstream::sim
