#include "server/engine/catalog_run.h"

#include <pthread.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "server/base/clock.h"
#include "server/catalog/node_id.h"

namespace kvstream::engine {
namespace {

FoundFile FoundFileOf(const store::CatalogEntry& file) {
  const store::ChunkFacts& chunk = file.chunk;
  return {.key = chunk.key,
          .siblings = chunk.siblings,
          .name_space = chunk.name_space,
          .shape = chunk.shape,
          .content = chunk.content,
          .checksums = {chunk.checksums.begin(), chunk.checksums.end()},
          .before = file.before,
          .unused_seconds = 0};
}

}  // namespace

void CatalogRun::Run() {
  pthread_setname_np(pthread_self(), "catalog");
  bool more = true;
  while (more) {
    more = WaitForLook();
    // The last one says what waits, and hears nothing that anybody would take.
    absl::Status status = Open();
    if (status.ok()) status = more ? Look() : SayAll();
    MutexLock lock(&mu_);
    status_ = std::move(status);
    looked_at_ = Now();
  }
  MutexLock lock(&mu_);
  ended_ = true;
  changed_.NotifyAll();
}

bool CatalogRun::WaitForLook() {
  MutexLock lock(&mu_);
  if (looked_at_ == 0) return !stopped_;
  const TimeNs next = looked_at_ + plan_.options.every;
  while (!stopped_ && changed_.WaitUntil(&mu_, next)) {
  }
  return !stopped_;
}

absl::Status CatalogRun::Open() {
  if (catalog_ != nullptr) return absl::OkStatus();
  const auto node = catalog::LoadNodeId(plan_.home.get());
  if (!node.ok()) return node.status();
  node_ = *node;
  bool was_taken = false;
  auto opened = catalog::SharedCatalog::Open(plan_.root.fd.get(), node_, plan_.options.times,
                                             counts_.get(), &was_taken);
  if (!opened.ok()) return opened.status();
  catalog_ = *std::move(opened);
  heard_.disowned = was_taken;
  return absl::OkStatus();
}

absl::Status CatalogRun::Look() {
  // What cannot be said keeps nobody from hearing.
  const absl::Status said = SayAll();
  if (absl::IsAborted(said)) {
    catalog_ = nullptr;
    return said;
  }
  absl::Status heard = catalog_->Hear(Now(), this);
  if (heard.ok() && said.ok()) heard = catalog_->Adopt(Now(), this);
  Deliver();
  return said.ok() ? heard : said;
}

absl::Status CatalogRun::SayAll() {
  while (true) {
    if (unsaid_bytes_.empty()) {
      std::optional<store::CatalogFrame> frame;
      {
        MutexLock lock(&mu_);
        if (!unsaid_.empty()) {
          frame = std::move(unsaid_.front());
          unsaid_.pop_front();
        }
      }
      if (frame.has_value()) unsaid_bytes_ = frame->Take(node_);
    }
    if (absl::Status said = catalog_->Say(unsaid_bytes_, Now()); !said.ok()) return said;
    if (std::exchange(unsaid_bytes_, {}).empty()) return absl::OkStatus();
  }
}

void CatalogRun::OnTellingAll() {
  Deliver();
  heard_.telling_all = true;
}

void CatalogRun::OnAllTold() {
  heard_.all_told = true;
  Deliver();
}

void CatalogRun::OnEntry(const store::CatalogEntry& entry) {
  switch (entry.what) {
    case store::CatalogEntry::What::kFile:
      heard_.files.push_back(FoundFileOf(entry));
      break;
    case store::CatalogEntry::What::kGone:
      // In one event what is gone goes before what is there.
      if (std::ranges::any_of(heard_.files,
                              [&](const FoundFile& file) { return file.key == entry.chunk.key; })) {
        Deliver();
      }
      heard_.gone.push_back(entry.chunk.key);
      break;
    case store::CatalogEntry::What::kUsed:
      heard_.used.push_back(entry.chunk.siblings);
      break;
  }
  if (heard_.files.size() + heard_.gone.size() + heard_.used.size() >= kHintsAtOnce) Deliver();
}

void CatalogRun::OnAdopted(const store::CatalogEntry& file) {
  heard_.adopted.push_back(FoundFileOf(file));
  if (heard_.adopted.size() >= kHintsAtOnce) Deliver();
}

void CatalogRun::Deliver() {
  HintsHeard heard = std::exchange(heard_, {});
  if (heard.files.empty() && heard.gone.empty() && heard.used.empty() && heard.adopted.empty() &&
      !heard.disowned && !heard.telling_all && !heard.all_told) {
    return;
  }
  heard.tier = plan_.tier;
  heard.mount = plan_.root.mount;
  heard.run = shared_from_this();
  MutexLock lock(&mu_);
  while (!stopped_ && untaken_ == kUntakenMax) changed_.Wait(&mu_);
  if (stopped_) return;
  untaken_ += 1;
  poster_->Post(std::move(heard));
}

void CatalogRun::Say(store::CatalogFrame frame) {
  MutexLock lock(&mu_);
  unsaid_.push_back(std::move(frame));
}

size_t CatalogRun::unsaid() {
  MutexLock lock(&mu_);
  return unsaid_.size();
}

void CatalogRun::Taken() {
  MutexLock lock(&mu_);
  untaken_ -= 1;
  changed_.NotifyAll();
}

absl::Status CatalogRun::status() {
  MutexLock lock(&mu_);
  return status_;
}

TimeNs CatalogRun::looked_at() {
  MutexLock lock(&mu_);
  return looked_at_;
}

void CatalogRun::Cancel() {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.NotifyAll();
}

void CatalogRun::Stop(TimeNs deadline) {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.NotifyAll();
  while (!ended_ && changed_.WaitUntil(&mu_, deadline)) {
  }
  poster_ = nullptr;
}

}  // namespace kvstream::engine
