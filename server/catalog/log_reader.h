// Follows a log that somebody else appends to: each time what is new, frame by frame.
//
// Thread rule: one thread. Errors: as Folder; those of DecodeCatalogHeader.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/catalog/folder.h"
#include "server/store/catalog_log.h"

namespace kvstream::catalog {

class LogReader {
 public:
  explicit LogReader(std::string name) : name_(std::move(name)) {}

  using OnFrame = absl::FunctionRef<void(const store::NodeId& node, std::string_view frame)>;
  // Whether the log has grown by whole frames.
  absl::StatusOr<bool> ReadNew(const Folder& folder, OnFrame on_frame);

  // What is before this has been read in another way.
  void SkipTo(uint64_t offset) { offset_ = offset; }

  const std::string& name() const { return name_; }
  // How far it has read, bytes.
  uint64_t offset() const { return offset_; }
  // Frames that were left out.
  uint64_t damaged() const { return damaged_; }

 private:
  static constexpr uint64_t kPieceBytes = 2 * store::kFrameBytesMax;
  // What looks damaged may only be on its way: it is looked at so often before it is left out.
  static constexpr int kLooks = 4;

  // How much of the piece is done with.
  size_t ReadPiece(std::string_view piece, OnFrame on_frame);

  std::string name_;
  uint64_t offset_ = 0;
  uint64_t damaged_ = 0;
  int looks_ = 0;
};

}  // namespace kvstream::catalog
