#include "server/store/encoding.h"

#include <xxhash.h>

#include <cstring>

namespace kvstream::store {

void AppendString(std::string_view text, std::string* out) {
  AppendLe(static_cast<uint32_t>(text.size()), out);
  out->append(text);
}

std::array<uint8_t, 16> Xxh3Digest(std::string_view bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  std::array<uint8_t, 16> digest;
  static_assert(sizeof canonical.digest == sizeof digest);
  std::memcpy(digest.data(), canonical.digest, sizeof digest);
  return digest;
}

}  // namespace kvstream::store
