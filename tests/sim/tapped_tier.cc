#include "tests/sim/tapped_tier.h"

namespace kvstream::sim {
namespace {

constexpr const char* kKindNames[] = {"read", "write", "set aside"};

}  // namespace

TappedTier::Running& TappedTier::Begin(Kind kind, Ticket ticket, const std::string& path) {
  const auto [running, is_new] = running_.try_emplace({kind, ticket});
  if (!is_new) parts_.journal->Fail("a ticket is in use twice");
  running->second.key = parts_.names->NumberOf(path);
  running->second.user = parts_.watch->NewUser();
  return running->second;
}

void TappedTier::Read(std::span<const tier::ReadRequest> requests) {
  for (const tier::ReadRequest& request : requests) {
    const Running& running = Begin(Kind::kRead, request.ticket, *request.path);
    parts_.journal->Note("tier {} reads key {} at {}: {} bytes", tier_.options().id.value,
                         running.key, request.offset, request.length);
    if (!parts_.watch->Begin(running.user, {request.buffer, request.length}, true)) {
      parts_.journal->Fail("a tier reads into memory that somebody else uses");
    }
    parts_.replicas->ReadBegan(tier_.options().id, running.key);
  }
  tier_.Read(requests);
}

void TappedTier::Write(tier::WriteRequest request) {
  const Running& running = Begin(Kind::kWrite, request.ticket, *request.path);
  parts_.journal->Note("tier {} writes key {}", tier_.options().id.value, running.key);
  parts_.replicas->WriteBegan(tier_.options().id, running.key);
  for (const auto& piece : request.pieces) {
    if (!parts_.watch->Begin(running.user, piece, false)) {
      parts_.journal->Fail("a tier writes memory that somebody else changes");
    }
  }
  tier_.Write(std::move(request));
}

void TappedTier::SetAside(tier::SetAsideRequest request) {
  const Running& running = Begin(Kind::kSetAside, request.ticket, *request.path);
  parts_.journal->Note("tier {} sets key {} aside", tier_.options().id.value, running.key);
  parts_.replicas->AsideBegan(tier_.options().id, running.key);
  if (request.damaged == nullptr) parts_.replicas->GivenUp(tier_.options().id, running.key);
  tier_.SetAside(std::move(request));
}

void TappedTier::OnCompletions(std::span<tier::Completion> completions) {
  for (const tier::Completion& completion : completions) {
    if (completion.kind == Kind::kMeasure) continue;  // Of no file.
    const auto running = running_.extract({completion.kind, completion.ticket});
    const Running& ended = running.mapped();
    parts_.journal->Note("tier {} ended a {} of key {}: code {}", completion.tier.value,
                         kKindNames[static_cast<size_t>(completion.kind)], ended.key,
                         static_cast<int>(completion.code));
    parts_.watch->End(ended.user);
    parts_.replicas->Ended(completion, ended.key);
  }
  sink_->OnCompletions(completions);
}

void TappedTier::Crash() {
  tier_.Crash();
  running_.clear();
}

}  // namespace kvstream::sim
