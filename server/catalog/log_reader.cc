#include "server/catalog/log_reader.h"

namespace kvstream::catalog {

absl::StatusOr<bool> LogReader::ReadNew(const Folder& folder, OnFrame on_frame) {
  bool grew = false;
  while (true) {
    const absl::StatusOr<std::string> piece = folder.Read(name_, offset_, kPieceBytes);
    if (!piece.ok()) return piece.status();
    size_t done = 0;
    if (offset_ == 0) {
      if (piece->size() < store::kCatalogHeaderBytes) return false;
      const auto header = store::DecodeCatalogHeader(*piece);
      if (!header.ok()) return header.status();
      done = store::kCatalogHeaderBytes;
    }
    done += ReadPiece(std::string_view(*piece).substr(done), on_frame);
    offset_ += done;
    grew = grew || done > 0;
    if (done == 0 || piece->size() < kPieceBytes) return grew;
  }
}

size_t LogReader::ReadPiece(std::string_view piece, OnFrame on_frame) {
  size_t at = 0;
  while (at < piece.size()) {
    const std::string_view rest = piece.substr(at);
    const store::FrameSeen seen = store::CheckFrame(rest);
    if (seen.state == store::FrameState::kUnfinished) break;
    if (seen.state == store::FrameState::kWhole) {
      on_frame(seen.node, rest.substr(0, seen.bytes));
      at += seen.bytes;
    } else if (at > 0 || ++looks_ < kLooks) {
      break;
    } else {
      damaged_ += 1;
      // Its length may be what is damaged.
      at += store::BytesToNextFrame(rest);
    }
    looks_ = 0;
  }
  return at;
}

}  // namespace kvstream::catalog
