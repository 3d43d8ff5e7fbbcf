#include "client/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvstream {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Targets {
  bool flag = false;
  std::string text;
  std::vector<std::string> list;
  uint64_t number = 0;
  uint64_t size = 0;

  std::vector<Option> Options() {
    return {FlagOption("--flag", "a flag", &flag), TextOption("--text", "TEXT", "a text", &text),
            ListOption("--each", "TEXT", "texts", &list),
            NumberOption("--number", "N", "a number", {1, 100}, &number),
            SizeOption("--size", "a size", {1, 1 << 20}, &size)};
  }

  absl::StatusOr<std::vector<std::string>> Parse(const std::vector<std::string>& arguments,
                                                 Positionals positionals = Positionals::kMixed) {
    return ParseOptions(arguments, Options(), positionals);
  }

  std::string Refusal(const std::vector<std::string>& arguments) {
    const absl::Status status = Parse(arguments).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }
};

TEST(OptionsTest, ValuesFollowTheirOptionOrAnEqualsSign) {
  Targets t;
  const auto rest = t.Parse(
      {"--flag", "--text", "a=b", "--number=7", "--size", "4KiB", "--each=x", "--each", "y"});
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_THAT(*rest, IsEmpty());
  EXPECT_TRUE(t.flag);
  EXPECT_EQ(t.text, "a=b");
  EXPECT_EQ(t.number, 7u);
  EXPECT_EQ(t.size, 4096u);
  EXPECT_THAT(t.list, ElementsAre("x", "y"));
}

TEST(OptionsTest, AnEmptyValueIsAValue) {
  Targets t;
  t.text = "before";
  ASSERT_TRUE(t.Parse({"--text="}).ok());
  EXPECT_EQ(t.text, "");
}

TEST(OptionsTest, PositionalsMayStandAmongOptions) {
  Targets t;
  const auto rest = t.Parse({"one", "--flag", "-", "two"});
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_THAT(*rest, ElementsAre("one", "-", "two"));
  EXPECT_TRUE(t.flag);
}

TEST(OptionsTest, TwoDashesEndTheOptions) {
  Targets t;
  const auto rest = t.Parse({"--", "--flag"});
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_THAT(*rest, ElementsAre("--flag"));
  EXPECT_FALSE(t.flag);
}

TEST(OptionsTest, TheFirstPositionalStopsWhenAsked) {
  Targets t;
  const auto rest = t.Parse({"--flag", "status", "--unknown"}, Positionals::kStop);
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_THAT(*rest, ElementsAre("status", "--unknown"));
}

TEST(OptionsTest, RefusalsNameTheOption) {
  Targets t;
  EXPECT_EQ(t.Refusal({"--unknown"}), "option --unknown: unknown");
  EXPECT_EQ(t.Refusal({"--unknown=3"}), "option --unknown: unknown");
  EXPECT_EQ(t.Refusal({"--flag=yes"}), "option --flag: takes no value");
  EXPECT_EQ(t.Refusal({"--text"}), "option --text: needs a value, TEXT");
  EXPECT_EQ(t.Refusal({"--number", "0"}), "option --number: 0 is not within 1 .. 100");
  EXPECT_EQ(t.Refusal({"--number", "101"}), "option --number: 101 is not within 1 .. 100");
  EXPECT_EQ(t.Refusal({"--number", "7x"}), "option --number: \"7x\" is not a number");
  EXPECT_EQ(t.Refusal({"--number", "-7"}), "option --number: \"-7\" is not a number");
  EXPECT_THAT(t.Refusal({"--size", "2MiB"}), HasSubstr("option --size: 2097152 is not within"));
  EXPECT_THAT(t.Refusal({"--size", "big"}), HasSubstr("option --size: \"big\" is not a size"));
}

TEST(OptionsTest, HelpAlignsAndContinuesLines) {
  bool flag = false;
  uint64_t size = 0;
  EXPECT_EQ(OptionsHelp({FlagOption("--a", "first\nsecond", &flag),
                         SizeOption("--bytes", "third", {}, &size)}),
            "  --a           first\n"
            "                second\n"
            "  --bytes SIZE  third\n");
}

TEST(ParseSizeTest, UnitsArePowersOfTwo) {
  EXPECT_EQ(ParseSize("0").value(), 0u);
  EXPECT_EQ(ParseSize("123").value(), 123u);
  EXPECT_EQ(ParseSize("123B").value(), 123u);
  EXPECT_EQ(ParseSize("256KiB").value(), 262144u);
  EXPECT_EQ(ParseSize("2MiB").value(), 2097152u);
  EXPECT_EQ(ParseSize("1GiB").value(), 1073741824u);
  EXPECT_EQ(ParseSize("3TiB").value(), 3298534883328u);
  EXPECT_EQ(ParseSize("18446744073709551615").value(), 18446744073709551615u);
}

TEST(ParseSizeTest, WhatIsNoSizeIsRefused) {
  for (const char* text : {"", "KiB", "1KB", "1kib", "1 KiB", " 1", "+1", "-1", "1.5MiB", "0x10",
                           "1KiBx", "18446744073709551616", "18014398509481984KiB"}) {
    EXPECT_EQ(ParseSize(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace kvstream
