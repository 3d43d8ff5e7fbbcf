// One connection of the handoff socket: packets in both directions, each with at most one
// descriptor. Never blocks: what the peer does not take waits in a bounded queue, and a peer that
// lets it fill is given up.
//
// Thread rule: one thread. Ownership: owns the socket and the descriptors that wait to be sent.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <utility>

#include "server/base/unique_fd.h"

namespace kvstream::rpc {

class PacketSocket {
 public:
  static constexpr size_t kPacketBytesMax = 4096;
  static constexpr size_t kQueuedPacketsMax = 64;

  struct Packet {
    std::string bytes;
    // Invalid when none rides on the packet.
    UniqueFd fd;
  };
  enum class Received {
    kPacket,
    // Nothing more for now.
    kNothing,
    // End of file, an error, or a packet of more than kPacketBytesMax.
    kEnd,
  };

  explicit PacketSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  // Fills `packet` on kPacket. Descriptors after the first are closed.
  Received Receive(Packet* packet);

  // Sends, or queues behind what waits. False when the connection must end.
  [[nodiscard]] bool Send(Packet packet);
  // Sends what waits, as far as the peer takes it. False as in Send.
  [[nodiscard]] bool SendQueued();
  bool has_queued() const { return !queue_.empty(); }
  void DropQueued() { queue_.clear(); }

  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  std::deque<Packet> queue_;
};

}  // namespace kvstream::rpc
