#include "server/catalog/shared_catalog.h"

#include <optional>
#include <utility>

#include "server/catalog/adoption.h"

namespace kvstream::catalog {
namespace {

constexpr char kMergedFolder[] = "v1/catalog/merged";

// A merged log is nobody's: its name is that of a node's log, of a node of zeros.
std::string MergedName(uint64_t number) { return ToString(LogName{{}, number}); }

}  // namespace

SharedCatalog::SharedCatalog(Folder nodes, Folder merged, const store::NodeId& node,
                             const CatalogTimes& times, CatalogStats* stats)
    : nodes_(std::move(nodes)),
      merged_(std::move(merged)),
      node_(node),
      times_(times),
      stats_(stats) {
  stats_->leads.Set(0);  // One before it may have led.
}

absl::StatusOr<std::unique_ptr<SharedCatalog>> SharedCatalog::Open(int root_fd,
                                                                   const store::NodeId& node,
                                                                   const CatalogTimes& times,
                                                                   CatalogStats* stats,
                                                                   bool* was_taken) {
  auto nodes = Folder::Open(root_fd, kNodesFolder, &stats->metadata_calls);
  if (!nodes.ok()) return nodes.status();
  auto merged = Folder::Open(root_fd, kMergedFolder, &stats->metadata_calls);
  if (!merged.ok()) return merged.status();
  std::unique_ptr<SharedCatalog> catalog(
      new SharedCatalog(*std::move(nodes), *std::move(merged), node, times, stats));
  const auto taken = LastTaken(catalog->nodes_, node);
  if (!taken.ok()) return taken.status();
  auto own = NodeLog::Open(&catalog->nodes_, node, *taken);
  if (!own.ok()) return own.status();
  catalog->own_ = std::make_unique<NodeLog>(*std::move(own));
  *was_taken = *taken > 0;
  if (*taken > 0) {
    if (absl::Status s = ForgetTaken(catalog->nodes_, node); !s.ok()) return s;
  }
  return catalog;
}

absl::Status SharedCatalog::Say(std::string_view frames, TimeNs now) {
  std::string sign;
  if (frames.empty()) {
    if (now < said_at_ + times_.node_sign_every) return own_->MaybeCompact(now);
    frames = sign = store::CatalogFrame().Take(node_);
  }
  if (absl::Status s = own_->CheckName(); !s.ok()) return s;
  if (absl::Status s = own_->Append(frames); !s.ok()) return s;
  said_at_ = now;
  return own_->MaybeCompact(now);
}

absl::Status SharedCatalog::Hear(TimeNs now, OnEntry on_entry) {
  const auto newest = NewestMerged();
  if (!newest.ok()) return newest.status();
  if (leads_ && *newest != number_) StopLeading();
  if (!leads_ && (followed_ == nullptr || *newest != number_)) {
    // The rest of the one before.
    if (followed_ != nullptr && number_ > 0) {
      if (absl::Status s = Follow(now, on_entry); !s.ok()) return s;
    }
    number_ = *newest;
    followed_ = std::make_unique<LogReader>(MergedName(number_));
    grew_at_ = now;
  }
  if (!leads_ && number_ > 0) {
    if (absl::Status s = Follow(now, on_entry); !s.ok()) return s;
  }
  if (!leads_ && (number_ == 0 || now >= grew_at_ + times_.leader_patience)) {
    if (absl::Status s = Lead(now); !s.ok()) return s;
  }
  return leads_ ? Merge(now, on_entry) : absl::OkStatus();
}

absl::StatusOr<uint64_t> SharedCatalog::NewestMerged() const {
  const auto newest = FindLog(merged_, {});
  if (!newest.ok()) return newest.status();
  return newest->has_value() ? (*newest)->number : 0;
}

absl::Status SharedCatalog::Follow(TimeNs now, OnEntry on_entry) {
  const uint64_t damaged = followed_->damaged();
  const auto grew = followed_->ReadNew(
      merged_,
      [&](const store::NodeId& node, std::string_view frame) { OnFrame(node, frame, on_entry); });
  stats_->frames_damaged.Add(followed_->damaged() - damaged);
  // One that has gone has a follower; one that is none is somebody's who has died over it.
  if (absl::IsNotFound(grew.status()) || absl::IsDataLoss(grew.status())) return absl::OkStatus();
  if (!grew.ok()) return grew.status();
  if (*grew) grew_at_ = now;
  return absl::OkStatus();
}

void SharedCatalog::OnFrame(const store::NodeId& node, std::string_view frame,
                            OnEntry on_entry) const {
  if (node != node_) store::ForEachEntry(frame, on_entry);
}

absl::Status SharedCatalog::Lead(TimeNs now) {
  auto fd = merged_.Create(MergedName(number_ + 1));
  if (absl::IsAlreadyExists(fd.status())) return absl::OkStatus();  // Another was first.
  if (!fd.ok()) return fd.status();
  number_ += 1;
  followed_ = nullptr;
  leads_ = true;
  merged_fd_ = *std::move(fd);
  merged_bytes_ = 0;
  cleaned_ = false;
  led_at_ = now;
  logs_.clear();
  stats_->terms.Add();
  stats_->leads.Set(1);
  return AppendMerged(store::EncodeCatalogHeader({node_, number_}), now);
}

absl::Status SharedCatalog::Adopt(TimeNs now, OnEntry on_file) {
  if (!leads_ || times_.gone_after_seconds == 0) return absl::OkStatus();
  if (looked_for_gone_at_ > 0 && now < looked_for_gone_at_ + times_.gone_look_every) {
    return absl::OkStatus();
  }
  looked_for_gone_at_ = now;
  // Its time is what others' are compared with.
  if (absl::Status s = own_->Append(store::CatalogFrame().Take(node_)); !s.ok()) return s;
  const auto claims = TakeLogs(nodes_, own_->name(), times_.gone_after_seconds);
  if (!claims.ok()) return claims.status();
  for (const Claim& claim : *claims) {
    store::CatalogFrame frame;
    absl::Status said;
    const absl::Status read = ReadLogFiles(nodes_, ToString(claim), [&](const auto& file) {
      on_file(file);
      frame.Add(file);
      if (frame.full()) said = own_->Append(frame.Take(node_));
      return said.ok();
    });
    if (said.ok() && !frame.empty()) said = own_->Append(frame.Take(node_));
    if (!said.ok()) return said;
    // What cannot be read now is tried again; what is none, or of a later version, is left.
    if (absl::IsDataLoss(read) || absl::IsUnimplemented(read)) continue;
    if (!read.ok()) return read;
    if (absl::Status s = FinishClaim(nodes_, claim); !s.ok()) return s;
    stats_->nodes_adopted.Add();
  }
  return absl::OkStatus();
}

void SharedCatalog::RemoveOlderMerged() {
  const auto names = merged_.List();
  if (!names.ok()) return;
  cleaned_ = true;
  for (const std::string& name : *names) {
    const auto parsed = ParseLogName(name);
    if (parsed.has_value() && parsed->number < number_) (void)merged_.Remove(name);
  }
}

void SharedCatalog::StopLeading() {
  leads_ = false;
  stats_->leads.Set(0);
  merged_fd_.Reset();
  logs_.clear();
}

absl::Status SharedCatalog::AppendMerged(std::string_view frames, TimeNs now) {
  absl::Status status = WriteAt(merged_fd_.get(), frames, merged_bytes_, MergedName(number_));
  if (!status.ok()) {
    // Who has read to its end does not read what took the place of this: another begins anew.
    StopLeading();
    return status;
  }
  merged_bytes_ += frames.size();
  merged_at_ = now;
  return absl::OkStatus();
}

absl::Status SharedCatalog::Copy(LogReader& log, std::string* frames, TimeNs now,
                                 OnEntry on_entry) {
  absl::Status copied;
  const uint64_t damaged = log.damaged();
  const auto grew = log.ReadNew(nodes_, [&](const store::NodeId& said_by, std::string_view frame) {
    *frames += frame;
    OnFrame(said_by, frame, on_entry);
    if (frames->size() < kCopyBytes || !copied.ok()) return;
    copied = AppendMerged(std::exchange(*frames, {}), now);
  });
  stats_->frames_damaged.Add(log.damaged() - damaged);
  if (!copied.ok()) return copied;
  // One that has just gone, is none, or is of a later version: the others go on.
  const bool skipped = absl::IsNotFound(grew.status()) || absl::IsDataLoss(grew.status()) ||
                       absl::IsUnimplemented(grew.status());
  return skipped ? absl::OkStatus() : grew.status();
}

absl::Status SharedCatalog::Merge(TimeNs now, OnEntry on_entry) {
  const auto names = nodes_.List();
  if (!names.ok()) return names.status();
  std::map<store::NodeId, std::string> newest;  // The names are in order.
  for (const std::string& name : *names) {
    if (const auto parsed = ParseLogName(name)) newest[parsed->node] = name;
  }
  std::erase_if(logs_, [&](const auto& log) { return !newest.contains(log.first); });
  std::string frames;
  uint64_t bytes = 0;
  for (const auto& [node, name] : newest) {
    const auto [log, is_new] = logs_.try_emplace(node, name);
    if (!is_new && log->second.name() != name) {
      // The rest of the one before.
      if (absl::Status s = Copy(log->second, &frames, now, on_entry); !s.ok()) return s;
      log->second = LogReader(name);
    }
    if (absl::Status s = Copy(log->second, &frames, now, on_entry); !s.ok()) return s;
    bytes += log->second.offset();
  }
  if (frames.empty() && now >= merged_at_ + times_.leader_sign_every) {
    frames = store::CatalogFrame().Take(node_);
  }
  if (!frames.empty()) {
    if (absl::Status s = AppendMerged(frames, now); !s.ok()) return s;
  }
  if (!cleaned_ && now >= led_at_ + kOldStaysFor) RemoveOlderMerged();
  if (merged_bytes_ > kRotateBytesMin && merged_bytes_ / 2 > bytes) return Lead(now);
  return absl::OkStatus();
}

}  // namespace kvstream::catalog
