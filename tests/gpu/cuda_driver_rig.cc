// CUDA's rig: the worker is a process of its own, forked before this one has called CUDA, since a
// process cannot open its own memory and a fork does not survive CUDA.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "tests/gpu/device_pool.h"
#include "tests/gpu/driver_rig.h"

namespace kvstream::gpu {
namespace {

enum class Verb : uint32_t { kAllocate, kAllocateVmm, kWrite, kRead, kFree };

struct Request {
  Verb verb = Verb::kAllocate;
  uint64_t id = 0;
  uint64_t bytes = 0;
};

struct Reply {
  int error = 0;
  uint64_t bytes = 0;
  cudaIpcMemHandle_t handle{};
};

bool SendAll(int socket, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool ReceiveAll(int socket, void* data, size_t bytes) {
  return recv(socket, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
}

// A reply, and a descriptor unless it is -1.
bool SendReply(int socket, const Reply& reply, int fd) {
  iovec data{const_cast<Reply*>(&reply), sizeof(reply)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(reply));
}

// The worker's process.
class WorkerProcess {
 public:
  explicit WorkerProcess(int socket) : socket_(socket) {}

  void Serve() {
    Request request;
    while (ReceiveAll(socket_, &request, sizeof(request))) {
      if (!Answer(request)) return;
    }
  }

 private:
  bool Answer(const Request& request) {
    Reply reply;
    switch (request.verb) {
      case Verb::kAllocate:
      case Verb::kAllocateVmm:
        return Allocate(request);
      case Verb::kWrite: {
        std::vector<uint8_t> bytes(request.bytes);
        if (!ReceiveAll(socket_, bytes.data(), bytes.size())) return false;
        reply.error = pools_.at(request.id)->Upload(bytes).ok() ? 0 : 1;
        return SendReply(socket_, reply, -1);
      }
      case Verb::kRead: {
        std::vector<uint8_t> bytes(request.bytes);
        reply.error = pools_.at(request.id)->Download(&bytes).ok() ? 0 : 1;
        return SendReply(socket_, reply, -1) && SendAll(socket_, bytes.data(), bytes.size());
      }
      case Verb::kFree:
        pools_.erase(request.id);
        return SendReply(socket_, reply, -1);
    }
    return false;
  }

  bool Allocate(const Request& request) {
    Reply reply;
    const bool vmm = request.verb == Verb::kAllocateVmm;
    auto pool = DevicePool::Create(vmm ? PoolKind::kVmm : PoolKind::kMalloc, 0, request.bytes);
    if (!pool.ok()) {
      reply.error = 1;
      return SendReply(socket_, reply, -1);
    }
    reply.bytes = (*pool)->size();
    int fd = -1;
    if (vmm) {
      CUmemGenericAllocationHandle handle = 0;
      reply.error = Call<decltype(&cuMemRetainAllocationHandle)>("cuMemRetainAllocationHandle")(
          &handle, (*pool)->data());
      if (reply.error == 0) {
        reply.error = Call<decltype(&cuMemExportToShareableHandle)>("cuMemExportToShareableHandle")(
            &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        Call<decltype(&cuMemRelease)>("cuMemRelease")(handle);
      }
    } else {
      reply.error = cudaIpcGetMemHandle(&reply.handle, (*pool)->data());
    }
    pools_[request.id] = *std::move(pool);
    const bool sent = SendReply(socket_, reply, fd);
    if (fd >= 0) close(fd);
    return sent;
  }

  // A call of the driver's, which nothing links.
  template <typename Function>
  static Function Call(const char* name) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found{};
    (void)cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found);
    Function function = nullptr;
    std::memcpy(&function, &address, sizeof(address));
    return function;
  }

  const int socket_;
  std::map<uint64_t, std::unique_ptr<DevicePool>> pools_;
};

class CudaDriverRig final : public DriverRig {
 public:
  CudaDriverRig() {
    // One more than is killed.
    for (auto& worker : spare_) worker = Fork();
    driver_ = OpenDriver();
  }
  ~CudaDriverRig() override {
    Kill();
    for (Worker& worker : spare_) End(&worker);
  }

  Driver& driver() override { return *driver_; }

  absl::StatusOr<WorkerMemory> Allocate(MemoryKind kind, size_t device, uint64_t bytes) override {
    if (device != 0) return absl::UnimplementedError("the worker uses device 0");
    WorkerMemory memory{.id = ++last_, .bytes = 0};
    const bool vmm = kind == MemoryKind::kVmm;
    Reply reply;
    auto status =
        Ask({vmm ? Verb::kAllocateVmm : Verb::kAllocate, memory.id, bytes}, {}, &reply, &memory.fd);
    if (!status.ok()) return status;
    memory.bytes = reply.bytes;
    if (!vmm) {
      memory.handle.assign(reinterpret_cast<const char*>(&reply.handle), sizeof(reply.handle));
    }
    return memory;
  }

  absl::Status Write(const WorkerMemory& memory, std::span<const std::byte> bytes) override {
    return Ask({Verb::kWrite, memory.id, bytes.size()}, bytes, nullptr, nullptr);
  }

  absl::StatusOr<std::vector<std::byte>> Read(const WorkerMemory& memory) override {
    std::vector<std::byte> bytes(memory.bytes);
    if (auto s = Ask({Verb::kRead, memory.id, memory.bytes}, {}, nullptr, nullptr); !s.ok()) {
      return s;
    }
    if (!ReceiveAll(worker_.socket.get(), bytes.data(), bytes.size())) return Gone();
    return bytes;
  }

  absl::Status Free(const WorkerMemory& memory) override {
    if (memory.id <= killed_) return absl::OkStatus();
    return Ask({Verb::kFree, memory.id, 0}, {}, nullptr, nullptr);
  }

  void Kill() override {
    End(&worker_);
    killed_ = last_;
  }

 private:
  struct Worker {
    pid_t process = -1;
    UniqueFd socket;
  };

  static absl::Status Gone() { return absl::UnavailableError("the worker is gone"); }

  static Worker Fork() {
    int sockets[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return {};
    UniqueFd ours(sockets[0]);
    UniqueFd its(sockets[1]);
    const pid_t process = fork();
    if (process == 0) {
      ours.Reset();
      WorkerProcess(its.get()).Serve();
      _exit(0);
    }
    return {process, std::move(ours)};
  }

  static void End(Worker* worker) {
    if (worker->process <= 0) return;
    kill(worker->process, SIGKILL);
    waitpid(worker->process, nullptr, 0);
    *worker = Worker();
  }

  absl::Status Ask(const Request& request, std::span<const std::byte> payload, Reply* reply,
                   UniqueFd* fd) {
    if (worker_.process <= 0) worker_ = std::exchange(spare_[used_++ % kSpares], Worker());
    const int socket = worker_.socket.get();
    if (socket < 0 || !SendAll(socket, &request, sizeof(request)) ||
        !SendAll(socket, payload.data(), payload.size())) {
      return Gone();
    }
    Reply answer;
    iovec data{&answer, sizeof(answer)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    if (recvmsg(socket, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC) !=
        static_cast<ssize_t>(sizeof(answer))) {
      return Gone();
    }
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr && fd != nullptr) {
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(header), sizeof(passed));
      fd->Reset(passed);
    }
    if (reply != nullptr) *reply = answer;
    if (answer.error == 0) return absl::OkStatus();
    return absl::InternalError("the worker's CUDA error " + std::to_string(answer.error));
  }

  static constexpr size_t kSpares = 4;

  Worker worker_;
  Worker spare_[kSpares];
  size_t used_ = 0;
  std::unique_ptr<Driver> driver_;
  uint64_t last_ = 0;
  uint64_t killed_ = 0;
};

}  // namespace

std::unique_ptr<DriverRig> MakeDriverRig() { return std::make_unique<CudaDriverRig>(); }

}  // namespace kvstream::gpu
