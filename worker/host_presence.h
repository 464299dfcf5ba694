// What an agent says of its host when it opens a stream: which job it serves, whose processes live,
// and how the others ended.
//
//   HostPresence presence(join_host);
//   presence.Serves(form);                  it was told what to start
//   presence.Ended(exited);                 one of its processes ended
//   attendance: .opening = [&](bool again) { return presence.Opening(again); }
//
// Thread-safe.
#ifndef TESSERA_WORKER_HOST_PRESENCE_H_
#define TESSERA_WORKER_HOST_PRESENCE_H_

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera {

class HostPresence {
 public:
  explicit HostPresence(v1::JoinHost join) : join_(std::move(join)) {}

  // From now on: all ranks of `form` live.
  void Serves(const v1::FormHost& form) {
    MutexLock lock(mutex_);
    serving_job_ = form.job();
    generation_ = form.generation();
    living_.clear();
    ended_.clear();
    for (const v1::Assignment& assignment : form.assignments()) living_.insert(assignment.rank());
  }

  void Ended(const v1::WorkerExited& exited) {
    MutexLock lock(mutex_);
    living_.erase(exited.rank());
    ended_[exited.rank()] = exited;
  }

  // The join and then, on a stream that is not the first, who has ended.
  std::vector<v1::AttendRequest> Opening(bool again) const {
    MutexLock lock(mutex_);
    std::vector<v1::AttendRequest> opening(1);
    v1::JoinHost& join = *opening[0].mutable_join_host();
    join = join_;
    if (!again || serving_job_.empty()) return opening;
    join.set_serving_job(serving_job_);
    join.set_generation(generation_);
    join.mutable_living_ranks()->Add(living_.begin(), living_.end());
    for (const auto& [rank, exited] : ended_)
      *opening.emplace_back().mutable_worker_exited() = exited;
    return opening;
  }

 private:
  const v1::JoinHost join_;
  mutable Mutex mutex_;
  std::string serving_job_ ABSL_GUARDED_BY(mutex_);
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<int> living_ ABSL_GUARDED_BY(mutex_);
  std::map<int, v1::WorkerExited> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_HOST_PRESENCE_H_
