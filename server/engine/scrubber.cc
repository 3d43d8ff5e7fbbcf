#include "server/engine/scrubber.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/logging.h"

namespace kvstream::engine {
namespace {

constexpr TimeNs kLookAtHung = 10 * kSecond;

}  // namespace

Scrubber::~Scrubber() { Stop(Now()); }

void Scrubber::Begin(BeginScrub event) {
  if (!running()) return Start(std::move(event));
  const std::string refusal =
      "tier " + parts_.tiers[tier_.value]->options().name + " is being scrubbed";
  if (event.sink == nullptr) {
    parts_.stats->scrubs_refused.Add();
    spdlog::warn("no scrub: cause={}", refusal);
  } else if (scrub_->sink != nullptr || next_.has_value()) {
    event.sink->End(absl::FailedPreconditionError(refusal));
  } else {
    next_ = std::move(event);
    run_->Cancel(absl::CancelledError("cancelled"));
  }
}

void Scrubber::Start(BeginScrub event) {
  scrub_ = std::move(event);
  outcome_ = absl::OkStatus();
  GoOn();
}

void Scrubber::GoOn() {
  for (uint32_t t = 0; t < parts_.tiers.size(); ++t) {
    if (!scrub_->tiers.Has(TierId{t})) continue;
    scrub_->tiers.Remove(TierId{t});
    // One that fails keeps none of the others from being scrubbed.
    const absl::Status begun = StartTier(TierId{t});
    if (begun.ok()) return;
    parts_.stats->tiers[t].scrubs_unfinished.Add();
    spdlog::warn("no scrub: tier={} cause={}", parts_.tiers[t]->options().name,
                 std::string(begun.message()));
    outcome_.Update(begun);
  }
  const std::shared_ptr<ScrubSink> sink = std::move(scrub_->sink);
  scrub_.reset();
  if (sink != nullptr) sink->End(outcome_);
  if (next_.has_value()) Start(*std::exchange(next_, std::nullopt));
}

absl::Status Scrubber::StartTier(TierId tier) {
  const std::string& name = parts_.tiers[tier.value]->options().name;
  ForgetEnded();
  if (hung_[tier.value] != nullptr) {
    return absl::UnavailableError("tier " + name + " does not answer to an earlier scrub");
  }
  std::vector<ScrubRun::TierFiles> files;
  for (const tier::Tier* t : parts_.tiers) {
    files.push_back({t->options().name, t->Root(), t->facts().direct, t->options().fsync});
    if (files.back().root.fd.valid()) continue;
    return absl::ResourceExhaustedError("no descriptor for the root of tier " + files.back().name);
  }
  const uint64_t rate =
      scrub_->bytes_per_second != 0 ? scrub_->bytes_per_second : options_.bytes_per_second;
  auto run =
      std::make_shared<ScrubRun>(ScrubRun::Listeners{parts_.poster, parts_.stats, scrub_->sink},
                                 std::move(files), tier, rate, options_.patience);
  TierEngineStats& stats = parts_.stats->tiers[tier.value];
  stats.scrubbing.Set(1);
  try {
    // It may hang with the file system, and then it stays behind.
    std::thread([run] { run->Run(); }).detach();
  } catch (const std::system_error& e) {
    stats.scrubbing.Set(0);
    return absl::ResourceExhaustedError("no thread: " + std::string(e.what()));
  }
  spdlog::info("scrub begins: tier={} bytes_per_second={}", name, rate);
  tier_ = tier;
  run_ = std::move(run);
  look_at_ = Now() + options_.patience;
  return absl::OkStatus();
}

void Scrubber::OnTierScrubbed() {
  if (run_ == nullptr || !run_->ended()) return;  // Of one that was left behind.
  absl::Status status = run_->status();
  status.Update(WhetherRemounted());
  Conclude(status);
}

void Scrubber::Record(const absl::Status& status) {
  const ScrubProgress p = run_->progress();
  TierEngineStats& stats = parts_.stats->tiers[tier_.value];
  const uint64_t unrepaired = p.damaged - p.repaired;
  stats.scrubbing.Set(0);
  if (status.ok()) {
    stats.scrubs_completed.Add();
    stats.scrub_completed_at.Set(static_cast<uint64_t>(absl::ToUnixSeconds(absl::Now())));
    stats.scrub_unrepaired.Set(unrepaired);
  } else {
    // It does not say that the files that it did not get to are in order.
    stats.scrubs_unfinished.Add();
    stats.scrub_unrepaired.Set(std::max(unrepaired, stats.scrub_unrepaired.Get()));
  }
  const bool quiet = status.ok() || absl::IsCancelled(status);
  const bool clean = p.damaged == 0 && p.unreadable == 0;
  spdlog::log(quiet && clean ? spdlog::level::info : spdlog::level::warn,
              "scrub ends: tier={} status={} files={} bytes={} damaged={} repaired={} "
              "deleted={} unreadable={} foreign={}{}",
              parts_.tiers[tier_.value]->options().name, absl::StatusCodeToString(status.code()),
              p.files, p.bytes, p.damaged, p.repaired, p.deleted, p.unreadable, p.foreign,
              status.ok() ? "" : " cause=" + std::string(status.message()));
}

void Scrubber::Conclude(const absl::Status& status) {
  Record(status);
  run_ = nullptr;
  const bool unwanted = scrub_->sink != nullptr && scrub_->sink->cancelled();
  if (unwanted || next_.has_value()) scrub_->tiers = {};
  outcome_.Update(status);
  GoOn();
}

bool Scrubber::Remounted(TierId tier, uint64_t mount) const {
  return parts_.tiers[tier.value]->stats().remounts.Get() != mount;
}

absl::Status Scrubber::WhetherRemounted() const {
  for (uint32_t t = 0; t < run_->tiers().size(); ++t) {
    const ScrubRun::TierFiles& files = run_->tiers()[t];
    if (!Remounted(TierId{t}, files.root.mount)) continue;
    return absl::UnavailableError("tier " + files.name + " was mounted anew");
  }
  return absl::OkStatus();
}

void Scrubber::OnDamaged(FileDamaged event) {
  if (Remounted(event.tier, event.mount)) {
    if (event.done != nullptr) event.done();
    return;
  }
  const auto entry = parts_.index->Find(event.key);
  if (entry.has_value()) known_ = Known{event.key, entry->name_space, entry->shape};
  parts_.index->RemoveReplicas(event.key, event.tier);
  if (event.done == nullptr) return parts_.asides->Suspect(event.tier, event.key);
  if (event.replace != nullptr) {
    // The copy is on the file system that was scrubbed.
    event.replace = [&now = parts_.tiers[event.tier.value]->stats().remounts, then = event.mount,
                     replace = std::move(event.replace)]() mutable {
      return now.Get() == then ? replace() : ESTALE;
    };
  }
  parts_.asides->Begin(event.tier, event.path, event.key, std::move(event.done),
                       std::move(event.replace));
}

void Scrubber::OnRepaired(const FileRepaired& event) {
  if (Remounted(event.tier, event.mount)) return;
  parts_.asides->Trust(event.tier, event.key);
  // The index learns nothing here of keys that it did not know: a header alone does not say that
  // the shape is the namespace's.
  const auto entry = parts_.index->Find(event.key);
  if (entry.has_value()) {
    known_ = Known{event.key, entry->name_space, entry->shape};
  }
  if (!known_.has_value() || known_->key != event.key || known_->name_space != event.name_space ||
      known_->shape != event.header.shape) {
    return;
  }
  const store::ChunkFacts chunk{event.key,
                                store::SiblingsOfEncodedKey(event.header.encoded_key),
                                event.name_space,
                                event.header.shape,
                                event.header.content,
                                event.header.checksums};
  parts_.index->AddReplica(chunk, event.tier);
  parts_.asides->NotePublished(event.tier, chunk, /*own=*/true);
}

void Scrubber::ForgetEnded() {
  for (uint32_t t = 0; t < hung_.size(); ++t) {
    if (hung_[t] == nullptr || !hung_[t]->ended()) continue;
    hung_[t] = nullptr;
    parts_.stats->tiers[t].scrub_hung.Set(0);
  }
}

void Scrubber::Tick(bool draining, TimeNs now) {
  ForgetEnded();
  const bool some_hang = std::ranges::any_of(hung_, [](const auto& run) { return run != nullptr; });
  look_at_hung_ = some_hang ? now + kLookAtHung : kNever;
  OnTierScrubbed();
  if (run_ != nullptr) {
    if (absl::Status remounted = WhetherRemounted(); !remounted.ok()) run_->Cancel(remounted);
  }
  if (run_ != nullptr && now >= look_at_) {
    look_at_ = run_->seen_at() + options_.patience;
    if (now >= look_at_) {
      run_->Stop(now);
      hung_[tier_.value] = run_;
      parts_.stats->tiers[tier_.value].scrub_hung.Set(1);
      Conclude(absl::UnavailableError("tier " + parts_.tiers[tier_.value]->options().name +
                                      " does not answer"));
    }
  }
  if (options_.every == 0) return;
  if (!due_.has_value()) due_ = now + options_.every;
  if (now < *due_) return;
  due_ = now + options_.every;
  if (draining) return;
  BeginScrub all;
  for (const tier::Tier* tier : parts_.tiers) all.tiers.Add(tier->options().id);
  Begin(std::move(all));
}

TimeNs Scrubber::NextDeadline() const {
  const TimeNs look = std::min(run_ != nullptr ? look_at_ : kNever, look_at_hung_);
  return options_.every == 0 ? look : std::min(look, due_.value_or(0));
}

void Scrubber::Stop(TimeNs deadline) {
  if (run_ != nullptr) {
    run_->Stop(deadline);
    Record(run_->status());
    run_ = nullptr;
  }
  for (std::optional<BeginScrub>* scrub : {&scrub_, &next_}) {
    if (scrub->has_value() && (*scrub)->sink != nullptr) {
      (*scrub)->sink->End(absl::UnavailableError("the daemon is stopping"));
    }
    scrub->reset();
  }
}

}  // namespace kvstream::engine
