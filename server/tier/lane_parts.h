// What the lanes of a tier are made of.
#pragma once

#include <cstddef>
#include <span>

#include "server/tier/io_loop.h"
#include "server/tier/tier.h"

namespace kvstream::tier {

// Everything is borrowed and must outlive the lanes' threads.
struct LaneParts {
  const TierOptions* options = nullptr;
  int root_fd = -1;
  // kUring or kThreads.
  IoEngine engine = IoEngine::kUring;
  // Files are opened with O_DIRECT.
  bool direct = false;
  TierStats* stats = nullptr;
  CompletionSink* sink = nullptr;
  // Registered with the rings; empty for none.
  std::span<std::byte> memory;
  QueueWrapper wrap;
};

// An open has met the limit of descriptors: counted, and said of the first of a tier.
void NoteDescriptorShortage(const LaneParts& parts);

}  // namespace kvstream::tier
