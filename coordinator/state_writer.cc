#include "coordinator/state_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/logging.h"

namespace tessera {

void StateWriter::Add(StateChange change) {
  if (store_ == nullptr) return;
  MutexLock lock(mutex_);
  MergeChange(std::move(change), &pending_);
}

absl::Status StateWriter::WriteWith(const StateChange& change) {
  if (store_ == nullptr) return absl::OkStatus();
  StateChange taken;
  {
    MutexLock lock(mutex_);
    while (writing_) changed_.Wait(lock);
    if (pending_.empty() && change.empty()) return absl::OkStatus();
    taken = std::exchange(pending_, {});
    writing_ = true;
  }
  absl::Status status;
  if (change.empty()) {
    status = store_->Commit(taken);
  } else {
    StateChange both = taken;
    MergeChange(change, &both);
    status = store_->Commit(both);
  }
  absl::Status before;
  {
    MutexLock lock(mutex_);
    if (!status.ok()) {
      MergeChange(std::move(pending_), &taken);
      pending_ = std::move(taken);
    }
    before = std::exchange(last_, status);
    writing_ = false;
    changed_.NotifyAll();
  }
  Tell(before, status);
  return status;
}

void StateWriter::TryWrite(absl::Time now) {
  if (store_ == nullptr) return;
  {
    MutexLock lock(mutex_);
    if (!writing_ && (pending_.empty() || (!last_.ok() && now < retry_at_))) return;
    retry_at_ = now + kPause;
  }
  Write().IgnoreError();  // it is tried again
}

void StateWriter::Tell(const absl::Status& before, const absl::Status& now) const {
  if (!now.ok() && before.code() != now.code()) {
    LogError(absl::StrCat("the state cannot be kept: ", now.message(),
                          "; jobs run on, new ones are refused, and it is tried again"));
  } else if (now.ok() && !before.ok()) {
    LogInfo("the state is kept again");
  }
}

}  // namespace tessera
