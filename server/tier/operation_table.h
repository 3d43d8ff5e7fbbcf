// The operations a loop has in flight. Each gets a number made of its place and of how often that
// place was used, so that a completion that is late or not ours finds nothing.
//
// Thread rule: belongs to its loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "server/tier/io_queue.h"

namespace kvstream::tier {

class OperationTable {
 public:
  // What to do with an operation's result: a negated errno, or for a transfer the bytes moved,
  // fewer than asked for only at the end of the file.
  using Done = absl::AnyInvocable<void(int32_t result)>;

  struct Entry {
    Operation operation;
    Done done;
    // Bytes of the operation that earlier, short results moved.
    uint32_t moved = 0;
    uint32_t retries = 0;
    // What is in flight is the pause before a retry.
    bool delayed = false;
  };

  // Returns the number to give to the queue.
  uint64_t Add(const Operation& operation, Done done) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(places_.size()));
      places_.emplace_back();
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    Place& place = places_[index];
    place.used = true;
    place.entry = Entry{operation, std::move(done)};
    return uint64_t{place.generation} << 32 | index;
  }

  // Null when no such operation is in flight. Stays valid until it is removed.
  Entry* Find(uint64_t number) {
    const auto index = static_cast<uint32_t>(number);
    if (index >= places_.size()) return nullptr;
    Place& place = places_[index];
    return place.used && place.generation == number >> 32 ? &place.entry : nullptr;
  }

  // Forgets an operation and returns what to do with its result. REQUIRES: Find(number) != null.
  Done Remove(uint64_t number) {
    const auto index = static_cast<uint32_t>(number);
    Place& place = places_[index];
    place.used = false;
    ++place.generation;
    free_.push_back(index);
    return std::move(place.entry.done);
  }

  size_t size() const { return places_.size() - free_.size(); }

 private:
  struct Place {
    uint32_t generation = 0;
    bool used = false;
    Entry entry;
  };

  // A deque, because entries must not move.
  std::deque<Place> places_;
  std::vector<uint32_t> free_;
};

}  // namespace kvstream::tier
