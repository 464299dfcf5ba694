// Gathers what is to be kept and writes it, one change at a time, from whichever thread asks.
//
//   StateWriter writer(&store);                 or nullptr: nothing is kept, all is well
//   writer.Add(change);                         under the coordinator's lock; does not wait
//   writer.TryWrite(clock.Now());               before anybody is told
//   TESSERA_RETURN_IF_ERROR(writer.Write());    before it is acknowledged
//
// What cannot be written stays, merged, and goes with the next attempt: a job costs one record of
// memory however long the disk stays full. The first failure and the end of it are logged.
//
// Thread-safe. Add never waits for the disk.
#ifndef TESSERA_COORDINATOR_STATE_WRITER_H_
#define TESSERA_COORDINATOR_STATE_WRITER_H_

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "coordinator/state_store.h"

namespace tessera {

class StateWriter {
 public:
  // After a failure, TryWrite leaves the disk alone for so long.
  static constexpr absl::Duration kPause = absl::Seconds(1);

  explicit StateWriter(StateStore* store) : store_(store) {}

  // Whether anything is kept.
  bool keeps() const { return store_ != nullptr; }

  void Add(StateChange change);
  // All that was added before. OK: it is in the store. Errors: as StateStore::Commit.
  absl::Status Write() { return WriteWith({}); }
  // The same and `change`, which on an error is as if it had never been.
  absl::Status WriteWith(const StateChange& change);
  // As Write, also in that it waits for another thread's, but not soon after a failure. `now` is of
  // any steady clock, always the same.
  void TryWrite(absl::Time now);

 private:
  void Tell(const absl::Status& before, const absl::Status& now) const;

  StateStore* const store_;
  Mutex mutex_;
  CondVar changed_;
  StateChange pending_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status last_ ABSL_GUARDED_BY(mutex_);  // of the last attempt
  absl::Time retry_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_STATE_WRITER_H_
