// Wires over gloo's TCP transport: the only file that includes gloo, and lets none of its
// exceptions out.
//
// Each wire is a context of two ranks of its own, because a wait of gloo's that ends in vain closes
// all connections of its context.
#include <arpa/inet.h>
#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "worker/blame.h"
#include "worker/collectives/host_links.h"
#include "worker/collectives/host_wire.h"

namespace tessera {
namespace {

namespace tcp = ::gloo::transport::tcp;

// Calls gloo. UNAVAILABLE with what it says where it throws, without its file names.
absl::Status Try(absl::FunctionRef<void()> call) {
  try {
    call();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    absl::string_view message(error.what());
    if (const size_t end = message.find("] "); !message.empty() && message[0] == '[')
      message.remove_prefix(end == absl::string_view::npos ? 0 : end + 2);
    return absl::UnavailableError(message);
  }
}

// Gloo writes to sockets whose other end may be gone. A thread inherits the mask of the one that
// starts it.
class SigpipeBlock {
 public:
  SigpipeBlock() {
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~SigpipeBlock() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;

 private:
  sigset_t before_;
};

std::chrono::milliseconds Milliseconds(absl::Duration duration) {
  return std::max(std::chrono::milliseconds(1), absl::ToChronoMilliseconds(duration));
}

class GlooTransfer final : public HostWire::Transfer {
 public:
  GlooTransfer(std::unique_ptr<::gloo::transport::UnboundBuffer> buffer, bool receives)
      : buffer_(std::move(buffer)), receives_(receives) {}

  absl::Status Wait(absl::Duration timeout) override {
    const std::chrono::milliseconds limit = Milliseconds(timeout);
    const auto began = std::chrono::steady_clock::now();
    bool passed = false;
    absl::Status status = Try([&] {
      passed = receives_ ? buffer_->waitRecv(nullptr, limit) : buffer_->waitSend(nullptr, limit);
    });
    if (status.ok())
      return passed ? absl::OkStatus() : absl::CancelledError("the wait was cancelled");
    // Gloo says both in the same kind of exception.
    const bool in_time = std::chrono::steady_clock::now() - began < limit;
    return in_time ? status : absl::DeadlineExceededError(status.message());
  }

  void Cancel() override { receives_ ? buffer_->abortWaitRecv() : buffer_->abortWaitSend(); }

 private:
  const std::unique_ptr<::gloo::transport::UnboundBuffer> buffer_;
  const bool receives_;
};

// The end of lower host index is rank 0 of the two.
class GlooWire final : public HostWire {
 public:
  GlooWire(std::shared_ptr<::gloo::transport::Context> context, int peer)
      : context_(std::move(context)), peer_(peer) {}

  absl::StatusOr<std::unique_ptr<Transfer>> Send(absl::Span<const char> bytes) override {
    return Start(const_cast<char*>(bytes.data()), bytes.size(), /*receives=*/false, sent_++);
  }
  absl::StatusOr<std::unique_ptr<Transfer>> Receive(absl::Span<char> bytes) override {
    return Start(bytes.data(), bytes.size(), /*receives=*/true, received_++);
  }

  ::gloo::transport::Pair& pair() const { return *context_->getPair(peer_); }

 private:
  absl::StatusOr<std::unique_ptr<Transfer>> Start(char* data, size_t bytes, bool receives,
                                                  uint64_t number) {
    // What this side sends and receives has numbers of its own each.
    const uint64_t slot = number * 2 + (receives == (peer_ == 0) ? 0 : 1);
    const SigpipeBlock block;
    std::unique_ptr<::gloo::transport::UnboundBuffer> buffer;
    TESSERA_RETURN_IF_ERROR(Try([&] {
      buffer = context_->createUnboundBuffer(data, bytes);
      receives ? buffer->recv(peer_, slot, 0, bytes) : buffer->send(peer_, slot, 0, bytes);
    }));
    return std::make_unique<GlooTransfer>(std::move(buffer), receives);
  }

