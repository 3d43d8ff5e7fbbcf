#include "server/catalog/shared_catalog.h"

#include <optional>
#include <utility>

#include "server/catalog/adoption.h"

namespace kvstream::catalog {
namespace {

constexpr char kMergedFolder[] = "v1/catalog/merged";

// A merged log is nobody's: its name is that of a node's log, of a node of zeros.
// One that has just gone, is none, or is of a later version: the others go on.
bool IsLeftOut(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsDataLoss(status) || absl::IsUnimplemented(status);
}

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
    if (now < said_at_ + times_.node_sign_every) return own_->Maintain(now);
    frames = sign = store::CatalogFrame().Take(node_);
  }
  if (absl::Status s = own_->CheckName(); !s.ok()) return s;
  if (absl::Status s = own_->Append(frames); !s.ok()) return s;
  said_at_ = now;
  return own_->Maintain(now);
}

absl::Status SharedCatalog::Hear(TimeNs now, CatalogListener* listener) {
  const auto newest = NewestMerged();
  if (!newest.ok()) return newest.status();
  if (leads_ && *newest != number_) StopLeading();
  if (!leads_ && (followed_ == nullptr || *newest != number_)) {
    // The rest of the one before.
    if (followed_ != nullptr && number_ > 0) {
      if (absl::Status s = Follow(now, listener); !s.ok()) return s;
    }
    number_ = *newest;
    followed_ = std::make_unique<LogReader>(MergedName(number_));
    all_told_ = false;
    grew_at_ = now;
    if (number_ > 0) listener->OnTellingAll();
  }
  if (!leads_ && number_ > 0) {
    if (absl::Status s = Follow(now, listener); !s.ok()) return s;
  }
  absl::Status status;
  if (!leads_ && (number_ == 0 || now >= grew_at_ + times_.leader_patience)) {
    status = Lead(now, listener);
  }
  if (status.ok() && leads_) status = Merge(now, listener);
  // Who has read to its end does not read what takes the place of this: another begins anew.
  if (append_failed_) StopLeading();
  return status;
}

absl::StatusOr<uint64_t> SharedCatalog::NewestMerged() const {
  const auto newest = FindLog(merged_, {});
  if (!newest.ok()) return newest.status();
  return newest->has_value() ? (*newest)->number : 0;
}

absl::Status SharedCatalog::Follow(TimeNs now, CatalogListener* listener) {
  const uint64_t damaged = followed_->damaged();
  const bool reads_first = followed_->offset() == 0;
  const auto grew =
      followed_->ReadNew(merged_, [&](const store::NodeId& node, std::string_view frame) {
        OnFrame(node, frame, /*is_old=*/reads_first || !all_told_, listener);
        // The leader's mark behind what there was.
        if (all_told_ || frame.size() > store::kFrameHeaderBytes) return;
        all_told_ = true;
        listener->OnAllTold();
      });
  stats_->frames_damaged.Add(followed_->damaged() - damaged);
  // One that has gone has a follower; one that is none is somebody's who has died over it.
  if (absl::IsNotFound(grew.status()) || absl::IsDataLoss(grew.status())) return absl::OkStatus();
  if (!grew.ok()) return grew.status();
  if (*grew) grew_at_ = now;
  return absl::OkStatus();
}

void SharedCatalog::OnFrame(const store::NodeId& node, std::string_view frame, bool is_old,
                            CatalogListener* listener) const {
  if (node == node_) return;
  store::ForEachEntry(frame, [&](const store::CatalogEntry& entry) {
    // Uses of long ago are none of now.
    const bool counts = !is_old || entry.what != store::CatalogEntry::What::kUsed;
    if (counts) listener->OnEntry(entry);
  });
}

absl::Status SharedCatalog::Lead(TimeNs now, CatalogListener* listener) {
  auto fd = merged_.Create(MergedName(number_ + 1));
  if (absl::IsAlreadyExists(fd.status())) return absl::OkStatus();  // Another was first.
  if (!fd.ok()) return fd.status();
  number_ += 1;
  followed_ = nullptr;
  leads_ = true;
  merged_fd_ = *std::move(fd);
  merged_bytes_ = 0;
  append_failed_ = false;
  all_told_ = false;
  cleaned_ = false;
  missed_ = false;
  led_at_ = now;
  logs_.clear();
  stats_->terms.Add();
  stats_->leads.Set(1);
  listener->OnTellingAll();
  return AppendMerged(store::EncodeCatalogHeader({node_, number_}), now);
}

absl::Status SharedCatalog::Adopt(TimeNs now, CatalogListener* listener) {
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
      listener->OnAdopted(file);
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
  append_failed_ = false;
  stats_->leads.Set(0);
  merged_fd_.Reset();
  logs_.clear();
}

