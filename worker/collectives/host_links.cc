// The order of operations and the sums; the bytes go over wires (host_wire.h).
//
// A sum is cut into pieces, a piece into one part for each host. Every host sends part h of its
// piece to host h, which adds them in host order and sends the result to all: what a ring would
// send, and one place where each element is added.
#include "worker/collectives/host_links.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/host_staging.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "worker/collectives/host_messages.h"
#include "worker/collectives/host_wire.h"

namespace tessera {
namespace {

enum class Kind : uint32_t { kSumFloat32 = 1, kSumFloat64 = 2, kGather = 3 };

constexpr int64_t kLineBytes = 64;

// How each host says what it has started. The gather's payload follows.
struct Hello {
  uint64_t number;
  Kind kind;
  uint32_t payload_bytes;
  int64_t numel;
  char what[104];
};

struct Operation {
  HostLinks::Ticket ticket = 0;
  Kind kind = Kind::kGather;
  void* values = nullptr;
  int64_t numel = 0;
  std::string payload;
  std::string what;
};

// Part `host` of `hosts` of a run of `numel` elements.
struct Part {
  int64_t begin = 0;
  int64_t numel = 0;
};
Part PartOf(int64_t numel, int64_t host, int64_t hosts) {
  const int64_t each = numel / hosts;
  const int64_t longer = numel % hosts;
  return {host * each + std::min(host, longer), each + (host < longer ? 1 : 0)};
}

template <typename T>
void Add(const T* in, int64_t numel, T* to) {
  for (int64_t i = 0; i < numel; ++i) to[i] += in[i];
}

std::string Describe(const Hello& hello) {
  const std::string what(hello.what, strnlen(hello.what, sizeof(hello.what)));
  if (hello.kind == Kind::kGather) return what;
  return absl::StrCat(what, " of ", hello.numel, " elements");
}

class QueuedHostLinks final : public HostLinks {
 public:
  QueuedHostLinks(Options options, std::vector<std::unique_ptr<HostWire>> wires)
      : options_(std::move(options)),
        messages_(options_, std::move(wires)),
        thread_([this] { Run(); }) {
    pthread_setname_np(thread_.native_handle(), "host-links");
  }

  ~QueuedHostLinks() override {
    Abort(absl::CancelledError("the links are gone"));
    thread_.join();
  }

  int hosts() const override { return static_cast<int>(options_.host_names.size()); }
  int host() const override { return options_.host; }

  Ticket StartSum(absl::Span<float> values, absl::string_view what) override {
    return StartSum(Kind::kSumFloat32, values.data(), values.size(), what);
  }
  Ticket StartSum(absl::Span<double> values, absl::string_view what) override {
    return StartSum(Kind::kSumFloat64, values.data(), values.size(), what);
  }
  Ticket StartGather(std::string payload, absl::string_view what) override {
    payload.resize(std::min<size_t>(payload.size(), options_.gather_bytes));
    return Start({.kind = Kind::kGather, .payload = std::move(payload), .what = std::string(what)});
  }

  absl::StatusOr<bool> Done(Ticket ticket) override {
    if (passed_.load(std::memory_order_acquire) >= ticket) return true;
    TESSERA_RETURN_IF_ERROR(Check());
    return false;
  }

  std::vector<std::string> TakeGathered(Ticket ticket) override {
    MutexLock lock(mutex_);
    const auto found = gathered_.find(ticket);
    if (found == gathered_.end()) return {};
    std::vector<std::string> payloads = std::move(found->second);
    gathered_.erase(found);
    return payloads;
  }

  absl::Status Check() override {
    if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
    MutexLock lock(mutex_);
    return failure_;
  }

  void SetOnProgress(std::function<void()> on_progress) override {
    MutexLock lock(mutex_);
    on_progress_ = std::move(on_progress);
  }

  void Abort(const absl::Status& status) override {
    {
      MutexLock lock(mutex_);
      FailLocked(status);
      changed_.NotifyAll();
    }
    if (!status.ok()) messages_.Cancel(status);
  }

 private:
  using Batch = HostMessages::Batch;

  Ticket StartSum(Kind kind, void* values, size_t numel, absl::string_view what) {
    Operation sum;
    sum.kind = kind;
    sum.values = values;
    sum.numel = static_cast<int64_t>(numel);
    sum.what = std::string(what);
    return Start(std::move(sum));
  }

  Ticket Start(Operation operation) {
    MutexLock lock(mutex_);
    operation.ticket = ++started_;
    queue_.push_back(std::move(operation));
    changed_.NotifyAll();
    return started_;
  }

  void FailLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!failure_.ok() || status.ok()) return;
    failure_ = status;
    failed_.store(true, std::memory_order_release);
  }

