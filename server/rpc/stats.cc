#include "server/rpc/stats.h"

#include "server/base/logging.h"

namespace kvstream::rpc {

void CountAndWarnOnce(Counter& counter, std::string_view what) {
  if (counter.Add() == 0) spdlog::warn("{}; later ones are only counted", what);
}

}  // namespace kvstream::rpc
