#include "server/store/namespace.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "tests/store/sample.h"

namespace kvstream::store {
namespace {

using Change = std::function<void(NamespaceSpec*)>;

absl::Status Normalized(const Change& change) {
  NamespaceSpec spec = SampleNamespace();
  change(&spec);
  return NormalizeNamespace(SampleLimits(), &spec);
}

struct BadCase {
  Change change;
  const char* message;
};

void ExpectAllRefused(std::initializer_list<BadCase> cases) {
  for (const BadCase& c : cases) {
    const absl::Status status = Normalized(c.change);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_EQ(std::string(status.message()), c.message);
  }
}

TEST(NamespaceTest, StringsOutsideTheirLimitsAreRefused) {
  ExpectAllRefused({
      {[](auto* s) { s->model.clear(); }, "model: 0 bytes is outside 1 .. 512 bytes"},
      {[](auto* s) { s->model.assign(513, 'x'); }, "model: 513 bytes is outside 1 .. 512 bytes"},
      {[](auto* s) { s->weights_fingerprint.clear(); },
       "weights_fingerprint: 0 bytes is outside 1 .. 512 bytes"},
      {[](auto* s) { s->weights_fingerprint.assign(513, 'x'); },
       "weights_fingerprint: 513 bytes is outside 1 .. 512 bytes"},
      {[](auto* s) { s->kv_dtype.clear(); }, "kv_dtype: 0 bytes is outside 1 .. 64 bytes"},
      {[](auto* s) { s->kv_dtype.assign(65, 'x'); }, "kv_dtype: 65 bytes is outside 1 .. 64 bytes"},
      {[](auto* s) { s->quantization.assign(257, 'x'); },
       "quantization: 257 bytes is outside 0 .. 256 bytes"},
      {[](auto* s) { s->rope.assign(1025, 'x'); }, "rope: 1025 bytes is outside 0 .. 1024 bytes"},
      {[](auto* s) { s->layout.clear(); }, "layout: 0 bytes is outside 1 .. 256 bytes"},
      {[](auto* s) { s->layout.assign(257, 'x'); }, "layout: 257 bytes is outside 1 .. 256 bytes"},
      {[](auto* s) {
         s->extra = {{"key", std::string(4094, 'x')}};
       },
       "extra: 4097 bytes is outside 0 .. 4096 bytes"},
  });
}

TEST(NamespaceTest, NumbersOutsideTheirLimitsAreRefused) {
  ExpectAllRefused({
      {[](auto* s) { s->strides.assign(17, 1); }, "strides: 17 entries is outside 0 .. 16 entries"},
      {[](auto* s) {
         s->strides = {8, 0};
       },
       "strides[1]: 0 is not a stride"},
      {[](auto* s) { s->page_tokens = 65537; }, "page_tokens: 65537 is outside 0 .. 65536"},
      {[](auto* s) { s->chunk_tokens = 0; }, "chunk_tokens: 0 is outside 1 .. 1048576"},
      {[](auto* s) { s->chunk_tokens = 1048577; }, "chunk_tokens: 1048577 is outside 1 .. 1048576"},
      {[](auto* s) { s->segment_bytes = 4096; },
       "segment_bytes: 4096 is outside 16384 .. 16777216"},
      {[](auto* s) { s->segment_bytes = 32 * kMiB; },
       "segment_bytes: 33554432 is outside 16384 .. 16777216"},
      {[](auto* s) { s->segment_bytes = 16385; }, "segment_bytes: 16385 is not a multiple of 4096"},
  });
}

TEST(NamespaceTest, GroupsOutsideTheirLimitsAreRefused) {
  ExpectAllRefused({
      {[](auto* s) { s->groups.clear(); }, "groups: 0 entries is outside 1 .. 64 entries"},
      {[](auto* s) { s->groups.resize(65, s->groups[0]); },
       "groups: 65 entries is outside 1 .. 64 entries"},
      {[](auto* s) { s->groups[1].name.assign(129, 'x'); },
       "groups[1].name: 129 bytes is outside 0 .. 128 bytes"},
      {[](auto* s) { s->groups[1].chunk_bytes = 0; },
       "groups[1].chunk_bytes: 0 is outside 1 .. 1073741824"},
      {[](auto* s) { s->groups[0].chunk_bytes = kGiB + 1; },
       "groups[0].chunk_bytes: 1073741825 is outside 1 .. 1073741824"},
      {[](auto* s) {
         s->groups.resize(2, s->groups[0]);
         s->groups[0].replicated = s->groups[1].replicated = false;
         s->groups[0].shards = 4096;
         s->groups[1].shards = 1;
       },
       "groups: 4097 shards in all is outside 1 .. 4096 shards in all"},
      {[](auto* s) { s->groups[0].shards = 4097; }, "groups[0].shards: 4097 is outside 1 .. 4096"},
      {[](auto* s) { s->groups[1].shards = 2; },
       "groups[1].shards: 2 contradicts replicated, which allows 0 or 1"},
      {[](auto* s) { s->groups[0].chunk_bytes = kSegmentsMax * kMiB + 1; },
       "groups[0].chunk_bytes: 503316481 makes 481 segments of 1048576 bytes, more than 480"},
  });
}

TEST(NamespaceTest, EveryLimitItselfIsAccepted) {
  const Change changes[] = {
      [](auto* s) { s->model.assign(512, 'x'); },
      [](auto* s) { s->weights_fingerprint.assign(512, '\0'); },
      [](auto* s) { s->kv_dtype.assign(64, 'x'); },
      [](auto* s) { s->quantization.assign(256, 'x'); },
      [](auto* s) { s->rope.assign(1024, 'x'); },
      [](auto* s) { s->layout.assign(256, 'x'); },
      [](auto* s) {
        s->extra = {{"key", std::string(4093, 'x')}};
      },
      [](auto* s) { s->quantization.clear(), s->rope.clear(), s->extra.clear(); },
      [](auto* s) { s->strides.assign(16, 1); },
      [](auto* s) { s->strides.clear(); },
      [](auto* s) { s->page_tokens = 0; },
      [](auto* s) { s->page_tokens = 65536; },
      [](auto* s) { s->chunk_tokens = 1048576; },
      [](auto* s) { s->segment_bytes = 16 * kMiB; },
      [](auto* s) { s->segment_bytes = 32 * kKiB; },
      [](auto* s) { s->groups.resize(64, s->groups[0]); },
      [](auto* s) { s->groups[0].name.assign(128, 'x'); },
      [](auto* s) {
        s->groups.resize(1);
        s->groups[0].shards = 4096;
      },
      [](auto* s) { s->groups[0].chunk_bytes = 1; },
      [](auto* s) { s->groups[0].chunk_bytes = kSegmentsMax * kMiB; },
  };
  for (const Change& change : changes) {
    const absl::Status status = Normalized(change);
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(NamespaceTest, AbsentNumbersGetTheirDefaults) {
  NamespaceSpec spec = SampleNamespace();
  spec.segment_bytes = 0;
  spec.tensor_parallel = spec.pipeline_parallel = spec.context_parallel = 0;
  spec.groups[1].shards = 0;
  ASSERT_TRUE(NormalizeNamespace(SampleLimits(), &spec).ok());
  EXPECT_EQ(spec.segment_bytes, 4 * kMiB);
  EXPECT_EQ(spec.tensor_parallel, 1u);
  EXPECT_EQ(spec.pipeline_parallel, 1u);
  EXPECT_EQ(spec.context_parallel, 1u);
  EXPECT_EQ(spec.groups[1].shards, 1u);
}

TEST(NamespaceTest, NormalizingAgainChangesNothing) {
  NamespaceSpec spec = SampleNamespace();
  ASSERT_TRUE(NormalizeNamespace(SampleLimits(), &spec).ok());
  EXPECT_EQ(spec, SampleNamespace());
}

TEST(NamespaceTest, EveryFieldChangesTheDigest) {
  const Change changes[] = {
      [](auto*) {},
      [](auto* s) { s->model += "x"; },
      [](auto* s) { s->weights_fingerprint += "x"; },
      [](auto* s) { s->kv_dtype += "x"; },
      [](auto* s) { s->quantization += "x"; },
      [](auto* s) { s->rope += "x"; },
      [](auto* s) { s->layout += "x"; },
      [](auto* s) { s->strides[0] += 1; },
      [](auto* s) { s->strides.pop_back(); },
      [](auto* s) { std::swap(s->strides[0], s->strides[1]); },
      [](auto* s) { s->page_tokens += 1; },
      [](auto* s) { s->chunk_tokens += 1; },
      [](auto* s) { s->tensor_parallel += 1; },
      [](auto* s) { s->pipeline_parallel += 1; },
      [](auto* s) { s->context_parallel += 1; },
      [](auto* s) { std::swap(s->tensor_parallel, s->pipeline_parallel); },
      [](auto* s) { s->groups[0].name += "x"; },
      [](auto* s) { s->groups[0].chunk_bytes += 1; },
      [](auto* s) { s->groups[0].shards += 1; },
      [](auto* s) { s->groups[1].replicated = false; },
      [](auto* s) { s->groups.pop_back(); },
      [](auto* s) { std::swap(s->groups[0], s->groups[1]); },
      [](auto* s) { s->segment_bytes += 4096; },
      [](auto* s) { s->extra["a"] = "2"; },
      [](auto* s) { s->extra["c"] = ""; },
      [](auto* s) { s->extra.erase("b"); },
      // Bytes that move over a border between fields.
      [](auto* s) { s->model = "example/model-8", s->weights_fingerprint = "brev-1"; },
      [](auto* s) {
        s->extra = {{"a1", ""}, {"b", "2"}};
      },
  };
  std::set<NamespaceId> digests;
  for (size_t i = 0; i < std::size(changes); ++i) {
    NamespaceSpec spec = SampleNamespace();
    changes[i](&spec);
    EXPECT_TRUE(digests.insert(DigestOfNamespace(spec)).second) << "change " << i;
  }
}

}  // namespace
}  // namespace kvstream::store
