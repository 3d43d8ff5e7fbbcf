// A copy for bytes that nobody reads soon on this core: payload is many times the caches' size, and
// goes on to a GPU or a disk, or to another process. Its stores go past the caches, which spares
// reading the destination first and leaves the caches to others.
#pragma once

#include <cstddef>

namespace kvstream::store {

// As std::memcpy. The bytes are visible to whoever synchronises with this thread afterwards.
void StreamCopy(std::byte* destination, const std::byte* source, size_t bytes);

}  // namespace kvstream::store
