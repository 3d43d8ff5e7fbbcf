#include "server/engine/leases.h"

namespace kvstream::engine {

uint64_t Leases::Grant(SessionId owner, const std::vector<KeyDigest>& keys, TimeNs expiry) {
  if (const auto held = by_owner_.find(owner);
      held != by_owner_.end() && (held->second.leases.size() >= kLeasesMax ||
                                  held->second.chunks + keys.size() > kLeasedChunksMax)) {
    return 0;
  }
  Lease lease{owner, expiry, {}};
  for (const KeyDigest& key : keys) {
    if (index_->AddLease(key)) lease.keys.push_back(key);
  }
  if (lease.keys.empty()) return 0;
  const uint64_t id = next_id_++;
  chunks_ += lease.keys.size();
  by_owner_[owner].leases.insert(id);
  by_owner_[owner].chunks += lease.keys.size();
  by_expiry_.emplace(expiry, id);
  leases_.emplace(id, std::move(lease));
  return id;
}

bool Leases::Release(SessionId session, uint64_t id) {
  const auto it = leases_.find(id);
  if (it == leases_.end() || it->second.owner != session) return false;
  End(id);
  return true;
}

void Leases::ReleaseAllOf(SessionId session) {
  const auto it = by_owner_.find(session);
  if (it == by_owner_.end()) return;
  const auto ids = it->second.leases;
  for (const uint64_t id : ids) End(id);
}

size_t Leases::Expire(TimeNs now) {
  size_t expired = 0;
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    End(by_expiry_.begin()->second);
    ++expired;
  }
  return expired;
}

void Leases::End(uint64_t id) {
  const auto it = leases_.find(id);
  const Lease& lease = it->second;
  for (const KeyDigest& key : lease.keys) index_->DropLease(key);
  chunks_ -= lease.keys.size();
  by_expiry_.erase({lease.expiry, id});
  const auto owner = by_owner_.find(lease.owner);
  owner->second.leases.erase(id);
  owner->second.chunks -= lease.keys.size();
  if (owner->second.leases.empty()) by_owner_.erase(owner);
  leases_.erase(it);
}

}  // namespace kvstream::engine
