#include "client/operation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/operation_table.h"

namespace kvstream {
namespace {

using ::testing::ElementsAre;

v1::ReadStep StepOf(uint64_t id, int requests) {
  v1::ReadStep step;
  step.set_operation_id(id);
  for (int i = 0; i < requests; ++i) step.add_requests()->set_request_id(10 + i);
  return step;
}

v1::Event RequestDone(uint64_t id, uint64_t request, uint32_t leading_valid) {
  v1::Event event;
  event.mutable_request_done()->set_operation_id(id);
  event.mutable_request_done()->set_request_id(request);
  event.mutable_request_done()->set_leading_valid(leading_valid);
  return event;
}

v1::Event Quiesced(uint64_t id, v1::Code code = v1::OK) {
  v1::Event event;
  event.mutable_quiesced()->set_operation_id(id);
  event.mutable_quiesced()->set_code(code);
  return event;
}

// A read whose callbacks are written down.
struct Recorded {
  std::vector<std::string> calls;
  std::shared_ptr<ReadOperation> operation;

  Recorded(uint64_t id, int requests) {
    operation = std::make_shared<ReadOperation>(
        StepOf(id, requests),
        ReadCallbacks{[this](const v1::RequestDone& done) {
                        calls.push_back(std::to_string(done.request_id()) + " " +
                                        v1::Code_Name(done.code()));
                      },
                      [this](const absl::Status& status) {
                        calls.push_back("ended " + absl::StatusCodeToString(status.code()));
                      }});
  }
  bool ended() const { return operation->WaitEnded(absl::ZeroDuration()); }
};

TEST(OperationTableTest, EventsReachTheirOperationOnly) {
  OperationTable table;
  Recorded one(1, 1);
  Recorded two(2, 1);
  ASSERT_TRUE(table.Add(one.operation).ok());
  ASSERT_TRUE(table.Add(two.operation).ok());
  table.Dispatch(RequestDone(2, 10, 5));
  table.Dispatch(Quiesced(2));
  EXPECT_FALSE(one.ended());
  ASSERT_TRUE(two.ended());
  EXPECT_EQ(two.operation->status(), absl::OkStatus());
  EXPECT_EQ(two.operation->results()[0].leading_valid(), 5u);
  EXPECT_THAT(two.calls, ElementsAre("10 OK", "ended OK"));
}

TEST(OperationTableTest, EventsAfterTheEndMeanNothing) {
  OperationTable table;
  Recorded read(1, 1);
  ASSERT_TRUE(table.Add(read.operation).ok());
  table.Dispatch(Quiesced(1, v1::CANCELLED));
  table.Dispatch(RequestDone(1, 10, 5));
  table.Dispatch(Quiesced(1));
  EXPECT_EQ(read.operation->status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(read.calls, ElementsAre("10 CANCELLED", "ended CANCELLED"));
}

TEST(OperationTableTest, BrokenStreamAloneKeepsMemoryInUse) {
  OperationTable table;
  Recorded read(1, 2);
  ASSERT_TRUE(table.Add(read.operation).ok());
  table.Dispatch(RequestDone(1, 11, 3));
  table.StreamEnded(absl::UnavailableError("the stream broke"));
  EXPECT_FALSE(read.ended());
  EXPECT_EQ(table.session_status().message(), "the stream broke");

  table.HandoffEnded();
  ASSERT_TRUE(read.ended());
  EXPECT_EQ(read.operation->status(), absl::UnavailableError("the stream broke"));
  EXPECT_THAT(read.calls, ElementsAre("11 OK", "10 UNAVAILABLE", "ended UNAVAILABLE"));
}

TEST(OperationTableTest, ClosedHandoffEndsOperationsOnlyAfterTheLastEvent) {
  OperationTable table;
  Recorded read(1, 1);
  ASSERT_TRUE(table.Add(read.operation).ok());
  table.HandoffEnded();
  EXPECT_FALSE(read.ended());
  table.Dispatch(RequestDone(1, 10, 3));
  table.StreamEnded(absl::CancelledError("given up"));
  ASSERT_TRUE(read.ended());
  EXPECT_EQ(read.operation->results()[0].leading_valid(), 3u);
  EXPECT_EQ(read.operation->status().code(), absl::StatusCode::kUnavailable);
}

TEST(OperationTableTest, LostSessionTakesNoOperation) {
  OperationTable table;
  table.StreamEnded(absl::InvalidArgumentError("a malformed message"));
  Recorded read(1, 1);
  EXPECT_EQ(table.Add(read.operation), absl::UnavailableError("a malformed message"));
  EXPECT_EQ(table.session_status().code(), absl::StatusCode::kInvalidArgument);
  table.HandoffEnded();
  EXPECT_FALSE(read.ended());
}

// Keeps back what is to run after copies, until it is told.
class Landing final : public LandingHandler {
 public:
  void OnRead(const v1::ReadStep&) override {}
  void OnStore(const v1::Store&) override {}
  void OnLanded(const v1::Landed& landed) override { calls.push_back("land " + Id(landed)); }
  void OnGather(const v1::Gather& gather) override { calls.push_back("gather " + Id(gather)); }
  void AfterCopies(uint64_t id, bool ended, absl::AnyInvocable<void()> then) override {
    calls.push_back((ended ? "end " : "outcome ") + std::to_string(id));
    waiting.push_back(std::move(then));
  }
  void Detach(bool) override {}

  void RunNext() {
    waiting.front()();
    waiting.pop_front();
  }

  std::vector<std::string> calls;
  std::deque<absl::AnyInvocable<void()>> waiting;

 private:
  template <typename Message>
  static std::string Id(const Message& message) {
    return std::to_string(message.operation_id());
  }
};

TEST(OperationTableTest, OutcomesWaitForCopies) {
  OperationTable table;
  auto landing = std::make_shared<Landing>();
  table.SetLandingHandler(landing);
  Recorded read(1, 1);
  ASSERT_TRUE(table.Add(read.operation).ok());
  v1::Event landed;
  landed.mutable_landed()->set_operation_id(1);
  table.Dispatch(landed);
  table.Dispatch(RequestDone(1, 10, 5));
  table.Dispatch(Quiesced(1));
  EXPECT_THAT(read.calls, ElementsAre());
  landing->RunNext();
  EXPECT_THAT(read.calls, ElementsAre("10 OK"));
  EXPECT_FALSE(read.ended());
  landing->RunNext();
  EXPECT_TRUE(read.ended());
  EXPECT_THAT(landing->calls, ElementsAre("land 1", "outcome 1", "end 1"));
}

// A dropped chunk may be released while the worker still gathers it.
TEST(OperationTableTest, ReleasedAndDurableWaitForCopies) {
  OperationTable table;
  auto landing = std::make_shared<Landing>();
  table.SetLandingHandler(landing);
  v1::Store message;
  message.set_operation_id(1);
  message.add_chunks();
  auto store = std::make_shared<StoreOperation>(message);
  ASSERT_TRUE(table.Add(store).ok());
  v1::Event gather;
  gather.mutable_gather()->set_operation_id(1);
  table.Dispatch(gather);
  v1::Event released;
  released.mutable_store_released()->set_operation_id(1);
  released.mutable_store_released()->set_all_released(true);
  table.Dispatch(released);
  v1::Event durable;
  durable.mutable_store_durable()->set_operation_id(1);
  table.Dispatch(durable);
  table.Dispatch(Quiesced(1));
  EXPECT_FALSE(store->WaitReleased(absl::ZeroDuration()));
  landing->RunNext();
  EXPECT_TRUE(store->WaitReleased(absl::ZeroDuration()));
  EXPECT_FALSE(store->WaitEnded(absl::ZeroDuration()));
  landing->RunNext();
  landing->RunNext();
  EXPECT_TRUE(store->WaitEnded(absl::ZeroDuration()));
  EXPECT_THAT(landing->calls, ElementsAre("gather 1", "outcome 1", "outcome 1", "end 1"));
}

TEST(OperationTableTest, LandingEventsOfEndedOperationsReachTheHandler) {
  OperationTable table;
  v1::Event gather;
  gather.mutable_gather()->set_operation_id(7);
  // Nobody is there to gather.
  table.Dispatch(gather);
  auto landing = std::make_shared<Landing>();
  table.SetLandingHandler(landing);
  table.Dispatch(gather);
  EXPECT_THAT(landing->calls, ElementsAre("gather 7"));
}

TEST(OperationTableTest, LostSessionWaitsForCopies) {
  OperationTable table;
  auto landing = std::make_shared<Landing>();
  table.SetLandingHandler(landing);
  Recorded read(1, 1);
  ASSERT_TRUE(table.Add(read.operation).ok());
  table.SetCause(absl::InternalError("a scatter failed"));
  table.StreamEnded(absl::CancelledError("given up"));
  EXPECT_THAT(landing->calls, ElementsAre());
  table.HandoffEnded();
  EXPECT_FALSE(read.ended());
  landing->RunNext();
  ASSERT_TRUE(read.ended());
  EXPECT_EQ(read.operation->status(), absl::UnavailableError("a scatter failed"));
}

TEST(ReadOperationTest, RequestWithoutAnOutcomeIsNotValidEvenIfTheStepIs) {
  Recorded read(1, 2);
  read.operation->OnEvent(RequestDone(1, 10, 4));
  read.operation->End(absl::OkStatus());
  const auto results = read.operation->results();
  EXPECT_EQ(results[0].code(), v1::OK);
  EXPECT_EQ(results[1].code(), v1::UNAVAILABLE);
  EXPECT_EQ(results[1].leading_valid(), 0u);
}

TEST(ReadOperationTest, SecondOutcomeOfARequestIsIgnored) {
  Recorded read(1, 1);
  read.operation->OnEvent(RequestDone(1, 10, 4));
  read.operation->OnEvent(RequestDone(1, 10, 9));
  read.operation->OnEvent(RequestDone(1, 99, 9));
  EXPECT_EQ(read.operation->results()[0].leading_valid(), 4u);
  EXPECT_THAT(read.calls, ElementsAre("10 OK"));
}

v1::Event Released(std::vector<std::pair<uint32_t, v1::Code>> outcomes, bool all) {
  v1::Event event;
  for (const auto& [index, code] : outcomes) {
    auto* result = event.mutable_store_released()->add_results();
    result->set_chunk_index(index);
    result->set_code(code);
  }
  event.mutable_store_released()->set_all_released(all);
  return event;
}

TEST(StoreOperationTest, ReleasedOnlyWithTheLastChunk) {
  v1::Store store;
  store.add_chunks();
  store.add_chunks();
  StoreOperation operation(store);
  operation.OnEvent(Released({{1, v1::RESOURCE_EXHAUSTED}}, false));
  EXPECT_FALSE(operation.WaitReleased(absl::ZeroDuration()));
  // An index that is not the store's own is no harm.
  operation.OnEvent(Released({{0, v1::OK}, {2, v1::OK}}, true));
  EXPECT_TRUE(operation.WaitReleased(absl::ZeroDuration()));
  EXPECT_FALSE(operation.WaitEnded(absl::ZeroDuration()));
  EXPECT_EQ(operation.chunks()[0].code, v1::OK);
  EXPECT_EQ(operation.chunks()[1].code, v1::RESOURCE_EXHAUSTED);
}

TEST(StoreOperationTest, FailedPublicationReplacesTheOutcome) {
  v1::Store store;
  store.add_chunks();
  StoreOperation operation(store);
  operation.OnEvent(Released({{0, v1::OK}}, true));
  v1::Event event;
  auto* result = event.mutable_store_durable()->add_results();
  result->set_code(v1::UNAVAILABLE);
  operation.OnEvent(event);
  EXPECT_EQ(operation.chunks()[0].code, v1::UNAVAILABLE);
}

TEST(StoreOperationTest, EndReleases) {
  v1::Store store;
  store.add_chunks();
  StoreOperation operation(store);
  operation.End(absl::InvalidArgumentError("refused"));
  EXPECT_TRUE(operation.WaitReleased(absl::ZeroDuration()));
  EXPECT_TRUE(operation.WaitEnded(absl::ZeroDuration()));
  EXPECT_EQ(operation.chunks()[0].code, v1::UNAVAILABLE);
}

}  // namespace
}  // namespace kvstream
