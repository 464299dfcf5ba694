// HostMessages: what goes between a rank and its counterparts on all other hosts for one operation
// after the other, each within a deadline; and the words for what went wrong.
//
//   messages.Begin("reduce of unit h.0");
//   HostMessages::Batch batch;
//   TESSERA_RETURN_IF_ERROR(messages.Receive(1, arrivals, batch));
//   TESSERA_RETURN_IF_ERROR(messages.Send(1, part, batch));
//   TESSERA_RETURN_IF_ERROR(messages.Finish(batch));
//
// Thread-safety: one thread calls; Cancel may be called from any.
#ifndef TESSERA_WORKER_COLLECTIVES_HOST_MESSAGES_H_
#define TESSERA_WORKER_COLLECTIVES_HOST_MESSAGES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "worker/collectives/host_links.h"
#include "worker/collectives/host_wire.h"

namespace tessera {

class HostMessages {
 public:
  // Messages that are on their way together, each with the host at its other end.
  class Batch {
   private:
    friend class HostMessages;
    struct Entry {
      int host;
      std::unique_ptr<HostWire::Transfer> transfer;
    };
    std::vector<Entry> entries;
  };

  // `options` outlive this.
  HostMessages(const HostLinks::Options& options, std::vector<std::unique_ptr<HostWire>> wires)
      : options_(options), wires_(std::move(wires)) {}

  // The next operation: `what` names it in errors, and its time begins.
  void Begin(std::string what);

  // Adds a message to the batch; one of no bytes is none. UNAVAILABLE: the connection is gone.
  absl::Status Send(int other, absl::Span<const char> bytes, Batch& batch);
  absl::Status Receive(int other, absl::Span<char> bytes, Batch& batch);
  // Waits for all of the batch, which is then empty. DEADLINE_EXCEEDED: names the hosts whose
  // messages did not come, or were not taken. UNAVAILABLE. Or what Cancel gave.
  absl::Status Finish(Batch& batch);

  // Ends the waits of Finish, now and later, with `status`, which is no OK.
  void Cancel(const absl::Status& status);
  // Closes the connections.
  void Close() { wires_.clear(); }

 private:
  absl::Status WaitForAll(const Batch& batch) const;
  absl::Status Broken(int other, const absl::Status& status) const;
  absl::Status Late(const std::vector<int>& hosts) const;

  const HostLinks::Options& options_;
  std::vector<std::unique_ptr<HostWire>> wires_;
  std::string what_;
  absl::Time deadline_;

  Mutex mutex_;
  std::vector<HostWire::Transfer*> waited_for_ ABSL_GUARDED_BY(mutex_);
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_HOST_MESSAGES_H_