  const std::shared_ptr<::gloo::transport::Context> context_;
  const int peer_;
  uint64_t sent_ = 0, received_ = 0;
};

uint16_t* PortOf(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? &reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : &reinterpret_cast<sockaddr_in&>(address).sin_port;
}

std::string TextOf(sockaddr_storage address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bits = address.ss_family == AF_INET6
                         ? static_cast<void*>(&reinterpret_cast<sockaddr_in6&>(address).sin6_addr)
                         : &reinterpret_cast<sockaddr_in&>(address).sin_addr;
  inet_ntop(address.ss_family, bits, text, sizeof(text));
  return text;
}

// "10.0.0.1 40001 40002": one port for each other host, in order.
absl::StatusOr<std::vector<char>> AddressFor(const std::string& addresses, int place) {
  const std::vector<std::string> words = absl::StrSplit(addresses, ' ');
  sockaddr_storage address = {};
  int port = 0;
  if (place + 1 >= static_cast<int>(words.size()) || !absl::SimpleAtoi(words[place + 1], &port) ||
      port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", addresses, "\" are no addresses of links"));
  }
  if (inet_pton(AF_INET, words[0].c_str(), &reinterpret_cast<sockaddr_in&>(address).sin_addr) ==
      1) {
    address.ss_family = AF_INET;
  } else if (inet_pton(AF_INET6, words[0].c_str(),
                       &reinterpret_cast<sockaddr_in6&>(address).sin6_addr) == 1) {
    address.ss_family = AF_INET6;
  } else {
    return absl::InvalidArgumentError(absl::StrCat("\"", words[0], "\" is no address of links"));
  }
  *PortOf(address) = htons(static_cast<uint16_t>(port));
  return tcp::Address(address).bytes();
}

class GlooListener final : public GlooHostListener {
 public:
  explicit GlooListener(HostLinks::Options options) : options_(std::move(options)) {}

  const std::string& addresses() const override { return addresses_; }

  absl::Status Open() {
    const SigpipeBlock block;
    std::shared_ptr<::gloo::transport::Device> device;
    std::string host;
    std::vector<int> ports;
    absl::Status status = Try([&] {
      device = tcp::CreateDevice(tcp::attr(options_.address.c_str()));
      for (int other = 0; other < static_cast<int>(options_.ranks.size()); ++other) {
        wires_.push_back(nullptr);
        if (other == options_.host) continue;
        const int peer = other < options_.host ? 0 : 1;
        auto context = device->createContext(1 - peer, 2);
        // Gloo waits five times as long for a connection as it is told.
        context->setTimeout(Milliseconds(options_.timeout / 5));
        context->createPair(peer);
        wires_.back() = std::make_unique<GlooWire>(std::move(context), peer);
        sockaddr_storage address =
            tcp::Address(wires_.back()->pair().address().bytes()).getSockaddr();
        host = TextOf(address);
        ports.push_back(ntohs(*PortOf(address)));
      }
    });
    if (!status.ok()) {
      return absl::UnavailableError(
          absl::StrCat("host ", options_.host_names[options_.host], " cannot listen on ",
                       options_.address, " for the other hosts: ", status.message(),
                       "; give tessera-worker a --host_address of this host"));
    }
    addresses_ = absl::StrCat(host, " ", absl::StrJoin(ports, " "));
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<HostLinks>> Connect(const std::vector<std::string>& addresses) {
    if (addresses.size() != wires_.size())
      return absl::InvalidArgumentError("addresses of other hosts than there are");
    for (int other = 0; other < static_cast<int>(wires_.size()); ++other) {
      if (other == options_.host) continue;
      TESSERA_ASSIGN_OR_RETURN(
          const std::vector<char> address,
          AddressFor(addresses[other], other > options_.host ? options_.host : options_.host - 1));
      const absl::Status status = Try([&] { wires_[other]->pair().connect(address); });
      if (status.ok()) continue;
      return BlameRank(absl::UnavailableError(absl::StrCat(
                           "rank ", options_.ranks[options_.host], " has no connection to rank ",
                           options_.ranks[other], " on host ", options_.host_names[other], ": ",
                           status.message())),
                       options_.ranks[other]);
    }
    std::vector<std::unique_ptr<HostWire>> wires(wires_.size());
    std::move(wires_.begin(), wires_.end(), wires.begin());
    const SigpipeBlock block;  // for the links' thread
    return MakeHostLinks(std::move(options_), std::move(wires));
  }

 private:
  HostLinks::Options options_;
  std::vector<std::unique_ptr<GlooWire>> wires_;  // by host; null for this one
  std::string addresses_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GlooHostListener>> GlooHostListener::Listen(
    HostLinks::Options options) {
  TESSERA_RETURN_IF_ERROR(CheckLinkOptions(options));
  auto listener = std::make_unique<GlooListener>(std::move(options));
  TESSERA_RETURN_IF_ERROR(listener->Open());
  return listener;
}

absl::StatusOr<std::unique_ptr<HostLinks>> GlooHostListener::Connect(
    std::unique_ptr<GlooHostListener> listener, const std::vector<std::string>& addresses) {
  return static_cast<GlooListener&>(*listener).Connect(addresses);
}

}  // namespace tessera
