// Every field of every message that a client may send, wrong in every way, over the real sockets:
// an answer of the closed vocabulary each time, and a daemon that works on as before.
#include <fcntl.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "tests/e2e/raw_session.h"
#include "tests/e2e/variants.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::Message;

void CollectFieldNames(const Descriptor* type, std::set<std::string>* names) {
  for (int i = 0; i < type->field_count(); ++i) {
    names->insert(type->field(i)->name());
    if (type->field(i)->message_type() != nullptr) {
      CollectFieldNames(type->field(i)->message_type(), names);
    }
  }
  for (int i = 0; i < type->oneof_decl_count(); ++i) names->insert(type->oneof_decl(i)->name());
}

// What was refused is named: a field of the message.
void ExpectNamed(const std::string& message, const Message& sent, const std::string& what) {
  std::set<std::string> names;
  CollectFieldNames(sent.GetDescriptor(), &names);
  for (const std::string& name : names) {
    if (message.find(name) != std::string::npos) return;
  }
  ADD_FAILURE() << what << " is answered without a field's name: " << message;
}

class HostileFieldsTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(worker_.Put({1, 2}).ok()); }

  void TearDown() override {
    EXPECT_EQ(worker_.Get({1, 2}).leading_valid(), 2u);
    ASSERT_TRUE(worker_.Put({100}).ok());
    EXPECT_TRUE(worker_.Holds(100, 0));
  }

  // A session with a buffer of its own, for placements.
  void Reopen() {
    session_ = nullptr;
    session_ = std::make_unique<RawSession>(daemon_);
    ASSERT_NE(session_->id(), 0u);
    v1::HandoffRequest request;
    request.mutable_create_host_buffer()->set_bytes(4 * worker_.shape().chunk_bytes);
    const auto answer = session_->handoff().Call(request, -1, kPatience);
    ASSERT_TRUE(answer.ok()) << answer.status();
    buffer_id_ = answer->reply.host_buffer().buffer_id();
  }

  // Sends every variant of `valid` on a session's stream. Where a variant ends the stream, that is
  // with a status of the vocabulary, and the next variant has a new session.
  void TryAll(const v1::ClientMessage& valid) {
    ForEachVariant(valid, [&](const std::string& what, const Message& variant) {
      if (HasFatalFailure()) return;
      if (session_ == nullptr) Reopen();
      v1::ClientMessage message;
      message.CopyFrom(variant);
      Rebase(&message);
      const auto quiesced = session_->Try(message, OperationOf(message));
      if (quiesced.has_value()) {
        ExpectInVocabulary(quiesced->code(), quiesced->message(), what);
        if (quiesced->code() == v1::INVALID_ARGUMENT) {
          ExpectNamed(quiesced->message(), message, what);
        }
        return;
      }
      const grpc::Status end = session_->Finish();
      EXPECT_FALSE(end.ok()) << what;
      ExpectInVocabulary(end, what);
      session_ = nullptr;
    });
    session_ = nullptr;
  }

  static uint64_t OperationOf(const v1::ClientMessage& message) {
    if (message.has_read_step()) return message.read_step().operation_id();
    if (message.has_store()) return message.store().operation_id();
    return message.prefetch().operation_id();
  }

  // The buffer's number is not known before its session is: 1 in a valid message.
  void Rebase(v1::ClientMessage* message) const {
    const auto rebase = [this](v1::ChunkAt& chunk) {
      if (chunk.placement().host().buffer_id() != 1) return;
      chunk.mutable_placement()->mutable_host()->set_buffer_id(buffer_id_);
    };
    if (message->has_store()) {
      for (v1::ChunkAt& chunk : *message->mutable_store()->mutable_chunks()) rebase(chunk);
    } else if (message->has_read_step()) {
      for (v1::ReadRequest& request : *message->mutable_read_step()->mutable_requests()) {
        for (v1::ChunkAt& chunk : *request.mutable_chunks()) rebase(chunk);
      }
    }
  }

  v1::ChunkAt ChunkAt(uint64_t key, size_t slot) const {
    v1::ChunkAt at = worker_.At(key, slot);
    at.mutable_placement()->mutable_host()->set_buffer_id(1);
    return at;
  }

  // Calls with every variant of `valid`.
  template <typename Request, typename Reply>
  void CallAll(
      const Request& valid,
      const std::function<grpc::Status(grpc::ClientContext*, const Request&, Reply*)>& call) {
    ForEachVariant(valid, [&](const std::string& what, const Message& variant) {
      grpc::ClientContext context;
      SetPatience(&context);
      Request request;
      request.CopyFrom(variant);
      Reply reply;
      const grpc::Status status = call(&context, request, &reply);
      ExpectInVocabulary(status, what);
      if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) {
        ExpectNamed(status.error_message(), request, what);
      }
    });
  }

  TestDaemon daemon_;
  Worker worker_{daemon_.socket()};
  std::unique_ptr<RawSession> session_;
  uint64_t buffer_id_ = 0;
};

