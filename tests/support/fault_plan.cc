#include "tests/support/fault_plan.h"

namespace kvstream::test {

void FaultPlan::SetRates(FaultPoint point, Rates rates) {
  MutexLock lock(&mu_);
  rates_[static_cast<size_t>(point)] = std::move(rates);
}

void FaultPlan::Script(FaultPoint point, uint64_t number, const Fault& fault) {
  MutexLock lock(&mu_);
  script_[{point, number}] = fault;
}

void FaultPlan::Clear() {
  MutexLock lock(&mu_);
  rates_ = {};
  script_.clear();
}

Fault FaultPlan::Next(FaultPoint point, uint64_t bytes) {
  MutexLock lock(&mu_);
  const uint64_t number = seen_[static_cast<size_t>(point)]++;
  if (const auto scripted = script_.find({point, number}); scripted != script_.end()) {
    return scripted->second;
  }
  const Rates& rates = rates_[static_cast<size_t>(point)];
  double at = random_.Real();
  // True where the number drawn falls into this kind's share.
  const auto falls = [&at](double share) {
    at -= share;
    return at < 0;
  };
  Fault fault;
  if (falls(rates.error)) {
    fault.kind = Fault::Kind::kErrno;
    fault.error = rates.errors[random_.Below(rates.errors.size())];
  } else if (falls(rates.delay)) {
    fault.kind = Fault::Kind::kDelay;
    fault.delay = static_cast<TimeNs>(random_.Below(static_cast<uint64_t>(rates.delay_max))) + 1;
  } else if (falls(rates.never)) {
    fault.kind = Fault::Kind::kNever;
  } else if (bytes > 0 && falls(rates.short_count)) {
    fault.kind = Fault::Kind::kShort;
    fault.at = random_.Below(bytes);
  } else if (bytes > 0 && falls(rates.corrupt)) {
    fault.kind = Fault::Kind::kCorrupt;
    fault.at = random_.Below(bytes);
  }
  return fault;
}

}  // namespace kvstream::test
