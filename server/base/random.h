// Random identifiers from the kernel: names of temporary files, boot ids, session tokens.
#pragma once

#include <array>
#include <cstdint>

namespace kvstream {

// 128 random bits from getrandom(2). Dies if the kernel refuses, which it cannot after boot.
std::array<uint8_t, 16> RandomBytes16();

}  // namespace kvstream
