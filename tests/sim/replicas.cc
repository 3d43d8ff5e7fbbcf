#include "tests/sim/replicas.h"

#include <span>
#include <utility>

#include "server/store/chunk_format.h"

namespace kvstream::sim {

using test::Fault;
using test::FaultPoint;

void Replicas::SetTiers(std::vector<test::FakeTier*> tiers) {
  tiers_ = std::move(tiers);
  replicas_.resize(tiers_.size() * names_.keys());
  good_.resize(names_.keys());
  for (uint32_t t = 0; t < tiers_.size(); ++t) usable_.Add(TierId{t});
}

bool Replicas::OthersServe(TierId tier, uint32_t key, TierSet others) const {
  if (!good_[key].empty() && (good_[key] & others).empty()) return false;
  for (const auto& [id, hope] : hopes_) {
    if (hope.key != key || hope.staged || !hope.tiers.Has(tier)) continue;
    if ((hope.tiers & others).empty()) return false;
  }
  return true;
}

TierSet Replicas::SameContent(TierId tier, uint32_t key) const {
  TierSet same;
  for (uint32_t t = 0; t < tiers_.size(); ++t) {
    const bool good = good_[key].Has(tier) && good_[key].Has(TierId{t});
    if (good && content(TierId{t}, key) == content(tier, key)) same.Add(TierId{t});
  }
  return same;
}

TierSet Replicas::Others(TierId tier, uint32_t key) const {
  const TierSet others = usable_.Without(TierSet::Of(tier));
  // Who waits for a read that hangs is served from its own content alone.
  for (uint32_t t = 0; t < tiers_.size(); ++t) {
    const Replica& replica = at(TierId{t}, key);
    if (replica.hangs && replica.content == content(tier, key)) {
      return others & SameContent(tier, key);
    }
  }
  return others;
}

bool Replicas::MayHarm(TierId tier, uint32_t key, FaultPoint point, const Fault& fault) {
  if (point == FaultPoint::kWrite) {
    // A write that fails says so. One that lies may be all that is ever published.
    const bool lies = fault.kind == Fault::Kind::kShort || fault.kind == Fault::Kind::kCorrupt;
    return !lies || !(good_[key] & usable_.Without(TierSet::Of(tier))).empty();
  }
  const bool hangs = fault.kind == Fault::Kind::kNever;
  if (hangs && !deadlines_ && !good_[key].Has(tier)) return false;
  TierSet others = Others(tier, key);
  if (hangs) others = others & SameContent(tier, key);
  if (!OthersServe(tier, key, others)) return false;
  Harm(tier, key);
  at(tier, key).hangs = at(tier, key).hangs || hangs;
  return true;
}

void Replicas::Harm(TierId tier, uint32_t key) {
  journal_.Note("harm: tier {} key {}", tier.value, key);
  good_[key].Remove(tier);
  Replica& replica = at(tier, key);
  replica.tainted = true;
  replica.harmed = true;
  for (auto& [id, hope] : hopes_) {
    if (hope.key == key) hope.tiers.Remove(tier);
  }
}

void Replicas::GivenUp(TierId tier, uint32_t key) {
  const bool tainted = at(tier, key).tainted || at(tier, key).reads > 0;
  Harm(tier, key);
  at(tier, key).tainted = tainted;  // Nothing that is published from now on is in danger.
}

void Replicas::DamageFile(TierId tier, uint32_t key, uint64_t at_byte) {
  const auto file = tiers_[tier.value]->files().find(names_.path(key));
  if (file == tiers_[tier.value]->files().end() || file->second.empty()) return;
  if (!OthersServe(tier, key, Others(tier, key))) return;
  Harm(tier, key);
  file->second[at_byte % file->second.size()] ^= std::byte{0x10};
}

void Replicas::RemoveFile(TierId tier, uint32_t key) {
  if (!Published(tier, key)) return;
  if (!OthersServe(tier, key, Others(tier, key))) return;
  Harm(tier, key);
  tiers_[tier.value]->files().erase(names_.path(key));
}

void Replicas::Ended(const tier::Completion& completion, uint32_t key) {
  ended_.push_back({completion.tier, key, completion.kind, completion.code});
}

void Replicas::AfterTurn(TierSet usable) {
  usable_ = usable;
  for (auto& [id, hope] : hopes_) hope.tiers = hope.tiers & usable;
  for (const End& end : ended_) {
    Replica& replica = at(end.tier, end.key);
    if (end.kind == tier::Completion::Kind::kRead) {
      replica.reads -= 1;
      if (replica.reads == 0) replica.tainted = replica.hangs = false;
    } else if (end.kind == tier::Completion::Kind::kWrite) {
      replica.writes -= 1;
      const bool existed = end.code == absl::StatusCode::kAlreadyExists;
      const bool there = existed || end.code == absl::StatusCode::kOk;
      const bool again = std::exchange(replica.in_doubt, false) && there;
      if (there && !again) Publish(end.tier, end.key);
    }
  }
  ended_.clear();
}

void Replicas::Publish(TierId tier, uint32_t key) {
  Replica& replica = at(tier, key);
  if (replica.tainted) return;
  const auto file = tiers_[tier.value]->files().find(names_.path(key));
  if (file == tiers_[tier.value]->files().end()) return;
  const std::span<const std::byte> bytes(file->second);
  if (bytes.size() != names_.shape(key).file_bytes()) return;
  const auto header =
      store::DecodeHeaderOf(names_.digest(key), bytes.first(kHeaderBytes), bytes.size());
  if (!header.ok()) return;
  const std::span payload = bytes.subspan(kHeaderBytes, header->shape.payload_bytes);
  for (uint32_t s = 0; s < header->shape.segments(); ++s) {
    const auto segment = payload.subspan(s * header->shape.segment_bytes, header->shape.BytesOf(s));
    if (store::SegmentChecksum(names_.digest(key), s, segment) != header->checksums[s]) return;
  }
  const auto version = names_.VersionOf(key, payload);
  if (!version || !names_.WasStored(key, *version)) {
    journal_.Fail(fmt::format("tier {} has a file of key {} that verifies and that nobody stored",
                              tier.value, key));
    return;
  }
  replica.content = header->content;
  replica.harmed = false;
  good_[key].Add(tier);
  journal_.Note("good: tier {} key {} version {}", tier.value, key, *version);
}

bool Replicas::Published(TierId tier, uint32_t key) const {
  return tiers_[tier.value]->files().contains(names_.path(key));
}

void Replicas::Restart() {
  ended_.clear();
  hopes_.clear();
  for (Replica& replica : replicas_) {
    replica.reads = replica.writes = 0;
    replica.in_doubt = false;
    replica.tainted = replica.hangs = false;
  }
  good_.assign(names_.keys(), {});
  for (uint32_t t = 0; t < tiers_.size(); ++t) usable_.Add(TierId{t});
}

Replicas::HopeId Replicas::BeginHope(uint32_t key, bool staged) {
  hopes_[++last_hope_] = {key, staged, good_[key] & usable_};
  return last_hope_;
}

bool Replicas::Hopeful(HopeId id, TierSet usable) const {
  const Hope& hope = hopes_.at(id);
  return hope.staged || !(hope.tiers & usable).empty();
}

}  // namespace kvstream::sim
