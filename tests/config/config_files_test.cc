// The files that operators start from: they load, and the full one documents every field.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "kvstream/config/v1/config.pb.h"
#include "server/config/config.h"

namespace kvstream::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string PathOf(const std::string& file) {
  return std::string(KVSTREAM_CONFIG_DIR) + "/" + file;
}

v1::DaemonConfig ReadMessage(const std::string& file) {
  std::ifstream in(PathOf(file));
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  v1::DaemonConfig message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << file;
  return message;
}

// Adds to `unset` the path of each field that `message` leaves out, in submessages too.
void CollectUnset(const Message& message, const std::string& prefix,
                  std::vector<std::string>* unset) {
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    const std::string path = prefix + field->name();
    if (field->is_repeated()) {
      for (int j = 0; j < reflection->FieldSize(message, field); ++j) {
        CollectUnset(reflection->GetRepeatedMessage(message, field, j),
                     path + "[" + std::to_string(j) + "].", unset);
      }
      continue;
    }
    if (!reflection->HasField(message, field)) unset->push_back(path);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      CollectUnset(reflection->GetMessage(message, field), path + ".", unset);
    }
  }
}

// Adds to `others` the path of each field that has a default and another value.
void CollectOtherThanDefault(const Message& message, const std::string& prefix,
                             std::vector<std::string>* others) {
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    const std::string path = prefix + field->name();
    if (field->is_repeated()) {
      for (int j = 0; j < reflection->FieldSize(message, field); ++j) {
        CollectOtherThanDefault(reflection->GetRepeatedMessage(message, field, j),
                                path + "[" + std::to_string(j) + "].", others);
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      CollectOtherThanDefault(reflection->GetMessage(message, field), path + ".", others);
    } else if (field->has_default_value()) {
      std::string value;
      google::protobuf::TextFormat::PrintFieldValueToString(message, field, -1, &value);
      // A message that leaves the field out reads as the default.
      std::string by_default;
      const std::unique_ptr<Message> blank(message.New());
      google::protobuf::TextFormat::PrintFieldValueToString(*blank, field, -1, &by_default);
      if (value != by_default) others->push_back(path);
    }
  }
}

TEST(ConfigFilesTest, FullFileLoads) {
  const auto options = LoadConfig(PathOf("kvstream.textproto"));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->tiers.size(), 2u);
}

// But where a file system is mounted, and how much of it may be used: no value of these suits every
// node that tries the file. And what only shared tiers have.
TEST(ConfigFilesTest, FullFileSetsEveryField) {
  std::vector<std::string> unset;
  CollectUnset(ReadMessage("kvstream.textproto"), "", &unset);
  EXPECT_THAT(unset, testing::ElementsAre("tiers[0].mount_point", "tiers[0].capacity_mib",
                                          "tiers[0].hints_max", "tiers[0].gone_after_hours",
                                          "tiers[1].mount_point", "tiers[1].capacity_mib"));
}

TEST(ConfigFilesTest, FullFileShowsTheDefaultsExceptThatThePfsIsShared) {
  std::vector<std::string> others;
  CollectOtherThanDefault(ReadMessage("kvstream.textproto"), "", &others);
  EXPECT_THAT(others, testing::ElementsAre("tiers[1].shared"));
}

TEST(ConfigFilesTest, FullFileShowsWhatIsDerivedWhenLeftOut) {
  v1::DaemonConfig message = ReadMessage("kvstream.textproto");
  message.mutable_sockets()->clear_handoff();
  for (v1::Tier& tier : *message.mutable_tiers()) tier.clear_quarantine_mib();
  std::string text;
  ASSERT_TRUE(google::protobuf::TextFormat::PrintToString(message, &text));
  const auto derived = ParseConfig(text, "derived");
  const auto shown = LoadConfig(PathOf("kvstream.textproto"));
  ASSERT_TRUE(derived.ok() && shown.ok());
  EXPECT_EQ(derived->handoff_socket, shown->handoff_socket);
  EXPECT_EQ(derived->tiers[0].quarantine_bytes, shown->tiers[0].quarantine_bytes);
  EXPECT_EQ(derived->tiers[1].quarantine_bytes, shown->tiers[1].quarantine_bytes);
}

TEST(ConfigFilesTest, DevFileLoadsAndStaysSmallAndLocal) {
  const auto options = LoadConfig(PathOf("dev.textproto"));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->pool_bytes, 256 * kMiB);
  EXPECT_EQ(options->metrics_listen, "127.0.0.1:0");
  EXPECT_THAT(options->grpc_socket, testing::StartsWith("/tmp/kvstream-dev/"));
  ASSERT_EQ(options->tiers.size(), 2u);
  EXPECT_EQ(options->tiers[0].root, "/tmp/kvstream-dev/nvme");
  EXPECT_EQ(options->tiers[1].root, "/tmp/kvstream-dev/pfs");
}

}  // namespace
}  // namespace kvstream::config
