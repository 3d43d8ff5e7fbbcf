#include "server/engine/scrub_run.h"

#include <fcntl.h>
#include <linux/ioprio.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "server/base/clock.h"
#include "server/base/logging.h"
#include "server/tier/judge.h"
#include "server/tier/walk.h"

namespace kvstream::engine {
namespace {

constexpr TimeNs kSayEvery = kSecond;
// What a file or a folder costs at least, as bytes: opening many small ones is work, too.
constexpr uint64_t kCostMin = 64 * kKiB;

}  // namespace

void ScrubRun::NameThread(const char* name) {
  pthread_setname_np(pthread_self(), name);
  // Low priority, of this thread. Not every scheduler knows it; the rate is what holds it back.
  (void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0));
}

ScrubRun::ScrubRun(Listeners listeners, std::vector<TierFiles> tiers, TierId tier,
                   uint64_t bytes_per_second, TimeNs patience)
    : tiers_(std::move(tiers)),
      tier_(tier),
      patience_(patience),
      listeners_(std::move(listeners)),
      progress_{.tier = tier},
      pace_(bytes_per_second, Now()),
      seen_at_(Now()) {}

void ScrubRun::Run() {
  NameThread("scrub");
  {
    MutexLock lock(&mu_);
    Say();
  }
  tier::WalkCounts counts;
  const absl::Status walked = tier::WalkChunks(
      tiers_[tier_.value].root.fd.get(), [this] { return Charge(kCostMin); },
      [this](const std::string& path) { return Visit(path); }, [](int, const char*) {}, &counts);
  Count(&ScrubProgress::foreign, nullptr, counts.foreign);
  Count(&ScrubProgress::unreadable, &TierEngineStats::scrub_unreadable, counts.unreadable);
  MutexLock lock(&mu_);
  if (!walked.ok()) {
    status_.Update(absl::Status(
        walked.code(), "tier " + tiers_[tier_.value].name + ": " + std::string(walked.message())));
  }
  progress_.done = status_.ok();
  if (progress_.done) Say();
  ended_ = true;
  changed_.NotifyAll();
  if (listeners_.poster != nullptr) listeners_.poster->Post(TierScrubbed{});
}

bool ScrubRun::ended() {
  MutexLock lock(&mu_);
  return ended_;
}

absl::Status ScrubRun::status() {
  MutexLock lock(&mu_);
  return status_;
}

ScrubProgress ScrubRun::progress() {
  MutexLock lock(&mu_);
  return progress_;
}

TimeNs ScrubRun::seen_at() {
  MutexLock lock(&mu_);
  return seen_at_;
}

void ScrubRun::Cancel(const absl::Status& why) {
  MutexLock lock(&mu_);
  if (!ended_) status_.Update(why);
  changed_.NotifyAll();
}

void ScrubRun::Stop(TimeNs deadline) {
  MutexLock lock(&mu_);
  stopped_ = true;
  if (!ended_) status_.Update(absl::UnavailableError("the daemon is stopping"));
  changed_.NotifyAll();
  while (!ended_ && changed_.WaitUntil(&mu_, deadline)) {
  }
  listeners_ = {};
}

bool ScrubRun::Visit(const std::string& path) {
  if (!GoOn(0)) return false;
  uint64_t bytes = 0;
  const Seen seen = Look(tier_, path, [&](std::span<const std::byte> blocks) {
    bytes += blocks.size();
    return Spend(blocks.size());
  });
  switch (seen.verdict) {
    case Verdict::kGivenUp:
      return false;
    case Verdict::kMissing:
      break;
    case Verdict::kForeign:
      Count(&ScrubProgress::foreign, nullptr, 1);
      break;
    case Verdict::kUnreadable:
      Count(&ScrubProgress::unreadable, &TierEngineStats::scrub_unreadable, 1);
      WarnOnce(&warned_unreadable_, "a scrub could not read a file", path, seen.why);
      break;
    case Verdict::kWhole:
      Count(&ScrubProgress::files, &TierEngineStats::scrubbed_files, 1);
      break;
    case Verdict::kDamaged:
      Count(&ScrubProgress::files, &TierEngineStats::scrubbed_files, 1);
      Count(&ScrubProgress::damaged, &TierEngineStats::scrub_damaged, 1);
      WarnOnce(&warned_damaged_, "a scrub has found a damaged file", path, seen.why);
      if (!Repair(path, bytes)) break;
      Count(&ScrubProgress::repaired, &TierEngineStats::scrub_repaired, 1);
  }
  return Charge(kCostMin - std::min(bytes, kCostMin));
}

