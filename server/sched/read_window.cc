#include "server/sched/read_window.h"

#include <algorithm>
#include <utility>

namespace kvstream::sched {
namespace {

// An epoch lasts at least so long, and a few windows.
constexpr TimeNs kEpoch = 250 * kMillisecond;
constexpr double kEpochWindows = 2;
// Of one comparison: as many wide as not, alternating, so that a drift of the rate hits both alike.
constexpr uint32_t kEpochs = 4;
constexpr double kWide = 1.5;
// What more was moved, where the window was too small: clearly, or perhaps by chance. The window
// grows by so much, and keeps it for so many comparisons.
constexpr double kClearGain = 1.15;
constexpr double kClearGrowth = 1.5;
constexpr uint32_t kClearHold = 16;
constexpr double kGain = 1.06;
constexpr double kGrowth = 1.25;
constexpr uint32_t kHold = 2;
// How it shrinks until it was once too small.
constexpr double kFirstShrinking = 2;

}  // namespace

double ReadWindow::Wide() const { return std::max(bytes_ * kWide, bytes_ + grain_); }

uint64_t ReadWindow::bytes() const {
  const double bytes = wide_ ? Wide() : bytes_;
  return std::min(max_bytes_, static_cast<uint64_t>(bytes));
}

void ReadWindow::Settle() {
  settle_bytes_ = wide_ ? Wide() : bytes_;
  epoch_begin_ = 0;
  epoch_bytes_ = 0;
  limited_ = false;
}

void ReadWindow::NoteEnded(uint64_t bytes, double rate, TimeNs now) {
  if (ahead_ == 0) return;
  next_grain_ = std::max(next_grain_, static_cast<double>(bytes));
  if (settle_bytes_ > 0) {
    settle_bytes_ -= static_cast<double>(bytes);
    if (settle_bytes_ <= 0) epoch_begin_ = now;
    return;
  }
  epoch_bytes_ += static_cast<double>(bytes);
  if (now - epoch_begin_ < kEpoch || epoch_bytes_ < kEpochWindows * bytes_) return;
  if (limited_) {
    Moved& moved = moved_[wide_ ? 1 : 0];
    moved.bytes += epoch_bytes_;
    moved.seconds += static_cast<double>(now - epoch_begin_) / 1e9;
    wide_ = !wide_;
    epochs_ += 1;
    if (epochs_ == kEpochs) Judge(rate);
  }
  Settle();
}

void ReadWindow::Judge(double rate) {
  const double gain = moved_[1].bytes / moved_[1].seconds / (moved_[0].bytes / moved_[0].seconds);
  const double most = static_cast<double>(max_bytes_);
  grain_ = std::exchange(next_grain_, 0);
  if (gain >= kGain && bytes_ < most) {
    const bool clear = gain >= kClearGain;
    bytes_ = std::min(most, bytes_ * (clear ? kClearGrowth : kGrowth));
    hold_ = clear ? kClearHold : kHold;
    was_too_small_ = was_too_small_ || clear;
  } else if (hold_ > 0) {
    hold_ -= 1;
  } else {
    const double least = std::max(rate * static_cast<double>(ahead_) / 1e9, 2 * grain_);
    const double shrinking = was_too_small_ ? kGrowth : kFirstShrinking;
    bytes_ = std::min(most, std::max(least, bytes_ / shrinking));
  }
  moved_[0] = moved_[1] = Moved{};
  epochs_ = 0;
}

}  // namespace kvstream::sched
