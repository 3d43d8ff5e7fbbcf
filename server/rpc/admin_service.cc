#include "server/rpc/admin_service.h"

#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "server/base/clock.h"
#include "server/rpc/encode.h"
#include "server/rpc/pending_call.h"

namespace kvstream::rpc {
namespace {

using UsageMap = absl::flat_hash_map<NamespaceId, store::ChunkIndex::Usage>;

absl::Status NotImplemented(const char* call) {
  return absl::UnimplementedError(std::string(call) + ": this version does not implement it");
}

grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context, const char* call) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(NotImplemented(call)));
  return reactor;
}

// A server stream that ends before it began.
template <typename Reply>
class RefusedStream final : public grpc::ServerWriteReactor<Reply> {
 public:
  explicit RefusedStream(const char* call) { this->Finish(ToGrpcStatus(NotImplemented(call))); }
  void OnDone() override { delete this; }
};

void FillPool(const engine::EngineStats& stats, v1::PoolStatus* pool) {
  pool->set_bytes(stats.pool_bytes.Get());
  pool->set_reserved_bytes(stats.pool_reserved_bytes.Get());
  pool->set_used_bytes(stats.pool_used_bytes.Get());
  pool->set_staged_bytes(stats.staged_bytes.Get());
  pool->set_huge_pages(stats.pool_huge_pages.Get() != 0);
}

void FillSessions(const engine::EngineStats& stats, v1::SessionsStatus* sessions) {
  sessions->set_open(stats.sessions_open.Get());
  sessions->set_opened(stats.sessions_opened.Get());
  sessions->set_host_buffers(stats.host_buffers.Get());
  sessions->set_host_buffer_bytes(stats.host_buffer_bytes.Get());
  sessions->set_leases(stats.leases.Get());
  sessions->set_leased_chunks(stats.leased_chunks.Get());
}

void FillOperations(const engine::EngineStats& stats, v1::OperationsStatus* operations) {
  operations->set_running(stats.operations_running.Get());
  operations->set_read_steps(stats.read_steps.Get());
  operations->set_stores(stats.stores.Get());
  operations->set_lookups(stats.lookups.Get());
  operations->set_chunks_delivered(stats.chunks_delivered.Get());
  operations->set_chunks_failed(stats.chunks_failed.Get());
  operations->set_chunks_stored(stats.chunks_stored.Get());
  operations->set_chunks_existed(stats.chunks_existed.Get());
  operations->set_chunks_dropped(stats.chunks_dropped.Get());
  operations->set_bytes_delivered(stats.bytes_delivered.Get());
  operations->set_bytes_stored(stats.bytes_stored.Get());
  operations->set_bytes_from_pool(stats.bytes_from_pool.Get());
}

void FillTierFromEngine(const engine::TierEngineStats& stats, v1::TierStatus* out) {
  out->set_chunks_written(stats.chunks_written.Get());
  out->set_corrupt_reads(stats.corrupt_reads.Get());
  out->set_in_flight_bytes(stats.in_flight_bytes.Get());
  out->set_window_bytes(stats.window_bytes.Get());
  out->set_quarantined_bytes(stats.quarantined_bytes.Get());
  out->set_quarantine_limit_bytes(stats.quarantine_limit_bytes.Get());
  out->set_write_backlog_bytes(stats.write_backlog_bytes.Get());
  out->set_writes_dropped(stats.writes_dropped.Get());
  out->set_read_rate(stats.read_rate.Get());
  out->set_write_rate(stats.write_rate.Get());
}

void AddTierConditions(const std::string& name, const tier::TierFacts& facts,
                       const tier::TierStats& stats, v1::Status* status) {
  const std::string tier = "tier " + name;
  if (!facts.engine_reason.empty()) {
    status->add_conditions(tier + " uses threads for its I/O: " + facts.engine_reason);
  }
  if (!facts.direct) {
    status->add_conditions(tier + " uses buffered I/O: " + facts.buffered_reason);
  }
  if (facts.io_engine == "io_uring" && !facts.registered_buffers) {
    status->add_conditions(tier +
                           " reads without registered buffers: the locked-memory limit is low");
  }
  if (stats.descriptor_shortages.Get() != 0) {
    status->add_conditions(tier + " met the limit of open files: raise LimitNOFILE");
  }
}

// Every namespace that is registered or has chunks, in the order of the ids.
void FillNamespaces(const UsageMap& usage, const store::NamespaceRegistry& registry,
                    v1::ListNamespacesReply* reply) {
  struct Row {
    store::NamespaceRef info;
    store::ChunkIndex::Usage usage;
  };
  std::map<NamespaceId, Row> rows;
  for (const auto& [id, used] : usage) rows[id].usage = used;
  for (store::NamespaceRef& info : registry.List()) {
    const NamespaceId id = info->id;
    rows[id].info = std::move(info);
  }
  for (const auto& [id, row] : rows) {
    v1::ListNamespacesReply::Entry* entry = reply->add_namespaces();
    entry->set_namespace_id(RawBytes(id));
    if (row.info != nullptr) EncodeNamespace(row.info->spec, entry->mutable_namespace_());
    entry->set_chunks(row.usage.chunks);
    entry->set_bytes(row.usage.bytes);
  }
}

}  // namespace

