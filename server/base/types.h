// The words of DESIGN that every room shares, as types.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>

namespace kvstream {

// Monotonic time in nanoseconds. The pure rooms never read a clock: they are told.
using TimeNs = int64_t;
inline constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();
inline constexpr TimeNs kMicrosecond = 1000;
inline constexpr TimeNs kMillisecond = 1000 * kMicrosecond;
inline constexpr TimeNs kSecond = 1000 * kMillisecond;

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

// A 128-bit digest. `Tag` keeps digests of different things apart.
template <typename Tag>
struct Digest128 {
  std::array<uint8_t, 16> bytes{};

  auto operator<=>(const Digest128&) const = default;
  // Of a length that the compiler knows: two compared words, no call.
  bool operator==(const Digest128& o) const {
    return std::memcmp(bytes.data(), o.bytes.data(), sizeof bytes) == 0;
  }

  template <typename H>
  friend H AbslHashValue(H h, const Digest128& d) {
    uint64_t low;  // A digest is already uniform: half of it is hash enough.
    std::memcpy(&low, d.bytes.data(), sizeof low);
    return H::combine(std::move(h), low);
  }
};

// Digest of a Namespace message.
using NamespaceId = Digest128<struct NamespaceTag>;
// Digest of a full chunk key.
using KeyDigest = Digest128<struct KeyTag>;
// Digest of a chunk's segment checksums: equal keys need not have equal bytes.
using ContentId = Digest128<struct ContentTag>;
// Random for each start of the daemon.
using BootId = Digest128<struct BootTag>;

// An integer that does not mix with others.
template <typename Tag, typename Int>
struct StrongId {
  Int value{};

  auto operator<=>(const StrongId&) const = default;

  template <typename H>
  friend H AbslHashValue(H h, const StrongId& id) {
    return H::combine(std::move(h), id.value);
  }
};

// Numbers tiers in config order, fastest first.
using TierId = StrongId<struct TierTag, uint32_t>;
// Numbers sessions of a boot, from 1.
using SessionId = StrongId<struct SessionTag, uint64_t>;
// An operation, numbered by the daemon across all sessions, never reused.
using OperationId = StrongId<struct OperationTag, uint64_t>;
// A request to a tier: comes back in exactly one completion. Never reused.
using Ticket = StrongId<struct TicketTag, uint64_t>;
// Chunks that differ only in group and shard: one place in a prefix.
using SiblingsId = StrongId<struct SiblingsTag, uint64_t>;

inline constexpr uint32_t kTiersMax = 8;

// A set of tiers.
class TierSet {
 public:
  constexpr TierSet() = default;
  static constexpr TierSet FromBits(uint32_t bits) {
    TierSet s;
    s.bits_ = bits;
    return s;
  }
  static constexpr TierSet Of(TierId t) { return FromBits(1u << t.value); }

  constexpr bool Has(TierId t) const { return (bits_ >> t.value) & 1u; }
  constexpr void Add(TierId t) { bits_ |= 1u << t.value; }
  constexpr void Remove(TierId t) { bits_ &= ~(1u << t.value); }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr int size() const { return __builtin_popcount(bits_); }
  constexpr uint32_t bits() const { return bits_; }
  constexpr TierSet operator&(TierSet o) const { return FromBits(bits_ & o.bits_); }
  constexpr TierSet operator|(TierSet o) const { return FromBits(bits_ | o.bits_); }
  constexpr TierSet Without(TierSet o) const { return FromBits(bits_ & ~o.bits_); }
  constexpr bool operator==(const TierSet&) const = default;

 private:
  uint32_t bits_ = 0;
};

template <typename Tag>
std::string ToHex(const Digest128<Tag>& d) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(32);
  for (uint8_t b : d.bytes) {
    out.push_back(kDigits[b >> 4]);
    out.push_back(kDigits[b & 15]);
  }
  return out;
}

}  // namespace kvstream