ScrubRun::Seen ScrubRun::Look(TierId in, const std::string& path, OnBlocks on_blocks) {
  const TierFiles& files = tiers_[in.value];
  const UniqueFd fd = tier::OpenToJudge(files.root.fd.get(), path, files.direct);
  if (!fd.valid()) {
    const Verdict verdict = errno == ENOENT ? Verdict::kMissing : Verdict::kUnreadable;
    return {verdict, {}, std::string("open: ") + std::strerror(errno)};
  }
  auto read = store::ReadChunkFile(fd.get(), store::KeyOfPath(path), on_blocks);
  // What was read shall not stay in the page cache.
  if (!files.direct) (void)posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  const std::string why(read.status().message());
  switch (read.status().code()) {
    case absl::StatusCode::kOk:
      // Whole, but where nobody looks for it: not ours to judge.
      if (store::ChunkPath(store::NamespaceOf(*read), store::KeyOfPath(path)) != path) {
        return {Verdict::kForeign, {}, "it is of another namespace"};
      }
      return {Verdict::kWhole, *std::move(read), {}};
    case absl::StatusCode::kDataLoss:
      return {Verdict::kDamaged, {}, why};
    case absl::StatusCode::kUnimplemented:
      return {Verdict::kForeign, {}, why};
    case absl::StatusCode::kCancelled:
      return {Verdict::kGivenUp, {}, why};
    default:
      return {Verdict::kUnreadable, {}, why};
  }
}

bool ScrubRun::Spend(uint64_t bytes, Copying* copy) {
  TimeNs due;
  {
    MutexLock lock(&mu_);
    if (!MayGoOn(copy)) return false;
    progress_.bytes += bytes;
    listeners_.stats->tiers[tier_.value].scrubbed_bytes.Add(bytes);
    due = pace_.Spend(bytes, Now());
  }
  return GoOn(due, copy);
}

bool ScrubRun::Charge(uint64_t bytes) {
  TimeNs due;
  {
    MutexLock lock(&mu_);
    due = pace_.Spend(bytes, Now());
  }
  return GoOn(due);
}

bool ScrubRun::MayGoOn(Copying* copy) {
  if (listeners_.sink != nullptr && listeners_.sink->cancelled()) {
    status_.Update(absl::CancelledError("cancelled"));
  }
  if (copy != nullptr && (copy->given_up || IsOut(copy->from))) return false;
  return status_.ok();
}

bool ScrubRun::GoOn(TimeNs due, Copying* copy) {
  MutexLock lock(&mu_);
  std::optional<TimeNs> out_since;
  while (MayGoOn(copy)) {
    const TimeNs now = Now();
    (copy == nullptr ? seen_at_ : copy->seen_at) = now;
    SayNowAndThen(now);
    const bool out = IsOut(tier_);
    if (!out && now >= due) return true;
    if (!out) {
      out_since.reset();
    } else if (!out_since.has_value()) {
      out_since = now;
      if (listeners_.stats != nullptr && !std::exchange(warned_out_, true)) {
        spdlog::warn("a scrub waits for its tier, which is out of service: tier={}",
                     tiers_[tier_.value].name);
      }
    } else if (now - *out_since >= patience_) {
      status_.Update(
          absl::UnavailableError("tier " + tiers_[tier_.value].name + " is out of service"));
      return false;
    }
    (void)changed_.WaitUntil(&mu_, out ? now + kLook : std::min(due, now + kLook));
  }
  return false;
}

bool ScrubRun::IsOut(TierId tier) {
  return listeners_.stats == nullptr || listeners_.stats->tiers[tier.value].out.Get() != 0;
}

void ScrubRun::Say() {
  said_at_ = Now();
  if (listeners_.sink != nullptr) listeners_.sink->Send(progress_);
}

void ScrubRun::SayNowAndThen(TimeNs now) {
  if (now >= said_at_ + kSayEvery) Say();
}

void ScrubRun::Count(uint64_t ScrubProgress::*number, Counter TierEngineStats::*counter,
                     uint64_t n) {
  MutexLock lock(&mu_);
  progress_.*number += n;
  if (counter != nullptr && listeners_.stats != nullptr) {
    (listeners_.stats->tiers[tier_.value].*counter).Add(n);
  }
}

void ScrubRun::WarnOnce(bool* warned, const char* what, const std::string& path,
                        const std::string& cause) {
  MutexLock lock(&mu_);
  if (listeners_.stats == nullptr || std::exchange(*warned, true)) return;
  spdlog::warn("{}: tier={} file={} cause={}", what, tiers_[tier_.value].name, path, cause);
}

void ScrubRun::Post(Event event) {
  MutexLock lock(&mu_);
  if (listeners_.poster != nullptr) listeners_.poster->Post(std::move(event));
}

}  // namespace kvstream::engine
