#include "client/output.h"

#include <gtest/gtest.h>

#include "client/commands/named_chunk.h"

namespace kvstream {
namespace {

TEST(OutputTest, TableAlignsColumnsOfNumbersToTheRight) {
  EXPECT_EQ(FormatTable({{"NAME", "READ", "RATE", "NOTE"},
                         {"nvme", "5 B", "-", "7 of 9"},
                         {"p", "1,000 B", "1 B/s", ""}}),
            "NAME     READ   RATE  NOTE\n"
            "nvme      5 B      -  7 of 9\n"
            "p     1,000 B  1 B/s\n");
}

TEST(OutputTest, UnitsStandBelowEachOther) {
  EXPECT_EQ(FormatTable({{"NAME", "BYTES", "RATE"},
                         {"a", "5 B", "20.0 MiB/s"},
                         {"b", "1.50 KiB", "7 B/s"},
                         {"c", "20.0 MiB", "-"}}),
            "NAME     BYTES        RATE\n"
            "a        5 B    20.0 MiB/s\n"
            "b     1.50 KiB     7 B/s\n"
            "c     20.0 MiB           -\n");
}

TEST(OutputTest, BytesHaveThreeDigits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(uint64_t{20} << 20), "20.0 MiB");
  EXPECT_EQ(FormatBytes(uint64_t{300} << 30), "300 GiB");
  EXPECT_EQ(FormatBytes(~uint64_t{0}), "16384 PiB");
}

TEST(OutputTest, CountsAreGroupedByThousands) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(15771), "15,771");
  EXPECT_EQ(FormatCount(123456789), "123,456,789");
}

TEST(OutputTest, HexComesBackAsItWas) {
  EXPECT_EQ(ParseHex(FormatHex(std::string("\x00\xff\x10", 3))), std::string("\x00\xff\x10", 3));
  EXPECT_EQ(ParseHex("ABcd"), "\xab\xcd");
  for (const char* no : {"a", "0x10", "1g", " 1", "-1"}) EXPECT_EQ(ParseHex(no), std::nullopt);
}

TEST(OutputTest, AgesHaveTheUnitOfWhichThereAreTwo) {
  EXPECT_EQ(FormatAge(0), "0 s");
  EXPECT_EQ(FormatAge(119), "119 s");
  EXPECT_EQ(FormatAge(120), "2 min");
  EXPECT_EQ(FormatAge(36 * 3600), "36 h");
  EXPECT_EQ(FormatAge(uint64_t{3} * 86400), "3 d");
}

TEST(OutputTest, JsonNumbersAreExactIntegers) {
  google::protobuf::Struct object;
  SetNumber(&object, "bytes", 9007199254740991.0);
  EXPECT_EQ(ToJson(object), "{\"bytes\":9007199254740991}");
}

TEST(NamedChunkTest, KeyIsThePublishedDigestOfTheText) {
  // What xxh128sum prints for an empty file.
  EXPECT_EQ(FormatHex(ctl::NamedKey("")), "99aa06d3014798d86001c324468d497f");
  EXPECT_NE(ctl::NamedKey("a"), ctl::NamedKey("b"));
}

TEST(NamedChunkTest, SizesAreNamespacesOfTheirOwn) {
  EXPECT_NE(ctl::NamedNamespace("n", 1).SerializeAsString(),
            ctl::NamedNamespace("n", 2).SerializeAsString());
}

}  // namespace
}  // namespace kvstream
