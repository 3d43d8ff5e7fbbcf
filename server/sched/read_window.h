// How many bytes of reads a tier is given at a time: the fewest that keep its throughput, since
// what is in flight stands before whoever comes next. Pure.
//
// It starts at the most that the config allows and works downwards. While the window is what holds
// reads back, it is made half as large again in every other epoch: where the wider epochs move
// clearly more, the window was too small and grows; where they do not, it shrinks. So widening is
// the only disturbance, and costs no throughput. It never shrinks below what the tier moves in
// `ahead`: less would win newcomers little. Nor below two reads, and it is widened by a read at
// least: else what is wider could let no more reads through, and would tell nothing.
#pragma once

#include <cstdint>

#include "server/base/types.h"

namespace kvstream::sched {

class ReadWindow {
 public:
  // `ahead` 0: the window stays at `max_bytes`.
  ReadWindow(uint64_t max_bytes, TimeNs ahead)
      : max_bytes_(max_bytes), ahead_(ahead), bytes_(static_cast<double>(max_bytes)) {
    Settle();
  }

  // At most max_bytes.
  uint64_t bytes() const;
  uint64_t max_bytes() const { return max_bytes_; }

  // Reads were held back for want of room.
  void NoteLimited() { limited_ = true; }
  // A read has ended; the tier moves `rate` bytes per second, 0 if that is unknown.
  void NoteEnded(uint64_t bytes, double rate, TimeNs now);
  // The tier became idle: the epoch says nothing.
  void NoteIdle() { Settle(); }

 private:
  // What was moved in epochs of one kind, and in which time.
  struct Moved {
    double bytes = 0;
    double seconds = 0;
  };

  double Wide() const;
  void Settle();
  void Judge(double rate);

  const uint64_t max_bytes_;
  const TimeNs ahead_;
  double bytes_;
  double grain_ = 0;  // The largest read, of the comparison before and of this one.
  double next_grain_ = 0;
  bool wide_ = false;
  bool limited_ = false;
  bool was_too_small_ = false;  // Clearly, once.
  // What was in flight under the other width is let end first.
  double settle_bytes_ = 0;
  TimeNs epoch_begin_ = 0;  // 0: none has begun.
  double epoch_bytes_ = 0;
  uint32_t epochs_ = 0;  // Of this comparison.
  uint32_t hold_ = 0;    // Comparisons before it may shrink again.
  Moved moved_[2];       // By whether the window was wide.
};

}  // namespace kvstream::sched