absl::Status SharedCatalog::AppendMerged(std::string_view frames, TimeNs now) {
  absl::Status status = WriteAt(merged_fd_.get(), frames, merged_bytes_, MergedName(number_));
  if (status.ok()) status = Flush(merged_fd_.get(), MergedName(number_));
  append_failed_ = !status.ok();
  if (!status.ok()) return status;
  merged_bytes_ += frames.size();
  merged_at_ = now;
  return absl::OkStatus();
}

absl::Status SharedCatalog::CopyNew(LogReader& log, std::string* frames, TimeNs now,
                                    CatalogListener* listener) {
  absl::Status copied;
  const uint64_t damaged = log.damaged();
  const auto grew = log.ReadNew(nodes_, [&](const store::NodeId& said_by, std::string_view frame) {
    if (!copied.ok()) return;
    *frames += frame;
    OnFrame(said_by, frame, /*is_old=*/!all_told_, listener);
    if (frames->size() >= kCopyBytes) {
      copied = AppendMerged(std::exchange(*frames, {}), now);
    }
  });
  stats_->frames_damaged.Add(log.damaged() - damaged);
  if (absl::IsNotFound(grew.status())) missed_ = true;
  return copied.ok() && !IsLeftOut(grew.status()) ? grew.status() : copied;
}

absl::Status SharedCatalog::CopyFiles(LogReader& log, std::string* frames, TimeNs now,
                                      CatalogListener* listener) {
  const auto name = ParseLogName(log.name());
  store::CatalogFrame frame;
  absl::Status copied;
  const auto take = [&] {
    *frames += frame.Take(name->node);
    if (frames->size() >= kCopyBytes) copied = AppendMerged(std::exchange(*frames, {}), now);
  };
  uint64_t end = 0;
  const absl::Status read = ReadLogFiles(
      nodes_, log.name(),
      [&](const store::CatalogEntry& file) {
        frame.Add(file);
        if (name->node != node_) listener->OnEntry(file);
        if (frame.full()) take();
        return copied.ok();
      },
      &end);
  if (copied.ok() && !frame.empty()) take();
  if (!copied.ok()) return copied;
  if (read.ok()) log.SkipTo(end);
  return IsLeftOut(read) ? absl::OkStatus() : read;
}

absl::Status SharedCatalog::CopyNode(const std::vector<LogName>& logs, std::string* frames,
                                     TimeNs now, CatalogListener* listener) {
  const auto [found, is_new] = logs_.try_emplace(logs.back().node, ToString(logs.back()));
  LogReader& log = found->second;
  // Nobody has been told of what is gone, so nobody needs to hear that it is.
  if (is_new || log.offset() == 0) {
    log = LogReader(ToString(logs.back()));
    return CopyFiles(log, frames, now, listener);
  }
  uint64_t number = ParseLogName(log.name())->number;
  if (absl::Status s = CopyNew(log, frames, now, listener); !s.ok()) return s;
  for (const LogName& next : logs) {
    if (next.number <= number) continue;
    // What was gone in one that nobody has read can only be told by telling all that is there.
    if (next.number > number + 1) missed_ = true;
    number = next.number;
    log = LogReader(ToString(next));
    if (absl::Status s = CopyNew(log, frames, now, listener); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status SharedCatalog::Merge(TimeNs now, CatalogListener* listener) {
  const auto names = nodes_.List();
  if (!names.ok()) return names.status();
  std::map<store::NodeId, std::vector<LogName>> logs;  // Of each in ascending order, as the names.
  for (const std::string& name : *names) {
    if (const auto parsed = ParseLogName(name)) logs[parsed->node].push_back(*parsed);
  }
  std::erase_if(logs_, [&](const auto& log) { return !logs.contains(log.first); });
  std::string frames;
  uint64_t bytes = 0;
  for (const auto& [node, of_node] : logs) {
    if (absl::Status s = CopyNode(of_node, &frames, now, listener); !s.ok()) return s;
    bytes += logs_.at(node).offset();
  }
  if (!all_told_ || (frames.empty() && now >= merged_at_ + times_.leader_sign_every)) {
    frames += store::CatalogFrame().Take(node_);
  }
  if (!frames.empty()) {
    if (absl::Status s = AppendMerged(frames, now); !s.ok()) return s;
  }
  if (!all_told_) {
    all_told_ = true;
    listener->OnAllTold();
  }
  if (!cleaned_ && now >= led_at_ + kOldStaysFor) RemoveOlderMerged();
  const bool outgrown = merged_bytes_ > kRotateBytesMin && merged_bytes_ / 2 > bytes;
  if (outgrown || missed_) return Lead(now, listener);
  return absl::OkStatus();
}

}  // namespace kvstream::catalog