  std::optional<Operation> Next() {
    MutexLock lock(mutex_);
    while (failure_.ok() && queue_.empty()) changed_.Wait(lock);
    if (!failure_.ok()) return std::nullopt;
    Operation next = std::move(queue_.front());
    queue_.pop_front();
    return next;
  }

  void Run() {
    while (std::optional<Operation> operation = Next()) {
      messages_.Begin(operation->what);
      const absl::Status status = Do(*operation);
      std::function<void()> on_progress;
      {
        MutexLock lock(mutex_);
        FailLocked(status);
        on_progress = on_progress_;
      }
      if (status.ok()) passed_.store(operation->ticket, std::memory_order_release);
      if (on_progress) on_progress();
    }
    // Which the other hosts see.
    messages_.Close();
  }

  absl::Status Do(const Operation& operation) {
    TESSERA_RETURN_IF_ERROR(Meet(operation));
    switch (operation.kind) {
      case Kind::kSumFloat32:
        return Sum<float>(operation);
      case Kind::kSumFloat64:
        return Sum<double>(operation);
      case Kind::kGather:
        break;
    }
    return absl::OkStatus();
  }

  // Every host says what it does, and hears the same of all others.
  absl::Status Meet(const Operation& operation) {
    Hello own = {};
    own.number = static_cast<uint64_t>(operation.ticket);
    own.kind = operation.kind;
    own.payload_bytes = static_cast<uint32_t>(operation.payload.size());
    own.numel = operation.numel;
    std::memcpy(own.what, operation.what.data(),
                std::min(operation.what.size(), sizeof(own.what) - 1));
    const size_t bytes = sizeof(Hello) + options_.gather_bytes;
    std::vector<std::string> messages(hosts(), std::string(bytes, '\0'));
    std::string& sent = messages[host()];
    std::memcpy(sent.data(), &own, sizeof(own));
    std::memcpy(sent.data() + sizeof(own), operation.payload.data(), operation.payload.size());

    Batch batch;
    for (int other = 0; other < hosts(); ++other) {
      if (other == host()) continue;
      TESSERA_RETURN_IF_ERROR(messages_.Receive(other, absl::MakeSpan(messages[other]), batch));
      TESSERA_RETURN_IF_ERROR(messages_.Send(other, sent, batch));
    }
    TESSERA_RETURN_IF_ERROR(messages_.Finish(batch));

    std::vector<std::string> payloads;
    for (int other = 0; other < hosts(); ++other) {
      Hello hello;
      std::memcpy(&hello, messages[other].data(), sizeof(hello));
      TESSERA_RETURN_IF_ERROR(CheckAgreement(other, hello, own));
      payloads.push_back(messages[other].substr(sizeof(hello), hello.payload_bytes));
    }
    if (operation.kind != Kind::kGather) return absl::OkStatus();
    MutexLock lock(mutex_);
    gathered_[operation.ticket] = std::move(payloads);
    return absl::OkStatus();
  }

