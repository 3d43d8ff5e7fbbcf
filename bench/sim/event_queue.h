// Virtual time: things that happen, in the order of their time, and of their arrival at one time.
//
// Thread rule: one thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "server/base/check.h"
#include "server/base/types.h"

namespace kvstream::sim {

// Rounded up: nothing is done before its time.
inline TimeNs ToNs(double seconds) { return static_cast<TimeNs>(std::ceil(seconds * 1e9)); }

class EventQueue {
 public:
  TimeNs now() const { return now_; }
  bool empty() const { return events_.empty(); }
  uint64_t happened() const { return happened_; }

  void At(TimeNs at, std::function<void()> happen) {
    KV_CHECK(at >= now_);
    events_.push_back(Event{at, next_order_++, std::move(happen)});
    std::push_heap(events_.begin(), events_.end(), Later);
  }

  // REQUIRES: not empty.
  void RunNext() {
    std::pop_heap(events_.begin(), events_.end(), Later);
    Event event = std::move(events_.back());
    events_.pop_back();
    now_ = event.at;
    happened_ += 1;
    event.happen();
  }

 private:
  struct Event {
    TimeNs at;
    uint64_t order;
    std::function<void()> happen;
  };
  static bool Later(const Event& a, const Event& b) {
    return a.at != b.at ? a.at > b.at : a.order > b.order;
  }

  std::vector<Event> events_;  // A heap, the next first.
  uint64_t next_order_ = 0;
  uint64_t happened_ = 0;
  TimeNs now_ = 0;
};

}  // namespace kvstream::sim
