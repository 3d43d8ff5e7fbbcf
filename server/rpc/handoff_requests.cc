// The requests of the handoff socket: the part of HandoffServer that knows what they mean.
#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "server/base/errno_status.h"
#include "server/rpc/field_error.h"
#include "server/rpc/handoff_server.h"

namespace kvstream::rpc {
namespace {

constexpr uint64_t kPageBytes = 4096;
// Drops of a session that wait for the engine.
constexpr uint32_t kDropsPendingMax = 64;
// Descriptors of GPU memory that a session may have kept.
constexpr size_t kDeviceMemoryMax = 256;

}  // namespace

void HandoffServer::Serve(Connection& connection, PacketSocket::Packet packet) {
  v1::HandoffRequest request;
  if (!request.ParseFromString(packet.bytes)) return Lose(connection);
  v1::HandoffReply reply;
  reply.set_request_id(request.request_id());
  UniqueFd passed;
  absl::Status status;
  switch (request.request_case()) {
    case v1::HandoffRequest::kCreateHostBuffer:
      status = CreateBuffer(connection, request.create_host_buffer().bytes(), &reply, &passed);
      break;
    case v1::HandoffRequest::kAttachHostBuffer:
      status = AttachBuffer(connection, std::move(packet.fd), request.attach_host_buffer().bytes(),
                            &reply);
      break;
    case v1::HandoffRequest::kDropHostBuffer:
      if (PostDrop(connection, request.request_id(), request.drop_host_buffer().buffer_id(),
                   &status)) {
        return;
      }
      break;
    case v1::HandoffRequest::kAttachDeviceMemory:
      status = AttachDeviceMemory(connection, std::move(packet.fd), request.attach_device_memory(),
                                  &reply);
      break;
    case v1::HandoffRequest::REQUEST_NOT_SET:
      status = InvalidField("request", "missing, or of a kind that this version does not know");
      break;
  }
  Reply(connection, status, std::move(reply), std::move(passed));
}

absl::Status HandoffServer::CheckRoom(const Connection& connection, uint64_t bytes) const {
  const uint64_t bytes_max = options_.limits.host_buffer_bytes_per_session_max;
  if (auto s = CheckRange("bytes", bytes, {1, bytes_max}); !s.ok()) return s;
  if (connection.buffers.size() >= options_.limits.host_buffers_per_session_max) {
    return absl::ResourceExhaustedError("keep host buffer: the session has " +
                                        std::to_string(connection.buffers.size()) + " already");
  }
  if (bytes > bytes_max - connection.buffer_bytes) {
    return absl::ResourceExhaustedError(
        "keep host buffer of " + std::to_string(bytes) + " bytes: the session has " +
        std::to_string(connection.buffer_bytes) + " of at most " + std::to_string(bytes_max));
  }
  return absl::OkStatus();
}

absl::Status HandoffServer::CreateBuffer(Connection& connection, uint64_t bytes,
                                         v1::HandoffReply* reply, UniqueFd* passed) {
  if (auto s = CheckRoom(connection, bytes); !s.ok()) return s;
  const uint64_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (auto s = CheckRoom(connection, rounded); !s.ok()) return s;
  auto memory = memory::SealedMemory::Create("kvstream-host-buffer", rounded, false);
  if (!memory.ok()) return memory.status();
  // The memory belongs to the engine in a moment; the reply needs a descriptor of its own.
  passed->Reset(fcntl((*memory)->fd(), F_DUPFD_CLOEXEC, 0));
  if (!passed->valid()) return ErrnoStatus(errno, "duplicate the descriptor of", "a host buffer");
  Hand(connection, *std::move(memory), reply);
  return absl::OkStatus();
}

absl::Status HandoffServer::AttachBuffer(Connection& connection, UniqueFd fd, uint64_t bytes,
                                         v1::HandoffReply* reply) {
  if (!fd.valid()) return InvalidField("attach_host_buffer", "no descriptor rides on the packet");
  auto memory = memory::SealedMemory::Attach(std::move(fd), bytes);
  if (!memory.ok()) return memory.status();
  if (auto s = CheckRoom(connection, (*memory)->size()); !s.ok()) return s;
  Hand(connection, *std::move(memory), reply);
  return absl::OkStatus();
}

absl::Status HandoffServer::AttachDeviceMemory(Connection& connection, UniqueFd fd,
                                               const v1::AttachDeviceMemory& request,
                                               v1::HandoffReply* reply) {
  if (!fd.valid()) return InvalidField("attach_device_memory", "no descriptor rides on the packet");
  if (request.allocation_bytes() == 0) return InvalidField("allocation_bytes", "missing");
  std::erase_if(connection.device_memory, [](const auto& memory) { return memory.expired(); });
  if (connection.device_memory.size() >= kDeviceMemoryMax) {
    return absl::ResourceExhaustedError("keep device memory: the session has " +
                                        std::to_string(kDeviceMemoryMax) + " already");
  }
  const uint64_t number = ++last_device_memory_;
  auto memory = std::make_shared<const gpu::HandoffMemory>(
      number, request.gpu_uuid(), request.allocation_bytes(), std::move(fd));
  connection.device_memory.push_back(memory);
  poster_.Post(engine::DeviceMemoryAttached{connection.session, number, std::move(memory)});
  reply->mutable_device_memory()->set_handoff_memory_id(number);
  return absl::OkStatus();
}

// The engine knows the buffer before the client knows its number.
void HandoffServer::Hand(Connection& connection, std::unique_ptr<memory::SealedMemory> memory,
                         v1::HandoffReply* reply) {
  const uint64_t buffer_id = ++connection.last_buffer_id;
  const uint64_t bytes = memory->size();
  connection.buffers[buffer_id] = bytes;
  connection.buffer_bytes += bytes;
  poster_.Post(engine::BufferAttached{connection.session, buffer_id, std::move(memory)});
  reply->mutable_host_buffer()->set_buffer_id(buffer_id);
  reply->mutable_host_buffer()->set_bytes(bytes);
}

bool HandoffServer::PostDrop(Connection& connection, uint64_t request_id, uint64_t buffer_id,
                             absl::Status* status) {
  if (connection.drops_pending >= kDropsPendingMax) {
    *status = absl::ResourceExhaustedError(
        "drop host buffer: " + std::to_string(connection.drops_pending) +
        " drops of the session are pending already");
    return false;
  }
  ++connection.drops_pending;
  poster_.Post(engine::DropBuffer{
      connection.session, buffer_id,
      [this, session = connection.session, request_id, buffer_id](absl::Status answer) {
        SendErrand(DropAnswered{session, request_id, buffer_id, std::move(answer)});
      }});
  return true;
}

void HandoffServer::OnDropAnswered(const DropAnswered& answer) {
  const auto found = connections_.find(answer.session);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  --connection.drops_pending;
  if (answer.status.ok()) {
    if (const auto dropped = connection.buffers.find(answer.buffer_id);
        dropped != connection.buffers.end()) {
      connection.buffer_bytes -= dropped->second;
      connection.buffers.erase(dropped);
    }
  }
  if (connection.gone) return;
  v1::HandoffReply reply;
  reply.set_request_id(answer.request_id);
  // A reply to request 0 that says OK and nothing else would be an empty packet: end of file.
  reply.mutable_host_buffer()->set_buffer_id(answer.buffer_id);
  Reply(connection, answer.status, std::move(reply), UniqueFd());
}

}  // namespace kvstream::rpc
