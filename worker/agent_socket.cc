#include "worker/agent_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

constexpr int kMaxDescriptors = 253;  // SCM_MAX_FD
constexpr uint32_t kMaxMessageBytes = 256u << 20;
constexpr size_t kLengthBytes = 4;

absl::Status AgentIsDead() { return absl::UnavailableError("this host's agent is dead"); }

void StoreLittleEndian(uint32_t value, char* out) {
  for (size_t i = 0; i < kLengthBytes; ++i) out[i] = static_cast<char>(value >> (8 * i));
}

uint32_t LoadLittleEndian(const char* in) {
  uint32_t value = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    value |= static_cast<uint32_t>(static_cast<unsigned char>(in[i])) << (8 * i);
  }
  return value;
}

// Reads from a socket until a deadline and keeps the descriptors that come along.
class Receiver {
 public:
  Receiver(int socket, absl::Time deadline) : socket_(socket), deadline_(deadline) {}

  absl::Status Read(char* out, size_t bytes) {
    while (bytes > 0) {
      TESSERA_RETURN_IF_ERROR(AwaitReadable());
      TESSERA_ASSIGN_OR_RETURN(const size_t read, ReadSome(out, bytes));
      out += read;
      bytes -= read;
    }
    return absl::OkStatus();
  }

  std::vector<UniqueFd> TakeDescriptors() { return std::move(descriptors_); }

 private:
  absl::Status AwaitReadable() {
    for (;;) {
      const absl::Duration left = deadline_ - Clock::Real()->Now();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            "this host's agent did not hand out a rank in time; see its log");
      }
      pollfd readable = {socket_, POLLIN, 0};
      const int ready = poll(&readable, 1, PollTimeout(left));
      if (ready > 0) return absl::OkStatus();
      if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "agent's socket: poll");
    }
  }

  // 0: nothing was there after all.
  absl::StatusOr<size_t> ReadSome(char* out, size_t bytes) {
    alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
    iovec buffer = {out, bytes};
    msghdr message = {};
    message.msg_iov = &buffer;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t read = recvmsg(socket_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (read < 0) {
      if (errno == EAGAIN || errno == EINTR) return 0;
      if (errno == ECONNRESET) return AgentIsDead();
      return absl::ErrnoToStatus(errno, "agent's socket: recvmsg");
    }
    KeepDescriptors(message);
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      return absl::ResourceExhaustedError(
          "the agent's descriptors did not all arrive; raise the limit of open files (ulimit -n)");
    }
    if (read == 0) return AgentIsDead();
    return static_cast<size_t>(read);
  }

  void KeepDescriptors(msghdr& message) {
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
         part = CMSG_NXTHDR(&message, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd = -1;
        memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
        descriptors_.emplace_back(fd);
      }
    }
  }

  const int socket_;
  const absl::Time deadline_;
  std::vector<UniqueFd> descriptors_;
};

// One message, its descriptors all in `files`.
absl::StatusOr<AgentHandoff> ReceiveMessage(int socket, absl::Duration timeout) {
  Receiver receiver(socket, Clock::Real()->Now() + timeout);
  char length_bytes[kLengthBytes];
  TESSERA_RETURN_IF_ERROR(receiver.Read(length_bytes, sizeof(length_bytes)));
  const uint32_t length = LoadLittleEndian(length_bytes);
  if (length > kMaxMessageBytes) {
    return absl::InternalError(absl::StrCat("the agent announces a message of ", length,
                                            " bytes; is it of the same build as the worker?"));
  }
  std::string bytes(length, '\0');
  TESSERA_RETURN_IF_ERROR(receiver.Read(bytes.data(), bytes.size()));
  AgentHandoff handoff;
  if (!handoff.hello.ParseFromString(bytes)) {
    return absl::InternalError(
        "the agent's message is no AgentHello; is it of the same build as the worker?");
  }
  handoff.files = receiver.TakeDescriptors();
  return handoff;
}

// Tells the pidfds from the `files` files before them.
absl::Status SplitDescriptors(size_t files, AgentHandoff& handoff) {
  const size_t ranks = static_cast<size_t>(handoff.hello.assignment().local_world_size());
  if (handoff.files.size() != files + ranks) {
    return absl::InternalError(absl::StrCat("the agent sent ", handoff.files.size(),
                                            " descriptors for ", ranks,
                                            " ranks; is it of the same build as the worker?"));
  }
  for (size_t i = files; i < files + ranks; ++i)
    handoff.peer_pidfds.push_back(std::move(handoff.files[i]));
  handoff.files.resize(files);
  return absl::OkStatus();
}

}  // namespace

HandoffSender::HandoffSender(int socket, const v1::AgentHello& hello, std::vector<int> fds)
    : socket_(socket), fds_(std::move(fds)), bytes_(kLengthBytes, '\0') {
  hello.AppendToString(&bytes_);
  StoreLittleEndian(static_cast<uint32_t>(bytes_.size() - kLengthBytes), bytes_.data());
}

absl::StatusOr<bool> HandoffSender::Send() {
  while (sent_bytes_ < bytes_.size()) {
    iovec buffer = {bytes_.data() + sent_bytes_, bytes_.size() - sent_bytes_};
    msghdr message = {};
    message.msg_iov = &buffer;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
    if (sent_bytes_ == 0 && !fds_.empty()) {
      const size_t payload_bytes = fds_.size() * sizeof(int);
      if (fds_.size() > kMaxDescriptors) {
        return absl::InvalidArgumentError("more descriptors than one message can carry");
      }
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(payload_bytes);
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(payload_bytes);
      memcpy(CMSG_DATA(rights), fds_.data(), payload_bytes);
    }
    const ssize_t sent = sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      if (errno == EPIPE || errno == ECONNRESET) {
        return absl::UnavailableError("the worker ended before it took its rank");
      }
      return absl::ErrnoToStatus(errno, "worker's socket: sendmsg");
    }
    sent_bytes_ += static_cast<size_t>(sent);
  }
  return true;
}

absl::StatusOr<AgentHandoff> ReceiveHandoff(UniqueFd socket, absl::Duration timeout) {
  // Close-on-exec also checks that there is a descriptor at all.
  if (fcntl(socket.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return absl::FailedPreconditionError(
        "no agent started this process; run it with `tessera-worker -- PROGRAM`");
  }
  TESSERA_ASSIGN_OR_RETURN(AgentHandoff handoff, ReceiveMessage(socket.get(), timeout));
  TESSERA_RETURN_IF_ERROR(SplitDescriptors(handoff.hello.draft() ? 0 : kHandoffFiles, handoff));
  handoff.agent_socket = std::move(socket);
  return handoff;
}

absl::StatusOr<AgentHandoff> ReceiveFurtherHandoff(int socket, absl::Duration timeout) {
  TESSERA_ASSIGN_OR_RETURN(AgentHandoff handoff, ReceiveMessage(socket, timeout));
  if (!handoff.hello.recover()) {
    return absl::InternalError(
        "the agent gave this rank out again; is it of the same build as the worker?");
  }
  TESSERA_RETURN_IF_ERROR(SplitDescriptors(1, handoff));
  UniqueFd control = std::move(handoff.files[0]);
  handoff.files = std::vector<UniqueFd>(kHandoffFiles);
  handoff.files[static_cast<size_t>(HandoffFile::kControl)] = std::move(control);
  return handoff;
}

}  // namespace tessera
