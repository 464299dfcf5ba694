// The ids of communicators, on their way from a group's first rank to the others.
#include <utility>

#include "common/status_macros.h"
#include "coordinator/coordinator.h"
#include "coordinator/mesh.h"
#include "coordinator/proto_time.h"

namespace tessera {

void CoordinatorCore::BeginRendezvousLocked(const JobEntry& job, int64_t generation) {
  const v1::Layout& layout = job.planned->planned().layout;
  std::vector<std::vector<int>> groups(layout.replica_count());
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    groups[rank / layout.shard_count()].push_back(rank);
  }
  // And one for each rank that others of equal local rank have to find.
  const Mesh mesh = MeshOf(layout);
  for (int rank = 0; mesh.Hosts() > 1 && rank < layout.world_size(); ++rank) {
    std::vector<int>& ranks = groups.emplace_back();
    for (int host = 0; host < mesh.Hosts(); ++host) {
      const int peer = (rank + host * mesh.local_world_size) % layout.world_size();
      ranks.push_back(peer);
    }
  }
  rendezvous_.Begin(job.lifecycle.proto().name(), generation, std::move(groups));
}

void CoordinatorCore::AnswerFetchesLocked() {
  for (Rendezvous::Answer& answer : rendezvous_.TakeAnswers()) {
    LaterLocked([answer = std::move(answer)] { answer.done(answer.ids); });
  }
}

absl::Status Coordinator::PublishCommunicatorIds(const v1::PublishCommunicatorIdsRequest& request) {
  {
    MutexLock lock(mutex_);
    TESSERA_RETURN_IF_ERROR(FindLocked(request.job()).status());
    TESSERA_RETURN_IF_ERROR(members_.CheckRank(request.job(), request.generation(), request.rank(),
                                               request.incarnation()));
    TESSERA_RETURN_IF_ERROR(rendezvous_.Publish(
        {request.job(), request.generation(), request.rank(), request.group()}, request.ids()));
    AnswerFetchesLocked();
  }
  Flush();
  return absl::OkStatus();
}

absl::Status Coordinator::FetchCommunicatorIds(const v1::FetchCommunicatorIdsRequest& request,
                                               Rendezvous::Done done) {
  {
    MutexLock lock(mutex_);
    TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(request.job()));
    TESSERA_RETURN_IF_ERROR(members_.CheckRank(request.job(), request.generation(), request.rank(),
                                               request.incarnation()));
    TESSERA_RETURN_IF_ERROR(rendezvous_.Fetch(
        {request.job(), request.generation(), request.rank(), request.group()}, members_.now(),
        ToDuration(job->spec->timeouts().collective()), std::move(done)));
    AnswerFetchesLocked();
  }
  Flush();
  return absl::OkStatus();
}

}  // namespace tessera