void AdminService::FillTier(uint32_t tier, v1::Status* status) const {
  const StatusSource::TierRow& row = source_.tiers[tier];
  const engine::TierEngineStats& engine_stats = source_.stats->tiers[tier];
  v1::TierStatus* out = status->add_tiers();
  out->set_name(row.name);
  out->set_root(row.root);
  FillTierFromEngine(engine_stats, out);
  if (row.tier == nullptr) {
    out->set_state(v1::TIER_STATE_OUT);
    status->add_conditions("tier " + row.name + " did not open and is not used");
    return;
  }
  const bool in_service = engine_stats.out.Get() == 0;
  out->set_state(in_service ? v1::TIER_STATE_OK : v1::TIER_STATE_OUT);
  if (!in_service) status->add_conditions("tier " + row.name + " is out of service");
  const tier::TierFacts& facts = row.tier->facts();
  out->set_io_engine(facts.io_engine);
  out->set_direct(facts.direct);
  out->set_alignment(facts.alignment);
  out->set_registered_buffers(facts.registered_buffers);
  out->set_engine_reason(facts.engine_reason);
  out->set_buffered_reason(facts.buffered_reason);
  const tier::TierStats& stats = row.tier->stats();
  AddTierConditions(row.name, facts, stats, status);
  out->set_descriptor_shortages(stats.descriptor_shortages.Get());
  out->set_bytes_read(stats.bytes_read.Get());
  out->set_bytes_written(stats.bytes_written.Get());
  out->set_read_errors(stats.read_errors.Get());
  out->set_write_errors(stats.write_errors.Get());
}

grpc::ServerUnaryReactor* AdminService::GetStatus(grpc::CallbackServerContext* context,
                                                  const v1::GetStatusRequest*, v1::Status* reply) {
  const engine::EngineStats& stats = *source_.stats;
  const Readiness::State state = readiness_.Get();
  reply->set_boot_id(RawBytes(facts_.boot_id));
  reply->set_version(facts_.version);
  reply->set_uptime_ms(static_cast<uint64_t>((Now() - source_.started) / kMillisecond));
  reply->set_ready(state.ready);
  reply->set_draining(stats.draining.Get() != 0);
  for (const std::string& condition : state.conditions) reply->add_conditions(condition);
  for (uint32_t tier = 0; tier < source_.tiers.size(); ++tier) FillTier(tier, reply);
  FillPool(stats, reply->mutable_pool());
  FillSessions(stats, reply->mutable_sessions());
  FillOperations(stats, reply->mutable_operations());
  reply->mutable_index()->set_chunks(stats.index_chunks.Get());
  reply->mutable_index()->set_namespaces(namespaces_.List().size());
  for (const std::string& gpu : source_.gpus) reply->add_gpus(gpu);
  if (source_.gpus.empty()) reply->add_gpus("null");
  reply->set_metrics_address(source_.metrics_address);
  EncodeLimits(facts_.limits, reply->mutable_limits());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::ListNamespaces(grpc::CallbackServerContext* context,
                                                       const v1::ListNamespacesRequest*,
                                                       v1::ListNamespacesReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  poster_.Post(
      engine::ListUsage{[this, reply, call = PendingCall(reactor)](const UsageMap& usage) mutable {
        reply->set_boot_id(RawBytes(facts_.boot_id));
        FillNamespaces(usage, namespaces_, reply);
        call.Finish(absl::OkStatus());
      }});
  return reactor;
}

grpc::ServerWriteReactor<v1::Status>* AdminService::Watch(grpc::CallbackServerContext*,
                                                          const v1::WatchRequest*) {
  return new RefusedStream<v1::Status>("Watch");
}

grpc::ServerWriteReactor<v1::ScrubProgress>* AdminService::Scrub(grpc::CallbackServerContext*,
                                                                 const v1::ScrubRequest*) {
  return new RefusedStream<v1::ScrubProgress>("Scrub");
}

grpc::ServerUnaryReactor* AdminService::SetTierState(grpc::CallbackServerContext* context,
                                                     const v1::SetTierStateRequest*,
                                                     v1::SetTierStateReply*) {
  return Refuse(context, "SetTierState");
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest*, v1::DrainReply*) {
  return Refuse(context, "Drain");
}

grpc::ServerUnaryReactor* AdminService::Evict(grpc::CallbackServerContext* context,
                                              const v1::EvictRequest*, v1::EvictReply*) {
  return Refuse(context, "Evict");
}

}  // namespace kvstream::rpc
