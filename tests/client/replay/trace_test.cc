#include "client/replay/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>

namespace kvstream::replay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kGood[] =
    R"({"timestamp": 3, "input_length": 1024, "output_length": 5, "hash_ids": [0, 7]})";

TEST(TraceTest, LineBecomesARequest) {
  const auto request = ParseTraceLine(kGood);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->timestamp_ms, 3u);
  EXPECT_EQ(request->input_tokens, 1024u);
  EXPECT_EQ(request->output_tokens, 5u);
  EXPECT_THAT(request->ids, ElementsAre(0, 7));
}

TEST(TraceTest, OtherFieldsAndEmptyPromptsAreAllowed) {
  const auto request = ParseTraceLine(
      R"({"timestamp": 0, "input_length": 0, "output_length": 0, "hash_ids": [], "x": {"a": 1}})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->ids, IsEmpty());
}

TEST(TraceTest, LargestIdFits) {
  const auto request = ParseTraceLine(
      R"({"timestamp":0,"input_length":0,"output_length":0,"hash_ids":[68719476735]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->ids, ElementsAre(kIdMax));
}

TEST(TraceTest, BadLinesSayWhatIsWrong) {
  const std::string rest = R"("input_length":1,"output_length":1,)";
  const std::pair<std::string, std::string> lines[] = {
      {"", "not a JSON object"},
      {"[1]", "not a JSON object"},
      {"{\"timestamp\": 0", "not a JSON object"},
      {"{" + rest + R"("hash_ids":[1]})", "field timestamp is missing"},
      {R"({"timestamp":-1,)" + rest + R"("hash_ids":[1]})", "field timestamp is not an integer"},
      {R"({"timestamp":"x",)" + rest + R"("hash_ids":[1]})", "field timestamp is not an integer"},
      {R"({"timestamp":0,)" + rest + R"("hash_ids":7})", "field hash_ids is not a list"},
      {R"({"timestamp":0,"input_length":1,"output_length":1})", "field hash_ids is not a list"},
      {R"({"timestamp":0,)" + rest + R"("hash_ids":[1.5]})", "field hash_ids is not an integer"},
      {R"({"timestamp":0,)" + rest + R"("hash_ids":[-1]})", "field hash_ids is not an integer"},
      {R"({"timestamp":0,)" + rest + R"("hash_ids":[null]})", "field hash_ids is not an integer"},
      {R"({"timestamp":0,)" + rest + R"("hash_ids":[68719476736]})",
       "field hash_ids is not an integer within 0 .. 68719476735"},
  };
  for (const auto& [line, cause] : lines) {
    const absl::Status status = ParseTraceLine(line).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(status.message()), HasSubstr(cause)) << line;
  }
}

// A trace in a file of its own.
class TraceFileTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "trace.XXXXXX";
    const int fd = mkstemp(path_.data());
    ASSERT_GE(fd, 0);
    close(fd);
  }
  void TearDown() override { unlink(path_.c_str()); }
  void Write(const std::string& text) { std::ofstream(path_) << text; }

  std::string path_;
};

TEST_F(TraceFileTest, ReadsAtMostWhatIsAskedFor) {
  Write(std::string(kGood) + "\n\n" + kGood + "\n" + kGood);
  EXPECT_EQ(ReadTrace(path_, 100).value().size(), 3u);
  EXPECT_EQ(ReadTrace(path_, 2).value().size(), 2u);
}

TEST_F(TraceFileTest, BadLineIsNamedByItsNumber) {
  Write(std::string(kGood) + "\n\nnonsense\n");
  const absl::Status status = ReadTrace(path_, 100).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + ": line 3: not a JSON object"));
}

TEST_F(TraceFileTest, MissingFileIsNotFound) {
  EXPECT_EQ(ReadTrace(path_ + ".not", 1).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvstream::replay