TEST_F(HostileFieldsTest, EveryFieldOfAReadStep) {
  v1::ClientMessage message;
  v1::ReadStep& step = *message.mutable_read_step();
  step = worker_.StepOf({});
  step.set_operation_id(1);
  step.set_step_id(7);
  step.set_ranks(1);
  step.set_deadline_ms(2);
  *step.mutable_requests(0)->add_chunks() = ChunkAt(1, 0);
  *step.mutable_requests(0)->add_chunks() = ChunkAt(2, 1);
  TryAll(message);
}

TEST_F(HostileFieldsTest, EveryFieldOfAStore) {
  v1::ClientMessage message;
  v1::Store& store = *message.mutable_store();
  store = worker_.StoreOf({});
  store.set_operation_id(1);
  store.set_want_durable(true);
  *store.add_chunks() = ChunkAt(3, 0);
  *store.add_chunks() = ChunkAt(4, 1);
  TryAll(message);
}

TEST_F(HostileFieldsTest, EveryFieldOfTheSmallMessages) {
  v1::ClientMessage message;
  message.mutable_cancel()->set_operation_id(1);
  TryAll(message);
  message.mutable_forward_began()->set_step_id(1);
  TryAll(message);
  message.mutable_release()->set_lease_id(1);
  TryAll(message);
  message.mutable_scattered()->set_region_id(1);
  TryAll(message);
  message.mutable_gathered()->set_region_id(1);
  TryAll(message);
  message.mutable_heartbeat()->set_sequence(1);
  TryAll(message);
  *message.mutable_hello() = RawSession::GoodHello().hello();
  TryAll(message);
  v1::Prefetch& prefetch = *message.mutable_prefetch();
  prefetch.set_operation_id(1);
  prefetch.set_namespace_id(worker_.namespace_id());
  prefetch.set_keep_ms(1000);
  *prefetch.add_chunks() = ChunkAt(1, 0);
  TryAll(message);
}

TEST_F(HostileFieldsTest, EveryFieldOfHello) {
  ForEachVariant(RawSession::GoodHello(), [&](const std::string& what, const Message& variant) {
    v1::ClientMessage hello;
    hello.CopyFrom(variant);
    RawSession session(daemon_, hello);
    if (session.id() != 0) return;
    ExpectInVocabulary(session.Finish(), what);
  });
}

TEST_F(HostileFieldsTest, EveryFieldOfALookup) {
  v1::LookupRequest request;
  request.set_namespace_id(worker_.namespace_id());
  AddPrefixHash(worker_.At(1, 0).prefix_hash(), &request);
  request.add_groups(0);
  request.set_mode(v1::LookupRequest::MODE_PER_KEY);
  request.set_lease_ms(1);
  request.set_session_id(worker_.client().session_id());
  const auto stub = v1::KvCache::NewStub(ChannelTo(daemon_));
  CallAll<v1::LookupRequest, v1::LookupReply>(
      request,
      [&](auto* context, const auto& in, auto* out) { return stub->Lookup(context, in, out); });
}

TEST_F(HostileFieldsTest, EveryFieldOfANamespace) {
  v1::RegisterNamespaceRequest request;
  v1::Namespace& name_space = *request.mutable_namespace_();
  name_space.set_model("model");
  name_space.set_weights_fingerprint("w");
  name_space.set_kv_dtype("bfloat16");
  name_space.set_layout("block-major");
  name_space.add_strides(2);
  name_space.set_chunk_tokens(256);
  (*name_space.mutable_extra())["key"] = "value";
  name_space.add_groups()->set_chunk_bytes(4096);
  name_space.mutable_groups(0)->set_shards(2);
  request.add_local_shards()->add_shards(1);
  const auto stub = v1::KvCache::NewStub(ChannelTo(daemon_));
  CallAll<v1::RegisterNamespaceRequest, v1::RegisterNamespaceReply>(
      request, [&](auto* context, const auto& in, auto* out) {
        return stub->RegisterNamespace(context, in, out);
      });
}

