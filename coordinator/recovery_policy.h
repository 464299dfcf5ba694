// What follows when a generation is lost: whether the job goes on, how soon, and on which hosts
// with how many ranks.
//
//   if (auto why = WhyNotRecoverable(resolved, built, job, blame)) ...   the job fails with *why
//   BackOff back_off;
//   const absl::Duration wait = back_off.Lost(job.step());        none, the first time
//   const HostChoice choice = ChooseHosts(resolved, 4, slots, spares, Patience::kWait);
//
// A job recovers from losses (a process, a host, a connection) and from ranks that are stuck; an
// error that a rank itself reports would come again and fails it. So does a loss before the first
// step. A job whose ranks build its model does not recover (a limit).
//
// Pure; times are the caller's.
#ifndef TESSERA_COORDINATOR_RECOVERY_POLICY_H_
#define TESSERA_COORDINATOR_RECOVERY_POLICY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/job.h"
#include "coordinator/membership.h"
#include "tessera/v1/job.pb.h"

namespace tessera {

// Nothing: the job goes on. Else what it fails with, for `blame`. built: its ranks built its model.
std::optional<Blame> WhyNotRecoverable(const v1::JobSpec& resolved, bool built, const v1::Job& job,
                                       const Blame& blame);

// How long a job waits before it forms again: not at all, but where no step was committed since the
// loss before, 0.5 s, 1, 2, 4 and then 8 s.
class BackOff {
 public:
  // A generation was lost; so many steps are known to be committed.
  absl::Duration Lost(int64_t step);
  // A generation begins where so many steps are committed.
  void Began(int64_t step);

 private:
  int64_t step_ = -1;  // at the last loss or beginning
  int fruitless_ = 0;  // losses since a step was committed
};

struct HostOffer {
  MemberId id = 0;  // 0: the host is lost
  int local_workers = 0;
};

enum class Patience {
  kWait,  // only a choice with as many ranks as before
  kBest,  // the time for that is over: as many ranks as the hosts allow
};

struct HostChoice {
  std::vector<MemberId> hosts;  // by index; none: there is no choice (yet)
  int world_size = 0;
  bool same_hosts = false;  // all those that the job had, each at its index
};

// The hosts of a job's next generation. `slots`: the hosts that it has, by index; `spares`: others
// that it may take, the best first. A host that is left keeps its index, and with it its ranks,
// unless the job shrinks.
HostChoice ChooseHosts(const v1::JobSpec& resolved, int world_size,
                       const std::vector<HostOffer>& slots, const std::vector<HostOffer>& spares,
                       Patience patience);

// Whether a job that runs on `hosts` hosts with `world_size` ranks could use another host at once
// or, with more of them, later. A job on one host cannot.
bool CanGrow(const v1::JobSpec& resolved, int hosts, int world_size);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_RECOVERY_POLICY_H_
