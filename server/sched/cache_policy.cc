#include "server/sched/cache_policy.h"

#include <algorithm>
#include <list>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "server/base/check.h"

namespace kvstream::sched {
namespace {

using MayGo = absl::FunctionRef<bool(const KeyDigest&)>;

struct Entry {
  KeyDigest key;
  uint64_t bytes = 0;
  // S3-FIFO: uses since it came or was last looked at, up to 3.
  uint8_t uses = 0;
};

// A queue that knows its bytes. New ones stand in front.
class Queue {
 public:
  using Place = std::list<Entry>::iterator;

  Place Push(Entry entry) {
    bytes_ += entry.bytes;
    entries_.push_front(entry);
    return entries_.begin();
  }
  Entry Take(Place place) {
    Entry entry = *place;
    bytes_ -= entry.bytes;
    entries_.erase(place);
    return entry;
  }
  // Of another queue or of this one, to the front.
  void Adopt(Queue* from, Place place) {
    from->bytes_ -= place->bytes;
    bytes_ += place->bytes;
    entries_.splice(entries_.begin(), from->entries_, place);
  }
  Place last() { return std::prev(entries_.end()); }
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  uint64_t bytes() const { return bytes_; }
  // The one nearest the end that may go.
  std::optional<Place> LastThatMayGo(MayGo may_go) {
    for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
      if (may_go(it->key)) return std::prev(it.base());
    }
    return std::nullopt;
  }

 private:
  std::list<Entry> entries_;
  uint64_t bytes_ = 0;
};

using Places = absl::flat_hash_map<KeyDigest, std::pair<Queue*, Queue::Place>>;

// What all three have: queues of what is in the cache, and of keys that were.
class QueuedPolicy : public CachePolicy {
 public:
  void Remove(const KeyDigest& key) override {
    const auto it = in_.find(key);
    if (it == in_.end()) return;
    it->second.first->Take(it->second.second);
    in_.erase(it);
  }
  bool Contains(const KeyDigest& key) const override { return in_.contains(key); }
  size_t size() const override { return in_.size(); }

 protected:
  void Put(Queue* queue, Entry entry) {
    const KeyDigest key = entry.key;
    const auto [it, fresh] = in_.emplace(key, std::pair(queue, queue->Push(entry)));
    KV_CHECK(fresh);
  }
  void Move(Queue* to, const KeyDigest& key) {
    auto& [queue, place] = in_.at(key);
    to->Adopt(queue, place);
    queue = to;
  }
  KeyDigest Out(Queue* queue, Queue::Place place, Queue* remembered) {
    const Entry entry = queue->Take(place);
    const KeyDigest key = entry.key;
    in_.erase(key);
    if (remembered != nullptr) {
      out_[key] = {remembered, remembered->Push(entry)};
    }
    return key;
  }
  // Where it was remembered, no longer; null if nowhere.
  Queue* Recall(const KeyDigest& key) {
    const auto it = out_.find(key);
    if (it == out_.end()) return nullptr;
    Queue* const queue = it->second.first;
    queue->Take(it->second.second);
    out_.erase(it);
    return queue;
  }
  void Trim(Queue* remembered, uint64_t bytes_max) {
    while (remembered->bytes() > bytes_max) out_.erase(remembered->Take(remembered->last()).key);
  }

  Places in_;

 private:
  Places out_;
};

class Lru final : public QueuedPolicy {
 public:
  void Insert(const KeyDigest& key, uint64_t bytes) override { Put(&queue_, {key, bytes}); }
  void Touch(const KeyDigest& key) override {
    if (in_.contains(key)) Move(&queue_, key);
  }
  std::optional<KeyDigest> Evict(MayGo may_go) override {
    const auto place = queue_.LastThatMayGo(may_go);
    if (!place) return std::nullopt;
    return Out(&queue_, *place, nullptr);
  }
  uint64_t bytes() const override { return queue_.bytes(); }

 private:
  Queue queue_;
};

class S3Fifo final : public QueuedPolicy {
 public:
  explicit S3Fifo(uint64_t capacity_bytes)
      : small_max_(capacity_bytes / 10), ghosts_max_(capacity_bytes - small_max_) {}

