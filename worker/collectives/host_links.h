// HostLinks: how a rank talks to the ranks of equal local rank on the job's other hosts.
//
//   const HostLinks::Ticket sum = links->StartSum(absl::MakeSpan(partial_sum), "reduce of unit 3");
//   ...
//   TESSERA_ASSIGN_OR_RETURN(const bool done, links->Done(sum));  // never waits
//   if (done) ... partial_sum[i] is the sum over hosts, the same bits on every host ...
//
// A thread of the links' own does one operation after the other, in the order in which they were
// started; the rank goes on meanwhile. Every host's rank starts the same operations in the same
// order and of the same lengths. An operation that waits longer than `timeout` for another host
// ends with DEADLINE_EXCEEDED, which names every host that did not answer. The first error is the
// links' last word: every operation that has not passed ends with it, here at once and at the other
// hosts because the connections are closed.
//
// Errors: DEADLINE_EXCEEDED; UNAVAILABLE (the connection to a host broke or was closed; names the
// host); FAILED_PRECONDITION with ORDER_MISMATCH (a host started something else; names it and
// both); or what Abort gave. Where a host is to blame, so is its rank (worker/blame.h).
//
// What is sent is neither encrypted nor authenticated: hosts of a job trust their network.
//
// Thread-safety: one thread calls; Abort may be called from any.
#ifndef TESSERA_WORKER_COLLECTIVES_HOST_LINKS_H_
#define TESSERA_WORKER_COLLECTIVES_HOST_LINKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tessera {

class HostLinks {
 public:
  struct Options {
    // Names of the job's hosts, in order; at least two.
    std::vector<std::string> host_names;
    // Index of this rank's host.
    int host = 0;
    // World rank of this rank's counterpart on each host, in order; itself at `host`.
    std::vector<int> ranks;
    // The address, without a port, that the links listen on; the system chooses the ports.
    std::string address = "127.0.0.1";
    // The longest payload of a StartGather, the same on every host.
    int64_t gather_bytes = 0;
    // Where sums from other hosts arrive; outlives the links. See StagingBytes.
    absl::Span<char> staging;
    // The longest wait for another host.
    absl::Duration timeout = absl::Seconds(30);
  };
  // What Options.staging takes for a job of `hosts` hosts.
  static int64_t StagingBytes(int64_t hosts);

  using Ticket = int64_t;

  virtual ~HostLinks() = default;

  virtual int hosts() const = 0;
  virtual int host() const = 0;

  // values[i] = host 0's values[i] + host 1's values[i] + ..., added in this order, on every host.
  // `values` belong to the links until the ticket is done. `what` names the operation in errors
  // and must be the same on every host.
  virtual Ticket StartSum(absl::Span<float> values, absl::string_view what) = 0;
  virtual Ticket StartSum(absl::Span<double> values, absl::string_view what) = 0;

  // Gives every host every host's `payload`, in host order. `payload` is at most
  // Options.gather_bytes long, and `what` for this rank's errors alone.
  virtual Ticket StartGather(std::string payload, absl::string_view what) = 0;

  // Whether the operation has passed. Never waits. Errors: those of the links, which come once
  // something has failed, also for the operations that had not passed.
  virtual absl::StatusOr<bool> Done(Ticket ticket) = 0;
  // The payloads of a gather that is done. Once for each.
  virtual std::vector<std::string> TakeGathered(Ticket ticket) = 0;

  // What an operation would end with by now. OK: nothing has failed.
  virtual absl::Status Check() = 0;

  // Called by the links' thread whenever Done has something new to say. Set it before the first
  // operation; null: nobody. When this returns, no call of the last function runs any more.
  virtual void SetOnProgress(std::function<void()> on_progress) = 0;

  // This rank goes on no more: ends its own operations with `status`, and those of the other hosts
  // because the connections are closed. The first error counts.
  virtual void Abort(const absl::Status& status) = 0;
};

// Links over TCP, made in two steps: each host's rank listens, passes its addresses on, and
// connects once it has those of all others.
//
//   TESSERA_ASSIGN_OR_RETURN(auto listener, GlooHostListener::Listen(options));
//   ... publish listener->addresses(), fetch the others' ...
//   TESSERA_ASSIGN_OR_RETURN(auto links, GlooHostListener::Connect(std::move(listener), all));
class GlooHostListener {
 public:
  // INVALID_ARGUMENT: the options make no sense. UNAVAILABLE: nothing can listen on the address.
  static absl::StatusOr<std::unique_ptr<GlooHostListener>> Listen(HostLinks::Options options);
  virtual ~GlooHostListener() = default;

  // Where the links listen, opaque, for all other hosts together.
  virtual const std::string& addresses() const = 0;

  // `addresses` of every host, in host order. Waits until all are connected. DEADLINE_EXCEEDED,
  // UNAVAILABLE: names the host that is not. INVALID_ARGUMENT: what no listener made.
  static absl::StatusOr<std::unique_ptr<HostLinks>> Connect(
      std::unique_ptr<GlooHostListener> listener, const std::vector<std::string>& addresses);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_HOST_LINKS_H_
