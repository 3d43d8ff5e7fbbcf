// Reads kvstreamd's config file: protobuf text format of proto/kvstream/config/v1/config.proto in,
// validated plain Options out. No other code sees the schema.
//
// Thread rule: free functions without state. Ownership: results are values.
//
// Errors: INVALID_ARGUMENT carries every problem found, one a line. A text that does not parse is
// reported as "<source>:<line>:<column>: <cause>" and not checked further, because what the parser
// left out would look like missing fields. A text that parses is checked in full; each problem
// names the field, the value and the limit, as in "tiers[1].io_kib: 3 is not a power of two in 4 ..
// 65536". Nothing is looked up in the file system: whether roots exist and differ is checked at
// start.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/config/options.h"

namespace kvstream::config {

// Reads and checks the file at `path`. Besides INVALID_ARGUMENT: the Status of the system call that
// failed, such as NOT_FOUND, naming the path.
absl::StatusOr<Options> LoadConfig(const std::string& path);

// Checks `text`; `source_name` is what parse errors call it.
absl::StatusOr<Options> ParseConfig(std::string_view text, std::string_view source_name);

}  // namespace kvstream::config