TEST_F(HostileFieldsTest, EveryFieldOfTheMemoryCalls) {
  v1::RegisterMemoryRequest region;
  region.set_session_id(worker_.client().session_id());
  region.set_gpu_uuid("GPU-1");
  region.set_cuda_ipc_handle(std::string(64, 'h'));
  region.set_allocation_bytes(1 << 20);
  region.set_block_count(4);
  region.add_tensors()->set_block_stride(4096);
  region.mutable_tensors(0)->add_runs()->set_length(4096);
  const auto stub = v1::KvCache::NewStub(ChannelTo(daemon_));
  CallAll<v1::RegisterMemoryRequest, v1::RegisterMemoryReply>(
      region, [&](auto* context, const auto& in, auto* out) {
        return stub->RegisterMemory(context, in, out);
      });
  v1::UnregisterMemoryRequest close;
  close.set_session_id(1);
  close.set_region_id(1);
  CallAll<v1::UnregisterMemoryRequest, v1::UnregisterMemoryReply>(
      close, [&](auto* context, const auto& in, auto* out) {
        return stub->UnregisterMemory(context, in, out);
      });
}

TEST_F(HostileFieldsTest, EveryFieldOfTheHandoffRequests) {
  const UniqueFd sealed(memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(sealed.get(), 8192), 0);
  ASSERT_EQ(fcntl(sealed.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  v1::HandoffRequest create, attach, drop, device;
  create.mutable_create_host_buffer()->set_bytes(4096);
  attach.mutable_attach_host_buffer()->set_bytes(8192);
  drop.mutable_drop_host_buffer()->set_buffer_id(1);
  device.mutable_attach_device_memory()->set_gpu_uuid("GPU-1");
  for (const v1::HandoffRequest& valid : {create, attach, drop, device}) {
    for (const int fd : {-1, sealed.get()}) {
      ForEachVariant(valid, [&](const std::string& what, const Message& variant) {
        v1::HandoffRequest request;
        request.CopyFrom(variant);
        if (request.ByteSizeLong() > 4000) return;  // Too long for a packet: its own test.
        if (session_ == nullptr) session_ = std::make_unique<RawSession>(daemon_);
        const auto answer = session_->handoff().Call(request, fd, kPatience);
        const absl::Status& status = answer.status();
        EXPECT_NE(status.code(), absl::StatusCode::kDeadlineExceeded) << what << status;
        EXPECT_NE(status.code(), absl::StatusCode::kUnavailable) << what << status;
        EXPECT_NE(status.code(), absl::StatusCode::kUnknown) << what << status;
      });
    }
  }
  session_ = nullptr;
}

TEST_F(HostileFieldsTest, EveryAdminCallAnswers) {
  const auto admin = v1::Admin::NewStub(ChannelTo(daemon_));
  CallAll<v1::SetTierStateRequest, v1::SetTierStateReply>(
      v1::SetTierStateRequest(), [&](auto* context, const auto& in, auto* out) {
        return admin->SetTierState(context, in, out);
      });
  CallAll<v1::EvictRequest, v1::EvictReply>(
      v1::EvictRequest(),
      [&](auto* context, const auto& in, auto* out) { return admin->Evict(context, in, out); });
  ASSERT_TRUE(worker_.Put({1, 2}).ok()) << "some of these mean everything";
  CallAll<v1::ScrubRequest, v1::ScrubProgress>(v1::ScrubRequest(),
                                               [&](auto* context, const auto& in, auto* out) {
                                                 auto stream = admin->Scrub(context, in);
                                                 while (stream->Read(out)) {
                                                 }
                                                 return stream->Finish();
                                               });
  CallAll<v1::WatchRequest, v1::Status>(
      v1::WatchRequest(), [&](auto* context, const auto& in, auto* out) {
        auto stream = admin->Watch(context, in);
        if (stream->Read(out)) context->TryCancel();
        while (stream->Read(out)) {
        }
        const grpc::Status status = stream->Finish();
        return status.error_code() == grpc::StatusCode::CANCELLED ? grpc::Status::OK : status;
      });
}

}  // namespace
}  // namespace kvstream
