#include "server/rpc/packet_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace kvstream::rpc {
namespace {

// Descriptors taken from a packet, all but one only to close them. The kernel closes more.
constexpr size_t kDescriptorsMax = 16;

// Every descriptor of the message gets an owner, whatever becomes of the packet.
UniqueFd TakeDescriptors(msghdr* message) {
  UniqueFd first;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number;
      std::memcpy(&number, CMSG_DATA(c) + i * sizeof number, sizeof number);
      UniqueFd fd(number);
      if (!first.valid()) first = std::move(fd);
    }
  }
  return first;
}

// 0, or the errno.
int SendOne(int socket, PacketSocket::Packet& packet) {
  iovec bytes{packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (packet.fd.valid()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = packet.fd.get();
    std::memcpy(CMSG_DATA(c), &number, sizeof number);
  }
  while (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

PacketSocket::Received PacketSocket::Receive(Packet* packet) {
  std::array<char, kPacketBytesMax> bytes;
  iovec iov{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsMax * sizeof(int))> control;
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t n;
  do {
    n = recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0) {
    return errno == EAGAIN || errno == EWOULDBLOCK ? Received::kNothing : Received::kEnd;
  }
  packet->fd = TakeDescriptors(&message);
  if (n == 0 || (message.msg_flags & MSG_TRUNC) != 0) return Received::kEnd;
  packet->bytes.assign(bytes.data(), static_cast<size_t>(n));
  return Received::kPacket;
}

bool PacketSocket::Send(Packet packet) {
  if (queue_.size() >= kQueuedPacketsMax) return false;
  queue_.push_back(std::move(packet));
  return SendQueued();
}

bool PacketSocket::SendQueued() {
  while (!queue_.empty()) {
    const int error = SendOne(fd_.get(), queue_.front());
    if (error == EAGAIN || error == EWOULDBLOCK) return true;
    if (error != 0) return false;
    queue_.pop_front();
  }
  return true;
}

}  // namespace kvstream::rpc
