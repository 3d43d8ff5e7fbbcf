#include "server/engine/scrub_run.h"

#include <fcntl.h>
#include <linux/ioprio.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "server/base/clock.h"
#include "server/base/logging.h"
#include "server/tier/judge.h"
#include "server/tier/publication.h"
#include "server/tier/walk.h"

namespace kvstream::engine {
namespace {

constexpr TimeNs kSayEvery = kSecond;
// How often it looks whether its tier is back, or whether anybody listens.
constexpr TimeNs kLook = 50 * kMillisecond;
constexpr std::string_view kSuffix = ".kv";

bool Ignore(std::span<const std::byte>) { return true; }

// REQUIRES: a path of tier::WalkChunks.
KeyDigest KeyOf(std::string_view path) {
  KeyDigest key;
  const std::string_view hex =
      path.substr(path.size() - kSuffix.size() - 2 * key.bytes.size(), 2 * key.bytes.size());
  const auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (size_t i = 0; i < key.bytes.size(); ++i) {
    key.bytes[i] = static_cast<uint8_t>(value(hex[2 * i]) << 4 | value(hex[2 * i + 1]));
  }
  return key;
}

void TakeLowPriority() {
  // Of this thread. Not every scheduler knows it; the rate is what holds the scrub back.
  (void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0));
}

}  // namespace

ScrubRun::ScrubRun(EventPoster* poster, EngineStats* stats, std::vector<TierFiles> tiers,
                   TierSet wanted, uint64_t bytes_per_second, std::shared_ptr<ScrubSink> sink)
    : tiers_(std::move(tiers)),
      wanted_(wanted),
      bytes_per_second_(bytes_per_second),
      sink_(std::move(sink)),
      pace_(bytes_per_second, Now()),
      poster_(poster),
      stats_(stats) {
  for (uint32_t t = 0; t < tiers_.size() && tier_name_.empty(); ++t) {
    if (wanted_.Has(TierId{t})) tier_name_ = tiers_[t].name;
  }
}

void ScrubRun::Run() {
  pthread_setname_np(pthread_self(), "scrub");
  TakeLowPriority();
  absl::Status status;
  for (uint32_t t = 0; t < tiers_.size() && !over_; ++t) {
    // One that fails keeps none of the others from being scrubbed.
    if (wanted_.Has(TierId{t})) status.Update(ScrubTier(TierId{t}));
  }
  {
    MutexLock lock(&mu_);
    ended_ = true;  // Before the sink hears of it: it may begin another one at once.
    changed_.NotifyAll();
  }
  if (sink_ != nullptr) sink_->End(std::move(status));
}

bool ScrubRun::ended() {
  MutexLock lock(&mu_);
  return ended_;
}

std::string ScrubRun::tier_name() {
  MutexLock lock(&mu_);
  return tier_name_;
}

void ScrubRun::Stop(TimeNs deadline) {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.NotifyAll();
  while (!ended_ && changed_.WaitUntil(&mu_, deadline)) {
  }
  poster_ = nullptr;
  stats_ = nullptr;
}

absl::Status ScrubRun::ScrubTier(TierId tier) {
  tier_ = tier;
  progress_ = {.tier = tier};
  const TierFiles& files = tiers_[tier.value];
  {
    MutexLock lock(&mu_);
    tier_name_ = files.name;
  }
  ShowScrubbing(true);
  spdlog::info("scrub begins: tier={} bytes_per_second={}", files.name, bytes_per_second_);
  Say();
  tier::WalkCounts counts;
  bool all = true;
  absl::Status status = tier::WalkChunks(
      files.root.get(), [&](const std::string& path) { return all = Visit(path); }, &counts);
  progress_.foreign += counts.foreign;
  progress_.unreadable += counts.unreadable;
  Count(&TierEngineStats::scrub_unreadable, counts.unreadable);
  ShowScrubbing(false);
  if (!all) {
    over_ = true;
    status = Cancelled() ? absl::CancelledError("cancelled")
                         : absl::UnavailableError("the daemon is stopping");
  }
  LogEnd(status);
  if (!status.ok()) {
    return absl::Status(status.code(), "tier " + files.name + ": " + std::string(status.message()));
  }
  progress_.done = true;
  Say();
  return absl::OkStatus();
}

void ScrubRun::LogEnd(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (stats_ == nullptr) return;  // Left behind: the log may be gone, too.
  }
  const ScrubProgress& p = progress_;
  const bool clean = p.damaged == 0 && p.unreadable == 0;
  spdlog::log(clean ? spdlog::level::info : spdlog::level::warn,
              "scrub ends: tier={} status={} files={} bytes={} damaged={} repaired={} "
              "unreadable={} foreign={}",
              tiers_[tier_.value].name, absl::StatusCodeToString(status.code()), p.files, p.bytes,
              p.damaged, p.repaired, p.unreadable, p.foreign);
}

bool ScrubRun::Visit(const std::string& path) {
  if (!GoOn(0)) return false;
  store::ChunkHeader header;
  const Verdict verdict = Look(tier_, path, Ignore, &header);
  if (verdict == Verdict::kGivenUp) return false;
  if (verdict == Verdict::kWhole || verdict == Verdict::kDamaged) {
    progress_.files += 1;
    Count(&TierEngineStats::scrubbed_files, 1);
  } else if (verdict == Verdict::kForeign) {
    progress_.foreign += 1;
  } else if (verdict == Verdict::kUnreadable) {
    progress_.unreadable += 1;
    Count(&TierEngineStats::scrub_unreadable, 1);
  }
  if (verdict != Verdict::kDamaged) return true;
  progress_.damaged += 1;
  Count(&TierEngineStats::scrub_damaged, 1);
  if (Repair(path)) {
    progress_.repaired += 1;
    Count(&TierEngineStats::scrub_repaired, 1);
  }
  return true;
}

