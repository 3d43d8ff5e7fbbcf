// Several nodes on one folder, in virtual time and in one thread: each looks in its turn.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "server/catalog/shared_catalog.h"
#include "tests/catalog/catalog_rig.h"

namespace kvstream::catalog {

class CatalogCluster : public CatalogRig {
 protected:
  // What a node knows, as the loop keeps it.
  struct Node final : CatalogListener {
    void OnTellingAll() override { told.emplace(); }
    void OnAllTold() override {
      if (told.has_value()) {
        std::erase_if(known, [this](uint64_t file) { return !told->contains(file); });
      }
      told.reset();
    }
    void OnEntry(const store::CatalogEntry& entry) override {
      const uint64_t file = NumberOf(entry.chunk.key);
      if (entry.what == What::kUsed) uses += 1;
      if (entry.what == What::kFile) {
        known.insert(file);
        if (told.has_value()) told->insert(file);
      }
      if (entry.what == What::kGone) {
        known.erase(file);
        if (told.has_value()) told->erase(file);
      }
    }
    void OnAdopted(const store::CatalogEntry& file) override {
      adopted.insert(NumberOf(file.chunk.key));
    }

    uint8_t number = 0;
    CatalogStats stats;
    std::unique_ptr<SharedCatalog> catalog;
    bool was_taken = false;
    std::set<uint64_t> known;
    std::optional<std::set<uint64_t>> told;
    std::set<uint64_t> adopted;
    int uses = 0;
  };

  Node& Start(uint8_t number) {
    Node& node = nodes_.emplace_back();
    node.number = number;
    Open(node);
    return node;
  }
  void Open(Node& node) {
    auto opened = SharedCatalog::Open(Root().get(), NodeOf(node.number),
                                      {.gone_after_seconds = 3600}, &node.stats, &node.was_taken);
    ASSERT_TRUE(opened.ok()) << opened.status();
    node.catalog = *std::move(opened);
  }
  void Say(Node& node, const std::vector<uint64_t>& files, const std::vector<uint64_t>& gone = {}) {
    const absl::Status said = node.catalog->Say(FrameOf(node.number, files, gone), now_);
    EXPECT_TRUE(said.ok()) << said;
  }
  // One look of one node.
  void Look(Node& node) {
    EXPECT_TRUE(node.catalog->Say("", now_).ok());
    const absl::Status heard = node.catalog->Hear(now_, &node);
    EXPECT_TRUE(heard.ok()) << heard;
    const absl::Status adopted = node.catalog->Adopt(now_, &node);
    EXPECT_TRUE(adopted.ok()) << adopted;
  }
  // As if nothing had been written to them for so long.
  void Age(uint8_t number, int hours) {
    for (const auto& entry : std::filesystem::directory_iterator(Path(kNodesFolder))) {
      if (!entry.path().filename().string().starts_with(ToHex(NodeOf(number)))) continue;
      std::filesystem::last_write_time(
          entry, std::filesystem::last_write_time(entry) - std::chrono::hours(hours));
    }
  }
  // A second of all that live.
  void Second() {
    for (Node& node : nodes_) {
      if (node.catalog != nullptr) Look(node);
    }
    now_ += kSecond;
  }
  int Leaders() const {
    int leaders = 0;
    for (const Node& node : nodes_) {
      leaders += node.catalog != nullptr && node.stats.leads.Get() != 0 ? 1 : 0;
    }
    return leaders;
  }

  std::deque<Node> nodes_;
  TimeNs now_ = 1000 * kSecond;
};

}  // namespace kvstream::catalog
