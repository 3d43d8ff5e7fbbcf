#include "server/tier/lane_parts.h"

#include "server/base/logging.h"

namespace kvstream::tier {

void NoteDescriptorShortage(const LaneParts& parts) {
  if (parts.stats->descriptor_shortages.Add() > 0) return;
  spdlog::warn("the limit of open files is met, raise LimitNOFILE: tier={}", parts.options->name);
}

}  // namespace kvstream::tier