ScrubRun::Verdict ScrubRun::Look(TierId in, const std::string& path, OnBlocks on_blocks,
                                 store::ChunkHeader* header) {
  const TierFiles& files = tiers_[in.value];
  const UniqueFd fd = tier::OpenToJudge(files.root.get(), path, files.direct);
  if (!fd.valid()) return errno == ENOENT ? Verdict::kMissing : Verdict::kUnreadable;
  auto read = store::ReadChunkFile(fd.get(), KeyOf(path), [&](std::span<const std::byte> blocks) {
    return on_blocks(blocks) && Spend(blocks.size());
  });
  // What was read shall not stay in the page cache.
  if (!files.direct) (void)posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  switch (read.status().code()) {
    case absl::StatusCode::kOk:
      *header = *std::move(read);
      // Whole, but where nobody looks for it: not ours to judge.
      return store::ChunkPath(store::NamespaceOf(*header), KeyOf(path)) == path ? Verdict::kWhole
                                                                                : Verdict::kForeign;
    case absl::StatusCode::kDataLoss:
      return Verdict::kDamaged;
    case absl::StatusCode::kUnimplemented:
      return Verdict::kForeign;
    case absl::StatusCode::kCancelled:
      return Verdict::kGivenUp;
    default:
      return Verdict::kUnreadable;
  }
}

bool ScrubRun::Repair(const std::string& path) {
  if (!SetAside(path)) return false;
  // What another node has published meanwhile stands, as does what was whole when it was judged
  // again. What is still damaged could not be set aside.
  store::ChunkHeader header;
  Verdict there = Look(tier_, path, Ignore, &header);
  for (uint32_t t = 0; t < tiers_.size() && there == Verdict::kMissing; ++t) {
    if (TierId{t} != tier_ && !IsOut(TierId{t})) there = Copy(TierId{t}, path, &header);
  }
  if (there != Verdict::kWhole) return false;
  const NamespaceId name_space = store::NamespaceOf(header);
  Post(FileRepaired{tier_, KeyOf(path), name_space, std::move(header)});
  return true;
}

bool ScrubRun::SetAside(const std::string& path) {
  {
    MutexLock lock(&mu_);
    name_free_ = false;
  }
  Post(FileDamaged{tier_, path, KeyOf(path), [run = shared_from_this()] {
                     MutexLock lock(&run->mu_);
                     run->name_free_ = true;
                     run->changed_.NotifyAll();
                   }});
  while (!Cancelled()) {
    if (Now() >= said_at_ + kSayEvery) Say();
    MutexLock lock(&mu_);
    if (name_free_) return true;
    if (stopped_) return false;
    (void)changed_.WaitUntil(&mu_, Now() + kLook);
  }
  return false;
}

ScrubRun::Verdict ScrubRun::Copy(TierId from, const std::string& path, store::ChunkHeader* header) {
  const TierFiles& into = tiers_[tier_.value];
  tier::Publication publication(into.root.get(), path, into.direct);
  bool begun = false;
  int error = 0;
  const Verdict source = Look(
      from, path,
      [&](std::span<const std::byte> blocks) {
        if (!std::exchange(begun, true)) error = publication.Begin();
        if (error == 0) error = publication.Append(blocks);
        return error == 0;
      },
      header);
  if (error == 0 && source != Verdict::kWhole) {
    return source == Verdict::kGivenUp ? source : Verdict::kMissing;
  }
  if (error == 0) error = publication.Finish();
  if (error == 0) return Verdict::kWhole;
  if (error == EEXIST) return Look(tier_, path, Ignore, header);
  spdlog::debug("a damaged file could not be written anew: tier={} file={} errno={} ({})",
                into.name, path, error, std::strerror(error));
  return Verdict::kUnreadable;
}

bool ScrubRun::Spend(uint64_t bytes) {
  progress_.bytes += bytes;
  Count(&TierEngineStats::scrubbed_bytes, bytes);
  return GoOn(pace_.Spend(bytes, Now()));
}

bool ScrubRun::GoOn(TimeNs due) {
  while (!Cancelled()) {
    const TimeNs now = Now();
    if (now >= said_at_ + kSayEvery) Say();
    MutexLock lock(&mu_);
    if (stopped_) return false;
    const bool out = stats_->tiers[tier_.value].out.Get() != 0;
    if (!out && now >= due) return true;
    (void)changed_.WaitUntil(&mu_, out ? now + kLook : std::min(due, now + kLook));
  }
  return false;
}

void ScrubRun::Say() {
  said_at_ = Now();
  if (sink_ != nullptr) sink_->Send(progress_);
}

bool ScrubRun::IsOut(TierId tier) {
  MutexLock lock(&mu_);
  return stats_ == nullptr || stats_->tiers[tier.value].out.Get() != 0;
}

void ScrubRun::Count(Counter TierEngineStats::*counter, uint64_t n) {
  MutexLock lock(&mu_);
  if (stats_ != nullptr) (stats_->tiers[tier_.value].*counter).Add(n);
}

void ScrubRun::ShowScrubbing(bool scrubbing) {
  MutexLock lock(&mu_);
  if (stats_ != nullptr) stats_->tiers[tier_.value].scrubbing.Set(scrubbing ? 1 : 0);
}

void ScrubRun::Post(Event event) {
  MutexLock lock(&mu_);
  if (poster_ != nullptr) poster_->Post(std::move(event));
}

}  // namespace kvstream::engine
