// What becomes of a damaged file: a copy first, whole and under a temporary name; then its way out
// of its name, at the end of which the copy takes it. Whatever ends the scrub in between, the tier
// has the one or the other.
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "server/base/clock.h"
#include "server/engine/scrub_run.h"

namespace kvstream::engine {

bool ScrubRun::Repair(const std::string& path, uint64_t bytes) {
  // No read shall find it, whatever becomes of it.
  Post(FileDamaged{tier_, mount(), path, store::KeyOfPath(path), nullptr, nullptr});
  std::string cause;
  bool may_be = false;
  const std::shared_ptr<Copying> copy = CopyFromOthers(path, &cause, &may_be);
  // Where a good copy may be had later the file stays, and the next scrub finds it again.
  if (copy == nullptr && may_be) {
    WarnOnce(&warned_unrepaired_, "a damaged file is not repaired, and stays unused", path, cause);
    return false;
  }
  if (!SetAside(path, copy)) {
    WarnOnce(&warned_unrepaired_, "a damaged file is not repaired", path, "it was not set aside");
    return false;
  }
  // What another node has published meanwhile stands, as does what was whole when it was judged
  // again. What is still damaged could not be set aside. One that is cancelled looks all the same:
  // the index is to know of it.
  uint64_t bytes_there = 0;
  Seen there = Look(tier_, path, [&bytes_there](std::span<const std::byte> blocks) {
    bytes_there += blocks.size();
    return true;
  });
  Count(&ScrubProgress::bytes, &TierEngineStats::scrubbed_bytes, bytes_there);
  (void)Charge(bytes + bytes_there);  // It was judged once more, too.
  if (there.verdict != Verdict::kWhole) {
    const bool deleted = there.verdict == Verdict::kMissing;
    if (deleted) Count(&ScrubProgress::deleted, nullptr, 1);
    if (copy != nullptr) cause = "the copy did not get its name";
    WarnOnce(
        &warned_unrepaired_,
        deleted ? "a damaged file is not repaired, and deleted" : "a damaged file is not repaired",
        path, cause);
    return false;
  }
  const NamespaceId name_space = store::NamespaceOf(there.header);
  Post(FileRepaired{tier_, mount(), store::KeyOfPath(path), name_space, std::move(there.header)});
  return true;
}

std::shared_ptr<ScrubRun::Copying> ScrubRun::CopyFromOthers(const std::string& path,
                                                            std::string* cause, bool* may_be) {
  *cause = "no other tier has it";
  *may_be = false;
  for (uint32_t t = 0; t < kTiersMax; ++t) {
    const TierId from{t};
    if (from == tier_) continue;
    {
      MutexLock lock(&mu_);
      if (IsOut(from) || silent_.Has(from)) {  // One that did not open is out, too.
        *may_be = true;
        *cause = "another tier is out, or does not answer";
        continue;
      }
    }
    if (t >= tiers_.size()) continue;
    auto copy = std::make_shared<Copying>(from, tiers_[tier_.value], path);
    const Seen source = Copy(path, copy);
    if (source.verdict == Verdict::kWhole) return copy;
    if (source.verdict == Verdict::kMissing || source.verdict == Verdict::kForeign) continue;
    CountBadCopy(from, source.verdict);
    *may_be |= source.verdict != Verdict::kDamaged;
    *cause = "its copy on tier " + tiers_[t].name + ": " + source.why;
  }
  return nullptr;
}

ScrubRun::Seen ScrubRun::Copy(const std::string& path, const std::shared_ptr<Copying>& copy) {
  copy->seen_at = Now();
  try {
    std::thread([run = shared_from_this(), path, mine = copy]() mutable {
      run->CopyOnItsThread(path, std::move(mine));
    }).detach();
  } catch (const std::system_error& e) {
    return {Verdict::kGivenUp, {}, e.what()};
  }
  MutexLock lock(&mu_);
  while (!copy->seen.has_value()) {
    const TimeNs now = Now();
    seen_at_ = now;
    SayNowAndThen(now);
    if (now >= copy->seen_at + patience_) {
      copy->given_up = true;
      silent_.Add(copy->from);  // Another would leave another thread behind.
      return {Verdict::kUnreadable, {}, "it does not come"};
    }
    (void)changed_.WaitUntil(&mu_, now + kLook);
  }
  return *std::move(copy->seen);
}

void ScrubRun::CopyOnItsThread(const std::string& path, std::shared_ptr<Copying> copy) {
  NameThread("scrub-copy");
  bool begun = false;
  int error = 0;
  Seen seen = Look(copy->from, path, [&](std::span<const std::byte> blocks) {
    if (!std::exchange(begun, true)) error = copy->publication.Begin();
    if (error == 0) error = copy->publication.Append(blocks);
    return error == 0 && Spend(blocks.size(), copy.get());
  });
  if (seen.verdict == Verdict::kWhole) error = copy->publication.Finish();
  if (error != 0) {
    seen = {Verdict::kGivenUp, {}, std::string("it could not be written: ") + std::strerror(error)};
  }
  MutexLock lock(&mu_);
  copy->seen = std::move(seen);
  // Who waits for it has it, and removes what is not used of it.
  if (!copy->given_up) copy.reset();
  changed_.NotifyAll();
}

void ScrubRun::CountBadCopy(TierId tier, Verdict verdict) {
  MutexLock lock(&mu_);
  if (listeners_.stats == nullptr) return;
  TierEngineStats& stats = listeners_.stats->tiers[tier.value];
  if (verdict == Verdict::kDamaged) stats.scrub_damaged.Add();
  if (verdict == Verdict::kUnreadable) stats.scrub_unreadable.Add();
}

bool ScrubRun::SetAside(const std::string& path, const std::shared_ptr<Copying>& copy) {
  {
    MutexLock lock(&mu_);
    set_aside_ = false;
  }
  absl::AnyInvocable<int()> replace;
  if (copy != nullptr) {
    // For as long as this thread waits for it: then the damaged file gets its name back.
    replace = [waits = weak_from_this(), ready = std::weak_ptr<Copying>(copy)] {
      const auto run = waits.lock();
      const auto copied = ready.lock();
      return run != nullptr && copied != nullptr ? copied->publication.Link() : ECANCELED;
    };
  }
  Post(FileDamaged{tier_, mount(), path, store::KeyOfPath(path), std::move(replace),
                   [run = shared_from_this()] {
                     MutexLock lock(&run->mu_);
                     run->set_aside_ = true;
                     run->changed_.NotifyAll();
                   }});
  const TimeNs deadline = Now() + patience_;
  MutexLock lock(&mu_);
  // One that is cancelled waits for it all the same.
  while (!set_aside_ && !stopped_) {
    const TimeNs now = Now();
    seen_at_ = now;
    SayNowAndThen(now);
    if (now >= deadline) {
      status_.Update(
          absl::UnavailableError("tier " + tiers_[tier_.value].name + " does not answer"));
      return false;
    }
    (void)changed_.WaitUntil(&mu_, std::min(deadline, now + kLook));
  }
  return set_aside_;
}

}  // namespace kvstream::engine
