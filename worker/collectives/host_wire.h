// HostWire: messages between a rank and its counterpart on one other host. What HostLinks
// (host_links.h) stand on; host_links_gloo.cc makes them.
//
// Both ends start the same messages in the same order, each the other's send as its receive and of
// the same length.
//
// Thread-safety: one thread starts and waits; Transfer::Cancel and Close may be called from any.
#ifndef TESSERA_WORKER_COLLECTIVES_HOST_WIRE_H_
#define TESSERA_WORKER_COLLECTIVES_HOST_WIRE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker/collectives/host_links.h"

namespace tessera {

class HostWire {
 public:
  // A message on its way. Its bytes outlive it, and are touched no more once it is gone.
  class Transfer {
   public:
    virtual ~Transfer() = default;
    // DEADLINE_EXCEEDED after `timeout`: the wire is then of no use any more. UNAVAILABLE: it
    // broke. CANCELLED: Cancel was called, now or before.
    virtual absl::Status Wait(absl::Duration timeout) = 0;
    virtual void Cancel() = 0;
  };

  virtual ~HostWire() = default;

  // UNAVAILABLE: the wire is broken.
  virtual absl::StatusOr<std::unique_ptr<Transfer>> Send(absl::Span<const char> bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Transfer>> Receive(absl::Span<char> bytes) = 0;
};

// INVALID_ARGUMENT: the options make no sense.
absl::Status CheckLinkOptions(const HostLinks::Options& options);

// Links over `wires`, one for each host in order; null for this one. `options` are valid.
std::unique_ptr<HostLinks> MakeHostLinks(HostLinks::Options options,
                                         std::vector<std::unique_ptr<HostWire>> wires);

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_HOST_WIRE_H_
