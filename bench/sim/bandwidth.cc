#include "bench/sim/bandwidth.h"

#include <algorithm>
#include <cmath>

#include "bench/sim/event_queue.h"

namespace kvstream::sim {
namespace {

using Kind = BandwidthOptions::Kind;

double Seconds(TimeNs time) { return static_cast<double>(time) / 1e9; }

}  // namespace

Bandwidth::Bandwidth(const BandwidthOptions& options) : options_(options), random_(options.seed) {
  changes_.push_back(Change{0, options.bytes_per_second});
  if (options.kind == Kind::kPeriodic) {
    // Somewhere within a period.
    const auto phase = static_cast<TimeNs>(random_.Real() * static_cast<double>(options.period));
    const bool low = random_.Chance(0.5);
    factor_ = low ? options.low : 1;
    changes_[0].rate = options.bytes_per_second * factor_;
    factor_ = low ? 1 : options.low;
    changes_.push_back(Change{phase / 2 + 1, options.bytes_per_second * factor_});
  }
}

void Bandwidth::MakeNext() {
  const auto period = static_cast<double>(options_.period);
  double wait = period;
  if (options_.kind == Kind::kPeriodic) {
    wait = period / 2;
    factor_ = factor_ < 1 ? 1 : options_.low;
  } else if (options_.kind == Kind::kBursty) {
    const bool in_burst = factor_ < 1;
    wait = -std::log(1 - random_.Real()) * period * (in_burst ? 1 : 2);
    factor_ = in_burst ? 1 : options_.low + random_.Real() * (options_.high - options_.low);
  } else {
    const double step = (random_.Real() - 0.5) * (1 - options_.low) / 2;
    factor_ = std::clamp(factor_ + step, options_.low, 1.0);
  }
  const TimeNs at = changes_.back().at + std::max<TimeNs>(1, static_cast<TimeNs>(wait));
  changes_.push_back(Change{at, options_.bytes_per_second * factor_});
}

size_t Bandwidth::IndexAt(TimeNs at) {
  while (options_.kind != Kind::kConstant && changes_.back().at <= at) MakeNext();
  const auto after = std::upper_bound(changes_.begin(), changes_.end(), at,
                                      [](TimeNs t, const Change& c) { return t < c.at; });
  return static_cast<size_t>(after - changes_.begin()) - 1;
}

double Bandwidth::At(TimeNs at) { return changes_[IndexAt(at)].rate; }

TimeNs Bandwidth::NextChange(TimeNs at) {
  const size_t next = IndexAt(at) + 1;
  return next < changes_.size() ? changes_[next].at : kNever;
}

TimeNs Bandwidth::EndOf(TimeNs begin, double bytes) {
  for (;;) {
    const double rate = At(begin);
    const TimeNs change = NextChange(begin);
    if (change == kNever || bytes <= rate * Seconds(change - begin)) {
      return begin + ToNs(bytes / rate);
    }
    bytes -= rate * Seconds(change - begin);
    begin = change;
  }
}

double BoundSeconds(std::span<Bandwidth* const> tiers, TimeNs begin, double bytes) {
  TimeNs at = begin;
  for (;;) {
    double rate = 0;
    TimeNs change = kNever;
    for (Bandwidth* tier : tiers) {
      rate += tier->At(at);
      change = std::min(change, tier->NextChange(at));
    }
    if (change == kNever || bytes <= rate * Seconds(change - at)) {
      return Seconds(at - begin) + bytes / rate;
    }
    bytes -= rate * Seconds(change - at);
    at = change;
  }
}

}  // namespace kvstream::sim
