// A storage device in virtual time: reads and writes, first come, first served, each taking its
// share of the device's time, and then a latency.
//
// Reads and writes share the time: where reads alone get R and writes alone W, r of the one leave
// (1 - r/R) W of the other. On the disk measured in bench/README.md (R 1165, W 1940 MiB/s) both at
// once got 864 and 453: 0.74 + 0.23 of its time.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>

#include "bench/sim/bandwidth.h"
#include "server/base/types.h"
#include "tests/support/sim_random.h"

namespace kvstream::sim {

struct DeviceOptions {
  BandwidthOptions read;
  // What writes alone get, as a part of what reads alone get.
  double write_ratio = 1;
  // Of each request beyond its transfer: lognormal, with this median and 99th percentile.
  TimeNs latency = 100 * kMicrosecond;
  TimeNs latency_p99 = 200 * kMicrosecond;
  uint64_t seed = 1;
};

class Device {
 public:
  explicit Device(const DeviceOptions& options);

  // When it ends. REQUIRES: `now` never goes back.
  TimeNs Read(uint64_t bytes, TimeNs now) { return Serve(static_cast<double>(bytes), now); }
  TimeNs Write(uint64_t bytes, TimeNs now) {
    return Serve(static_cast<double>(bytes) / options_.write_ratio, now);
  }

  Bandwidth& bandwidth() { return bandwidth_; }

 private:
  TimeNs Serve(double read_bytes, TimeNs now);

  const DeviceOptions options_;
  const double sigma_;  // Of the latency's logarithm.
  Bandwidth bandwidth_;
  SimRandom random_;
  TimeNs busy_until_ = 0;
};

}  // namespace kvstream::sim
