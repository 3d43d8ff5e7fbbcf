#include "server/rpc/stats.h"

#include "server/base/logging.h"

namespace kvstream::rpc {

void CountMissedHello(RpcStats& stats, std::string_view who) {
  if (stats.hellos_missed.Get() == 0) {
    spdlog::warn("{} has said no hello in time and was ended; later ones are only counted", who);
  }
  stats.hellos_missed.Add();
}

}  // namespace kvstream::rpc
