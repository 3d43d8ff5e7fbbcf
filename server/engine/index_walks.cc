#include "server/engine/index_walks.h"

#include <algorithm>
#include <string>

#include "server/base/logging.h"

namespace kvstream::engine {

void IndexWalks::Begin(EvictChunks evict) {
  if (evictions_.size() < kEvictionsMax) {
    std::ranges::sort(evict.prefixes);
    evictions_.push_back({.asked = std::move(evict)});
    return;
  }
  replies_.emplace_back([reply = std::move(evict.reply)]() mutable {
    reply(
        absl::ResourceExhaustedError("evict: " + std::to_string(kEvictionsMax) + " wait already"));
  });
}

void IndexWalks::EndEvictions(const absl::Status& why) {
  for (Eviction& eviction : std::exchange(evictions_, {})) {
    replies_.emplace_back([reply = std::move(eviction.asked.reply), why]() mutable { reply(why); });
  }
}

void IndexWalks::EndLists(const absl::Status& why) {
  std::vector<ListUsage> asked = std::exchange(lists_, {});
  if (listing_.has_value()) {
    std::ranges::move(listing_->asked, std::back_inserter(asked));
    listing_.reset();
  }
  for (ListUsage& list : asked) {
    replies_.emplace_back([reply = std::move(list.reply), why]() mutable { reply(why); });
  }
}

void IndexWalks::Pump(TimeNs now) {
  next_ = kNever;
  if (!listing_.has_value() && !lists_.empty()) {
    listing_.emplace(Listing{0, {}, std::exchange(lists_, {})});
  }
  if (listing_.has_value() && GoOnListing(now)) AnswerLists();
  if (listing_.has_value() || !lists_.empty()) next_ = 0;
  if (evictions_.empty()) return;
  size_t budget = kBudget;
  if (GoOn(evictions_.front(), &budget, now)) {
    Answer(evictions_.front());
    evictions_.pop_front();
  }
  if (evictions_.empty()) return;
  // What waits for a tier is woken by it, or by what GoOn has said.
  if (budget == 0 || !evictions_.front().current.has_value()) next_ = 0;
}

void IndexWalks::SendReplies() {
  for (absl::AnyInvocable<void()>& reply : std::exchange(replies_, {})) reply();
}

bool IndexWalks::GoOnListing(TimeNs now) {
  size_t budget = kBudget;
  while (const auto siblings = parts_.index->NextSiblings(&listing_->at, &budget, now)) {
    Count(*siblings, &listing_->usages);
  }
  return parts_.index->IsThrough(listing_->at);
}

void IndexWalks::Count(const store::KnownSiblings& siblings, NamespaceUsages* usages) const {
  NamespaceUsage& usage = (*usages)[siblings.name_space];
  usage.tiers.resize(parts_.tiers.size());
  for (const store::KnownContent& content : siblings.contents) {
    for (uint32_t t = 0; t < parts_.tiers.size(); ++t) {
      if (content.own.Has(TierId{t})) {
        usage.tiers[t].files += 1;
        usage.tiers[t].bytes += content.file_bytes;
      } else if (content.tiers.Has(TierId{t})) {
        usage.tiers[t].hints += 1;
      }
    }
    if (!content.staged) continue;
    usage.staged_chunks += 1;
    usage.staged_bytes += content.file_bytes;
  }
  if (!siblings.unused_seconds.has_value()) return;
  usage.unused_seconds_min = std::min(usage.unused_seconds_min, *siblings.unused_seconds);
  usage.unused_seconds_max = std::max(usage.unused_seconds_max, *siblings.unused_seconds);
}

void IndexWalks::AnswerLists() {
  NamespaceUsages usages = std::move(listing_->usages);
  for (const auto& [id, usage] : parts_.index->usage()) {
    NamespaceUsage& counted = usages[id];
    counted.all = usage;
    counted.tiers.resize(parts_.tiers.size());
  }
  // Those that have gone meanwhile.
  std::erase_if(usages, [](const auto& usage) { return usage.second.all.chunks == 0; });
  for (ListUsage& list : listing_->asked) {
    replies_.emplace_back([reply = std::move(list.reply), usages]() mutable { reply(usages); });
  }
  listing_.reset();
}

bool IndexWalks::GoOn(Eviction& eviction, size_t* budget, TimeNs now) {
  while (true) {
    if (!eviction.current.has_value()) {
      eviction.current = parts_.index->NextSiblings(&eviction.at, budget, now);
      if (!eviction.current.has_value()) return parts_.index->IsThrough(eviction.at);
    }
    const std::optional<bool> matches = Matches(eviction, budget);
    if (!matches.has_value()) return false;
    if (*matches && !Evict(eviction, now)) return false;
    eviction.current.reset();
    if (*budget == 0) return parts_.index->IsThrough(eviction.at);
  }
}

std::optional<bool> IndexWalks::Matches(Eviction& eviction, size_t* budget) const {
  const EvictChunks& asked = eviction.asked;
  const store::KnownSiblings& siblings = *eviction.current;
  if (asked.name_space.has_value() && siblings.name_space != *asked.name_space) return false;
  if (IsYoung(eviction)) return false;
  const bool has_any = std::ranges::any_of(siblings.contents, [](const auto& content) {
    return !content.own.empty() || content.staged;
  });
  if (!has_any) return false;
  if (asked.prefixes.empty()) return true;
  return IsInPrefix(eviction, budget);
}

// Nobody knows how old those are that were never used here.
bool IndexWalks::IsYoung(const Eviction& eviction) {
  return eviction.current->unused_seconds.value_or(0) < eviction.asked.unused_seconds_min;
}

std::optional<bool> IndexWalks::IsInPrefix(Eviction& eviction, size_t* budget) const {
  std::vector<SiblingsId>& path = eviction.path;
  if (path.empty()) path.push_back(eviction.current->id);
  std::optional<bool> is_in;
  while (!is_in.has_value()) {
    if (*budget == 0) return std::nullopt;
    --*budget;
    const SiblingsId at = path.back();
    const auto known = eviction.in_prefix.find(at);
    if (known != eviction.in_prefix.end()) {
      is_in = known->second;
    } else if (std::ranges::binary_search(eviction.asked.prefixes, at)) {
      is_in = true;
    } else if (const auto before = parts_.index->BeforeOf(at)) {
      path.push_back(*before);
    } else {
      is_in = false;
    }
  }
  for (size_t i = path.size(); i > 0; i -= std::min(i, kRememberEvery)) {
    eviction.in_prefix[path[i - 1]] = *is_in;
  }
  path.clear();
  return is_in;
}

// Siblings go together or not at all.
bool IndexWalks::MayGo(const store::KnownSiblings& siblings) const {
  return !siblings.leased &&
         std::ranges::all_of(siblings.contents, [this](const store::KnownContent& content) {
           const StagedChunk* const staged = parts_.staging->Find(content.key);
           return staged == nullptr || staged->retained;
         });
}

bool IndexWalks::Waits(Eviction& eviction, TimeNs now) {
  for (uint32_t t = 0; t < parts_.tiers.size(); ++t) {
    const TierId tier{t};
    const bool has_files = std::ranges::any_of(
        eviction.current->contents, [&](const auto& content) { return content.own.Has(tier); });
    if (!has_files || eviction.given_up.Has(tier)) continue;
    const Evictor::Unlinking unlinking = parts_.evictor->UnlinkingOf(tier);
    if (!unlinking.busy) continue;
    if (now < unlinking.still_since + kPatience) {
      next_ = std::min(next_, unlinking.still_since + kPatience);
      return true;
    }
    eviction.given_up.Add(tier);
  }
  return false;
}

bool IndexWalks::Evict(Eviction& eviction, TimeNs now) {
  if (!eviction.asked.dry_run) {
    if (Waits(eviction, now)) return false;
    // As they are now: it may have waited.
    eviction.current = parts_.index->FindSiblings(eviction.current->id, now);
    if (!eviction.current.has_value() || IsYoung(eviction)) return true;
  }
  const store::KnownSiblings& siblings = *eviction.current;
  EvictResult& done = eviction.done;
  if (!MayGo(siblings)) {
    done.kept += siblings.contents.size();
    return true;
  }
  for (const store::KnownContent& content : siblings.contents) {
    const TierSet going = content.own.Without(eviction.given_up);
    if (going.empty() && !content.staged) continue;
    done.chunks += 1;
    done.bytes += (going.size() + (content.staged ? 1 : 0)) * content.file_bytes;
    if (eviction.asked.dry_run) continue;
    parts_.stats->operator_evicted_chunks.Add();
    parts_.staging->GiveUp(content.key);
    for (uint32_t t = 0; t < parts_.tiers.size(); ++t) {
      if (!going.Has(TierId{t})) continue;
      parts_.evictor->GiveUpFile(TierId{t}, {content.key, siblings.name_space, content.file_bytes},
                                 now);
    }
  }
  return true;
}

void IndexWalks::Answer(Eviction& eviction) {
  absl::StatusOr<EvictResult> result = eviction.done;
  std::string names;
  for (uint32_t t = 0; t < parts_.tiers.size(); ++t) {
    if (!eviction.given_up.Has(TierId{t})) continue;
    names += (names.empty() ? "" : ", ") + parts_.tiers[t]->options().name;
  }
  if (!names.empty()) {
    parts_.stats->operator_evictions_unfinished.Add();
    spdlog::warn("an eviction has left files on tiers that delete nothing: tiers={} chunks={}",
                 names, eviction.done.chunks);
    result = absl::UnavailableError("tier " + names +
                                    " has deleted nothing for a minute, and what it has stays: " +
                                    std::to_string(eviction.done.chunks) + " chunks are gone");
  } else if (!eviction.asked.dry_run) {
    spdlog::info("an operator has evicted chunks: chunks={} bytes={} kept={}", eviction.done.chunks,
                 eviction.done.bytes, eviction.done.kept);
  }
  replies_.emplace_back(
      [reply = std::move(eviction.asked.reply), result]() mutable { reply(result); });
}

}  // namespace kvstream::engine
