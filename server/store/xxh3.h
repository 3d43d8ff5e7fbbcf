// XXH3, in the variant that the processor does best: the library's plain symbols are compiled for
// the oldest x86, its dispatching ones ask once what the processor can do. The values are the same.
#pragma once

#define XXH_STATIC_LINKING_ONLY  // The hash state on the stack: no allocation for each segment.
#include <xxhash.h>

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // Redefines the names that hash.
#endif
