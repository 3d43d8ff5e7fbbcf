#include "server/tier/operation_table.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace kvstream::tier {
namespace {

TEST(OperationTableTest, CompletionThatIsLateFindsNothing) {
  OperationTable table;
  int results = 0;
  const uint64_t first = table.Add({}, [&](int32_t) { ++results; });
  ASSERT_NE(table.Find(first), nullptr);
  table.Remove(first)(0);
  EXPECT_EQ(table.Find(first), nullptr);
  // The place is used again, under another number.
  const uint64_t second = table.Add({}, [](int32_t) {});
  EXPECT_NE(second, first);
  EXPECT_EQ(table.Find(first), nullptr);
  EXPECT_NE(table.Find(second), nullptr);
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(results, 1);
}

TEST(OperationTableTest, NumberThatWasNeverGivenFindsNothing) {
  OperationTable table;
  EXPECT_EQ(table.Find(0), nullptr);
  const uint64_t number = table.Add({}, [](int32_t) {});
  EXPECT_EQ(table.Find(number + 1), nullptr);
  EXPECT_EQ(table.Find(number | uint64_t{7} << 32), nullptr);
  EXPECT_EQ(table.Find(~uint64_t{0}), nullptr);
}

TEST(OperationTableTest, EntriesStayWhereTheyAre) {
  OperationTable table;
  const uint64_t number = table.Add({}, [](int32_t) {});
  const OperationTable::Entry* entry = table.Find(number);
  for (int i = 0; i < 1000; ++i) table.Add({}, [](int32_t) {});
  EXPECT_EQ(table.Find(number), entry);
  EXPECT_EQ(table.size(), 1001u);
}

}  // namespace
}  // namespace kvstream::tier
