#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/store/namespace.h"
#include "tests/store/sample.h"

namespace kvstream::store {
namespace {

using ::testing::ElementsAre;

class NamespaceRegistryTest : public ::testing::Test {
 protected:
  NamespaceRef Register(const std::vector<NamespaceRegistry::LocalShards>& local_shards) {
    const auto info = registry_.Register(SampleNamespace(), local_shards);
    EXPECT_TRUE(info.ok()) << info.status();
    return *info;
  }

  NamespaceRegistry registry_{SampleLimits()};
};

TEST_F(NamespaceRegistryTest, RegisteredNamespaceIsFoundByItsDigest) {
  const NamespaceRef info = Register({});
  EXPECT_EQ(info->id, DigestOfNamespace(SampleNamespace()));
  EXPECT_EQ(info->spec, SampleNamespace());
  EXPECT_EQ(registry_.Find(info->id), info);
  EXPECT_THAT(registry_.List(), ElementsAre(info));
}

TEST_F(NamespaceRegistryTest, UnknownNamespaceIsNull) {
  EXPECT_EQ(registry_.Find(NamespaceId()), nullptr);
}

TEST_F(NamespaceRegistryTest, NoLocalShardsMeansAllOfAllGroups) {
  const NamespaceRef info = Register({});
  EXPECT_THAT(info->local_shards, ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(0)));
}

TEST_F(NamespaceRegistryTest, EmptyListOfAGroupMeansAllOfThatGroup) {
  const NamespaceRef info = Register({{.group = 0, .shards = {}}});
  EXPECT_THAT(info->local_shards, ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre()));
}

TEST_F(NamespaceRegistryTest, RegistrationsAddUp) {
  const NamespaceRef first = Register({{.group = 0, .shards = {3, 3}}});
  const NamespaceRef second = Register({{.group = 0, .shards = {1}}, {.group = 1, .shards = {0}}});
  EXPECT_THAT(first->local_shards, ElementsAre(ElementsAre(3), ElementsAre()));
  EXPECT_THAT(second->local_shards, ElementsAre(ElementsAre(1, 3), ElementsAre(0)));
  EXPECT_EQ(registry_.Find(first->id), second);
  EXPECT_EQ(registry_.List().size(), 1u);
}

TEST_F(NamespaceRegistryTest, RegisteringAgainChangesNothing) {
  const NamespaceRef first = Register({});
  EXPECT_EQ(Register({}), first);
  EXPECT_EQ(Register({{.group = 0, .shards = {2}}}), first);
}

TEST_F(NamespaceRegistryTest, DefaultsAndTheirValuesAreOneNamespace) {
  NamespaceSpec spec = SampleNamespace();
  spec.context_parallel = 0;
  spec.groups[1].shards = 0;
  const auto info = registry_.Register(spec, {});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ((*info)->id, Register({})->id);
}

TEST_F(NamespaceRegistryTest, ShardsAndGroupsThatDoNotExistAreRefused) {
  const auto message = [&](const std::vector<NamespaceRegistry::LocalShards>& local_shards) {
    const absl::Status status = registry_.Register(SampleNamespace(), local_shards).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message({{.group = 2, .shards = {}}}), "local_shards[0].group: 2 is outside 0 .. 1");
  EXPECT_EQ(message({{.group = 1, .shards = {}}, {.group = 0, .shards = {0, 4}}}),
            "local_shards[1].shards[1]: 4 is outside 0 .. 3");
  EXPECT_TRUE(registry_.List().empty());
}

TEST_F(NamespaceRegistryTest, InvalidNamespaceIsNotRegistered) {
  NamespaceSpec spec = SampleNamespace();
  spec.weights_fingerprint.clear();
  EXPECT_EQ(registry_.Register(spec, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(registry_.List().empty());
}

TEST_F(NamespaceRegistryTest, PastItsLimitOnlyKnownNamespacesAreTaken) {
  const NamespaceRef known = Register({});
  NamespaceSpec spec = SampleNamespace();
  for (size_t i = 1; i < NamespaceRegistry::kNamespacesMax; ++i) {
    spec.rope = std::to_string(i);
    ASSERT_TRUE(registry_.Register(spec, {}).ok());
  }
  spec.rope = "one too many";
  EXPECT_EQ(registry_.Register(spec, {}).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Register({}), known);
}

}  // namespace
}  // namespace kvstream::store
