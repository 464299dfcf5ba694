// A StateStore in memory that fails when it is told to, and whose machine can lose its power.
//
//   FakeStateStore store;
//   Coordinator first({.store = &store}), second({.store = &store});     one after the other
//   store.Fail(absl::ResourceExhaustedError("disk full"));  store.Fail(absl::OkStatus());
//   store.LosePower();       what was not durable is gone
//
// Thread-safe.
#ifndef TESSERA_COORDINATOR_FAKE_STATE_STORE_H_
#define TESSERA_COORDINATOR_FAKE_STATE_STORE_H_

#include <cstdint>
#include <deque>

#include "common/mutex.h"
#include "coordinator/state_store.h"

namespace tessera {

class FakeStateStore final : public StateStore {
 public:
  absl::StatusOr<StoredState> Load() override {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    StoredState state = durable_;
    for (const StateChange& change : recent_) ApplyChange(change, &state);
    return state;
  }

  absl::Status Commit(const StateChange& change) override {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    ++commits_;
    recent_.push_back(change);
    if (!change.durable) return absl::OkStatus();
    for (const StateChange& made : recent_) ApplyChange(made, &durable_);
    recent_.clear();
    return absl::OkStatus();
  }

  // What every call answers from now on, having done nothing; OK: it works again.
  void Fail(absl::Status failure) {
    MutexLock lock(mutex_);
    failure_ = std::move(failure);
  }
  void LosePower() {
    MutexLock lock(mutex_);
    recent_.clear();
  }
  int64_t commits() const {
    MutexLock lock(mutex_);
    return commits_;
  }

 private:
  mutable Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  StoredState durable_ ABSL_GUARDED_BY(mutex_);
  std::deque<StateChange> recent_ ABSL_GUARDED_BY(mutex_);  // not durable, oldest first
  int64_t commits_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_FAKE_STATE_STORE_H_