  void Insert(const KeyDigest& key, uint64_t bytes) override {
    Put(Recall(key) != nullptr ? &main_ : &small_, {key, bytes});
  }
  void Touch(const KeyDigest& key) override {
    const auto it = in_.find(key);
    if (it == in_.end()) return;
    uint8_t& uses = it->second.second->uses;
    uses = std::min<uint8_t>(uses + 1, kUsesMax);
  }
  std::optional<KeyDigest> Evict(MayGo may_go) override {
    // Each turn moves one on, or takes a use from it: none is looked at more often than this.
    for (size_t turns = (kUsesMax + 2) * (in_.size() + 1); turns > 0; --turns) {
      const bool from_small = !small_.empty() && (small_.bytes() > small_max_ || main_.empty());
      Queue& queue = from_small ? small_ : main_;
      if (queue.empty()) return std::nullopt;
      const auto last = queue.last();
      if (from_small && last->uses > 1) {
        last->uses = 0;
        Move(&main_, last->key);
      } else if (!from_small && last->uses > 0) {
        last->uses -= 1;
        Move(&main_, last->key);
      } else if (!may_go(last->key)) {
        Move(&main_, last->key);
      } else {
        const KeyDigest out = Out(&queue, last, from_small ? &ghosts_ : nullptr);
        Trim(&ghosts_, ghosts_max_);
        return out;
      }
    }
    return std::nullopt;
  }
  uint64_t bytes() const override { return small_.bytes() + main_.bytes(); }

 private:
  static constexpr uint8_t kUsesMax = 3;

  const uint64_t small_max_;
  const uint64_t ghosts_max_;
  Queue small_;
  Queue main_;
  Queue ghosts_;
};

class Arc final : public QueuedPolicy {
 public:
  explicit Arc(uint64_t capacity_bytes) : capacity_(capacity_bytes) {}

  void Insert(const KeyDigest& key, uint64_t bytes) override {
    // A hit among those that were let go of says which side was too small.
    const double once = static_cast<double>(once_out_.bytes());
    const double often = static_cast<double>(often_out_.bytes());
    Queue* const remembered = Recall(key);
    const auto step = [bytes](double others, double own) {
      return static_cast<uint64_t>(static_cast<double>(bytes) *
                                   std::max(1.0, own > 0 ? others / own : 1.0));
    };
    if (remembered == &once_out_) {
      once_target_ = std::min(capacity_, once_target_ + step(often, once));
    } else if (remembered == &often_out_) {
      once_target_ -= std::min(once_target_, step(once, often));
    }
    Put(remembered != nullptr ? &often_ : &once_, {key, bytes});
  }
  void Touch(const KeyDigest& key) override {
    if (in_.contains(key)) Move(&often_, key);
  }
  std::optional<KeyDigest> Evict(MayGo may_go) override {
    const bool once_first = once_.bytes() > once_target_ || often_.empty();
    for (const bool from_once : {once_first, !once_first}) {
      Queue& queue = from_once ? once_ : often_;
      const auto place = queue.LastThatMayGo(may_go);
      if (!place) continue;
      const KeyDigest out = Out(&queue, *place, from_once ? &once_out_ : &often_out_);
      Trim(&once_out_, capacity_ - std::min(capacity_, once_.bytes()));
      Trim(&often_out_, capacity_);
      return out;
    }
    return std::nullopt;
  }
  uint64_t bytes() const override { return once_.bytes() + often_.bytes(); }

 private:
  const uint64_t capacity_;
  // What once_ may hold before it gives; the rest is often_'s.
  uint64_t once_target_ = 0;
  Queue once_;
  Queue often_;
  Queue once_out_;
  Queue often_out_;
};

}  // namespace

std::unique_ptr<CachePolicy> MakeCachePolicy(CachePolicyKind kind, uint64_t capacity_bytes) {
  switch (kind) {
    case CachePolicyKind::kLru:
      return std::make_unique<Lru>();
    case CachePolicyKind::kS3Fifo:
      return std::make_unique<S3Fifo>(capacity_bytes);
    case CachePolicyKind::kArc:
      return std::make_unique<Arc>(capacity_bytes);
  }
  return nullptr;
}

}  // namespace kvstream::sched
