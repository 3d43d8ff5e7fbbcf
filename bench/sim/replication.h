// How many copies chunks get. Pure.
//
// Thread rule: one thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "server/base/types.h"

namespace kvstream::sim {

enum class Copies {
  kOne,
  kAll,
  // A share of the chunks, by their hash, has a copy on every tier.
  kFraction,
  // The same; the share follows what reads would gain.
  kAdaptive,
  // One; a chunk that is read gains its others then.
  kReactive,
};

struct ReplicationOptions {
  Copies copies = Copies::kAll;
  // kFraction.
  double fraction = 0.4;
};

// The share of chunks to replicate, from what is read and stored.
//
// A copy on every tier lets a step's reads end together whatever the tiers do. With all first
// copies on the fastest tier, it is enough that the others hold copies of as much as they would
// read: their part of the bandwidth, and some more for the times when the fastest is slowed. And a
// second copy pays only if it is read: where less is read than stored, its part shrinks in
// proportion. It begins as if as much were read as is stored.
class Replication {
 public:
  explicit Replication(const ReplicationOptions& options) : options_(options) {}

  void NoteRead(uint64_t bytes) { read_ += static_cast<double>(bytes); }
  void NoteStored(uint64_t bytes) {
    stored_ += static_cast<double>(bytes);
    if (stored_ < kWindowBytes) return;
    // A sliding window, roughly: the past counts half.
    read_ /= 2;
    stored_ /= 2;
  }

  // `others`: the part of the tiers' bandwidth that is not the fastest tier's.
  double Share(double others) const {
    switch (options_.copies) {
      case Copies::kOne:
      case Copies::kReactive:
        return 0;
      case Copies::kAll:
        return 1;
      case Copies::kFraction:
        return options_.fraction;
      case Copies::kAdaptive:
        break;
    }
    return std::min(1.0, others * kMargin) * std::min(1.0, read_ / stored_ / kWorthwhile);
  }
  // The share of chunks with one copy that get the others once they are read.
  double ShareOfRead(double others) const {
    if (options_.copies == Copies::kReactive) return 1;
    return options_.copies == Copies::kAdaptive ? Share(others) : 0;
  }

 private:
  static constexpr double kWindowBytes = 512e9;
  static constexpr double kAtFirst = 16e9;
  static constexpr double kMargin = 1.1;
  // Bytes read for each byte stored from which on a second copy is worth its write.
  static constexpr double kWorthwhile = 0.5;

  const ReplicationOptions options_;
  double read_ = kAtFirst;
  double stored_ = kAtFirst;
};

}  // namespace kvstream::sim
