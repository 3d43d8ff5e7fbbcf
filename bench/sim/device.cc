#include "bench/sim/device.h"

#include <algorithm>
#include <cmath>

namespace kvstream::sim {
namespace {

// Of the standard normal distribution.
constexpr double kPercentile99 = 2.3263;

}  // namespace

Device::Device(const DeviceOptions& options)
    : options_(options),
      sigma_(options.latency > 0 ? std::log(static_cast<double>(options.latency_p99) /
                                            static_cast<double>(options.latency)) /
                                       kPercentile99
                                 : 0),
      bandwidth_(options.read),
      random_(options.seed) {}

TimeNs Device::Serve(double read_bytes, TimeNs now) {
  busy_until_ = bandwidth_.EndOf(std::max(now, busy_until_), read_bytes);
  if (options_.latency == 0) return busy_until_;
  const double latency =
      static_cast<double>(options_.latency) * std::exp(sigma_ * random_.Normal());
  return busy_until_ + static_cast<TimeNs>(latency);
}

}  // namespace kvstream::sim
