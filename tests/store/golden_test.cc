// FORMAT.md's golden example against the implementation. The example was made by another program.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/store/sample.h"

namespace kvstream::store {
namespace {

struct Golden {
  // "namespace digest" -> "5384..".
  std::map<std::string, std::string> named;
  Block header{};
};

Golden ReadGolden() {
  Golden golden;
  std::ifstream in(KVSTREAM_FORMAT_MD);
  std::string line;
  while (std::getline(in, line) && line != "## Golden example") {
  }
  while (std::getline(in, line)) {
    if (line.rfind("    ", 0) != 0) continue;
    line.erase(0, 4);
    if (line.find("  ") == 4) {
      std::istringstream row(line);
      size_t at;
      unsigned value;
      row >> std::hex >> at;
      while (row >> value) golden.header.at(at++) = static_cast<std::byte>(value);
    } else {
      const std::string name = line.substr(0, 17);
      golden.named[name.substr(0, name.find_last_not_of(' ') + 1)] = line.substr(18);
    }
  }
  return golden;
}

NamespaceSpec GoldenNamespace() {
  NamespaceSpec spec;
  spec.model = "example/model-8b";
  spec.weights_fingerprint = "rev-1";
  spec.kv_dtype = "bfloat16";
  spec.layout = "block-major/L,2,T,H,D";
  spec.page_tokens = 16;
  spec.chunk_tokens = 256;
  spec.groups = {{.name = "full_attention", .chunk_bytes = 5000, .shards = 2, .replicated = false}};
  spec.segment_bytes = 4096;
  return spec;
}

ChunkKey GoldenKey() {
  ChunkKey key;
  key.name_space = DigestOfNamespace(GoldenNamespace());
  key.shard = 1;
  key.shards = 2;
  key.salt = DigestOfSalt("tenant-a");
  for (char c = 0; c < 16; ++c) key.prefix_hash.push_back(c);
  return key;
}

TEST(GoldenTest, DigestsAreThoseOfTheSpecification) {
  const auto named = ReadGolden().named;
  ASSERT_EQ(named.size(), 6u);
  EXPECT_EQ(ToHex(DigestOfNamespace(GoldenNamespace())), named.at("namespace digest"));
  EXPECT_EQ(ToHex(DigestOfSalt("tenant-a")), named.at("salt digest"));
  EXPECT_EQ(ToHex(DigestOfKey(GoldenKey())), named.at("key digest"));
  const ChunkHeader header = SampleHeader(GoldenKey(), {5000, 4096});
  EXPECT_EQ(ToHex(header.content), named.at("content id"));
  std::ostringstream checksums;
  checksums << std::hex << header.checksums[0] << ' ' << header.checksums[1];
  EXPECT_EQ(checksums.str(), named.at("segment checksums"));
}

TEST(GoldenTest, HeaderBlockIsThatOfTheSpecificationByteForByte) {
  const Block golden = ReadGolden().header;
  EXPECT_EQ(EncodedBlock(SampleHeader(GoldenKey(), {5000, 4096})), golden);
  const auto decoded = DecodeHeaderOf(DigestOfKey(GoldenKey()), golden, 3 * 4096);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->encoded_key, EncodeKey(GoldenKey()));
}

}  // namespace
}  // namespace kvstream::store
