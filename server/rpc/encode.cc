#include "server/rpc/encode.h"

#include <variant>

#include "server/rpc/status_convert.h"

namespace kvstream::rpc {
namespace {

// Overhead of any event.
constexpr size_t kEventBytes = 64;

class Encoder {
 public:
  Encoder(const Facts& facts, v1::Event* event) : facts_(facts), event_(event) {}

  void operator()(const engine::SessionOpened& from) {
    v1::SessionOpened* to = event_->mutable_session_opened();
    to->set_session_id(from.session.value);
    to->set_protocol_version(kProtocolVersion);
    EncodeLimits(facts_.limits, to->mutable_limits());
    to->set_daemon_version(facts_.version);
  }

  void operator()(const engine::HeartbeatReply& from) {
    event_->mutable_heartbeat()->set_sequence(from.sequence);
  }

  void operator()(const engine::ChunkResults& from) {
    v1::ChunkResults* to = event_->mutable_chunk_results();
    to->set_operation_id(from.client_op);
    to->mutable_results()->Reserve(static_cast<int>(from.results.size()));
    for (const auto& result : from.results) {
      auto* added = to->add_results();
      added->set_request_index(result.request_index);
      added->set_chunk_index(result.chunk_index);
      added->set_code(ToCode(result.code));
    }
  }

  void operator()(const engine::RequestDone& from) {
    v1::RequestDone* to = event_->mutable_request_done();
    to->set_operation_id(from.client_op);
    to->set_request_id(from.request_id);
    to->set_leading_valid(from.leading_valid);
    to->mutable_other_valid()->Add(from.other_valid.begin(), from.other_valid.end());
    to->set_code(ToCode(from.code));
    to->set_message(from.message);
  }

  void operator()(const engine::StoreReleased& from) {
    v1::StoreReleased* to = event_->mutable_store_released();
    to->set_operation_id(from.client_op);
    to->set_all_released(from.all_released);
    to->mutable_results()->Reserve(static_cast<int>(from.results.size()));
    for (const auto& result : from.results) {
      auto* added = to->add_results();
      added->set_chunk_index(result.chunk_index);
      added->set_code(ToCode(result.code));
      added->set_existed(result.existed);
    }
  }

  void operator()(const engine::StoreDurable& from) {
    v1::StoreDurable* to = event_->mutable_store_durable();
    to->set_operation_id(from.client_op);
    to->mutable_results()->Reserve(static_cast<int>(from.results.size()));
    for (const auto& result : from.results) {
      auto* added = to->add_results();
      added->set_chunk_index(result.chunk_index);
      added->set_code(ToCode(result.code));
    }
  }

  void operator()(const engine::Quiesced& from) {
    v1::Quiesced* to = event_->mutable_quiesced();
    to->set_operation_id(from.client_op);
    to->set_code(ToCode(from.status.code()));
    to->set_message(std::string(from.status.message()));
  }

  void operator()(const engine::PartMoved& from) {
    if (from.gather) {
      Encode(from, event_->mutable_gather());
    } else {
      Encode(from, event_->mutable_landed());
    }
  }

 private:
  template <typename Message>
  static void Encode(const engine::PartMoved& from, Message* to) {
    to->set_operation_id(from.client_op);
    to->set_region_id(from.region_id);
    to->set_part(from.part);
    to->set_sequence(from.sequence);
    to->mutable_pieces()->Reserve(static_cast<int>(from.pieces.size()));
    for (const engine::Piece& piece : from.pieces) {
      v1::Piece* added = to->add_pieces();
      added->set_request_index(piece.request_index);
      added->set_chunk_index(piece.chunk_index);
      added->set_chunk_offset(piece.chunk_offset);
      added->set_part_offset(piece.part_offset);
      added->set_length(piece.bytes);
    }
  }

  const Facts& facts_;
  v1::Event* event_;
};

struct Weigher {
  size_t operator()(const engine::SessionOpened&) const { return 0; }
  size_t operator()(const engine::HeartbeatReply&) const { return 0; }
  size_t operator()(const engine::ChunkResults& e) const { return BytesOf(e.results); }
  size_t operator()(const engine::RequestDone& e) const {
    return BytesOf(e.other_valid) + e.message.size();
  }
  size_t operator()(const engine::StoreReleased& e) const { return BytesOf(e.results); }
  size_t operator()(const engine::StoreDurable& e) const { return BytesOf(e.results); }
  size_t operator()(const engine::Quiesced& e) const { return e.status.message().size(); }
  size_t operator()(const engine::PartMoved& e) const { return BytesOf(e.pieces); }

 private:
  template <typename T>
  static size_t BytesOf(const std::vector<T>& list) {
    return list.size() * sizeof(T);
  }
};

}  // namespace

void EncodeEvent(const engine::SessionEvent& event, const Facts& facts,
                 v1::ServerMessage* message) {
  std::visit(Encoder(facts, message->add_events()), event);
}

size_t WeightOf(const engine::SessionEvent& event) {
  return kEventBytes + std::visit(Weigher(), event);
}

void EncodeLimits(const Limits& limits, v1::Limits* out) {
  out->set_segment_bytes_min(limits.segment_bytes_min);
  out->set_segment_bytes_max(limits.segment_bytes_max);
  out->set_segment_bytes_default(limits.segment_bytes_default);
  out->set_chunk_bytes_max(limits.chunk_bytes_max);
  out->set_lookup_keys_max(limits.lookup_keys_max);
  out->set_chunks_per_operation_max(limits.chunks_per_operation_max);
  out->set_operations_per_session_max(limits.operations_per_session_max);
  out->set_host_buffers_per_session_max(limits.host_buffers_per_session_max);
  out->set_host_buffer_bytes_per_session_max(limits.host_buffer_bytes_per_session_max);
  out->set_deadline_ms_max(ToMs(limits.deadline_max));
  out->set_lease_ms_max(ToMs(limits.lease_max));
  out->set_message_bytes_max(limits.message_bytes_max);
}

void EncodeNamespace(const store::NamespaceSpec& spec, v1::Namespace* out) {
  out->set_model(spec.model);
  out->set_weights_fingerprint(spec.weights_fingerprint);
  out->set_kv_dtype(spec.kv_dtype);
  out->set_quantization(spec.quantization);
  out->set_rope(spec.rope);
  out->set_layout(spec.layout);
  out->mutable_strides()->Add(spec.strides.begin(), spec.strides.end());
  out->set_page_tokens(spec.page_tokens);
  out->set_chunk_tokens(spec.chunk_tokens);
  out->set_tensor_parallel(spec.tensor_parallel);
  out->set_pipeline_parallel(spec.pipeline_parallel);
  out->set_context_parallel(spec.context_parallel);
  for (const store::GroupSpec& group : spec.groups) {
    v1::Group* to = out->add_groups();
    to->set_name(group.name);
    to->set_chunk_bytes(group.chunk_bytes);
    to->set_shards(group.shards);
    to->set_replicated(group.replicated);
  }
  out->set_segment_bytes(spec.segment_bytes);
  for (const auto& [key, value] : spec.extra) (*out->mutable_extra())[key] = value;
}

}  // namespace kvstream::rpc
