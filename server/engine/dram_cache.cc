#include "server/engine/dram_cache.h"

namespace kvstream::engine {

std::optional<KeyDigest> DramCache::Evict(sched::Arena arena,
                                          absl::FunctionRef<bool(const KeyDigest&)> may_go) {
  // Of both, the one that has more.
  const bool first =
      arena == sched::Arena::kShared || policies_[1]->bytes() > policies_[0]->bytes();
  for (const bool shared : {first, !first}) {
    if (!shared && arena == sched::Arena::kShared) break;
    if (nothing_goes_[shared] || policies_[shared]->size() == 0) continue;
    if (const auto key = policies_[shared]->Evict(may_go)) return key;
    nothing_goes_[shared] = true;
  }
  return std::nullopt;
}

}  // namespace kvstream::engine