  absl::Status CheckAgreement(int other, const Hello& hello, const Hello& own) const {
    if (hello.number == own.number && hello.kind == own.kind && hello.numel == own.numel &&
        (own.kind == Kind::kGather || std::memcmp(hello.what, own.what, sizeof(own.what)) == 0) &&
        hello.payload_bytes <= options_.gather_bytes) {
      return absl::OkStatus();
    }
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "hosts disagree on operation ", own.number, " between them: rank ",
                          options_.ranks[other], " on host ", options_.host_names[other],
                          " started ", Describe(hello), ", rank ", options_.ranks[host()],
                          " on host ", options_.host_names[host()], " ", Describe(own))),
                      "ORDER_MISMATCH");
  }

  // The sum of one type, piece by piece: while a piece's sums are on their way the next piece's
  // parts are, too.
  template <typename T>
  absl::Status Sum(const Operation& operation) {
    T* values = static_cast<T*>(operation.values);
    const int64_t others = hosts() - 1;
    const int64_t lines = kHostPieceBytes / others / kLineBytes;
    const int64_t part_numel = lines * kLineBytes / static_cast<int64_t>(sizeof(T));
    const int64_t piece_numel = part_numel * hosts();
    const auto piece = [&](int64_t begin) {
      return absl::MakeSpan(values + begin, std::min(piece_numel, operation.numel - begin));
    };
    // Of the piece that begins there: where each other host's part arrives.
    const auto arrivals = [&](int64_t begin) {
      return reinterpret_cast<T*>(options_.staging.data() +
                                  begin / piece_numel % 2 * kHostPieceBytes);
    };
    if (operation.numel == 0) return absl::OkStatus();
    Batch parts, sums;
    TESSERA_RETURN_IF_ERROR(StartParts<T>(piece(0), arrivals(0), part_numel, parts));
    for (int64_t begin = 0; begin < operation.numel; begin += piece_numel) {
      TESSERA_RETURN_IF_ERROR(messages_.Finish(parts));
      AddParts<T>(piece(begin), arrivals(begin), part_numel);
      if (const int64_t next = begin + piece_numel; next < operation.numel) {
        TESSERA_RETURN_IF_ERROR(StartParts<T>(piece(next), arrivals(next), part_numel, parts));
      }
      TESSERA_RETURN_IF_ERROR(messages_.Finish(sums));
      TESSERA_RETURN_IF_ERROR(StartSums<T>(piece(begin), sums));
    }
    return messages_.Finish(sums);
  }

  template <typename T>
  static absl::Span<char> BytesOf(T* values, int64_t numel) {
    return absl::MakeSpan(reinterpret_cast<char*>(values), numel * sizeof(T));
  }

  // Each host's part to that host, and this host's from all.
  template <typename T>
  absl::Status StartParts(absl::Span<T> piece, T* arrivals, int64_t part_numel, Batch& batch) {
    const int64_t numel = static_cast<int64_t>(piece.size());
    const Part own = PartOf(numel, host(), hosts());
    for (int other = 0, place = 0; other < hosts(); ++other) {
      if (other == host()) continue;
      const Part part = PartOf(numel, other, hosts());
      TESSERA_RETURN_IF_ERROR(
          messages_.Receive(other, BytesOf(arrivals + place++ * part_numel, own.numel), batch));
      TESSERA_RETURN_IF_ERROR(
          messages_.Send(other, BytesOf(piece.data() + part.begin, part.numel), batch));
    }
    return absl::OkStatus();
  }

  // In host order, whichever host this is.
  template <typename T>
  void AddParts(absl::Span<T> piece, T* arrivals, int64_t part_numel) const {
    const Part own = PartOf(static_cast<int64_t>(piece.size()), host(), hosts());
    T* const mine = piece.data() + own.begin;
    T* const sum = host() == 0 ? mine : arrivals;
    for (int other = 1, place = host() == 0 ? 0 : 1; other < hosts(); ++other) {
      Add(other == host() ? mine : arrivals + place++ * part_numel, own.numel, sum);
    }
    if (sum != mine) std::copy_n(sum, own.numel, mine);
  }

  // This host's sums to all, and theirs from each.
  template <typename T>
  absl::Status StartSums(absl::Span<T> piece, Batch& batch) {
    const int64_t numel = static_cast<int64_t>(piece.size());
    const Part own = PartOf(numel, host(), hosts());
    for (int other = 0; other < hosts(); ++other) {
      if (other == host()) continue;
      const Part part = PartOf(numel, other, hosts());
      TESSERA_RETURN_IF_ERROR(
          messages_.Receive(other, BytesOf(piece.data() + part.begin, part.numel), batch));
      TESSERA_RETURN_IF_ERROR(
          messages_.Send(other, BytesOf(piece.data() + own.begin, own.numel), batch));
    }
    return absl::OkStatus();
  }

  const Options options_;
  HostMessages messages_;  // the thread's, but for Cancel
  std::atomic<Ticket> passed_{0};
  std::atomic<bool> failed_{false};

  Mutex mutex_;
  CondVar changed_;
  Ticket started_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Operation> queue_ ABSL_GUARDED_BY(mutex_);
  std::map<Ticket, std::vector<std::string>> gathered_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_progress_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);

  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace

int64_t HostLinks::StagingBytes(int64_t hosts) { return HostLinkStagingBytes(hosts); }

absl::Status CheckLinkOptions(const HostLinks::Options& options) {
  const int64_t hosts = static_cast<int64_t>(options.host_names.size());
  if (hosts < 2 || options.ranks.size() != options.host_names.size() || options.host < 0 ||
      options.host >= hosts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "links of host ", options.host, " between ", hosts, " hosts and ", options.ranks.size(),
        " ranks; there must be two or more, this host among them, with a rank each"));
  }
  if (static_cast<int64_t>(options.staging.size()) < HostLinks::StagingBytes(hosts)) {
    return absl::InvalidArgumentError(absl::StrCat("links with ", options.staging.size(),
                                                   " bytes of staging need ",
                                                   HostLinks::StagingBytes(hosts)));
  }
  if (options.gather_bytes < 0 || options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("links with a negative length or no time to wait");
  }
  return absl::OkStatus();
}

std::unique_ptr<HostLinks> MakeHostLinks(HostLinks::Options options,
                                         std::vector<std::unique_ptr<HostWire>> wires) {
  return std::make_unique<QueuedHostLinks>(std::move(options), std::move(wires));
}

}  // namespace tessera
