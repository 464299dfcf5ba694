// Whole jobs on GPUs with ranks as threads: a coordinator over real gRPC that passes the
// communicators' ids on, and ThreadRanks whose data path is on GPUs. `api` is the real CUDA or the
// fake.
//
//   TESSERA_ASSIGN_OR_RETURN(auto gpus, GpuRanks::Create(api, 2, GpuJob("bfloat16", "float32")));
//   gpus->Run([&](Session& session) { ... GpuStep(*api, session) ...; return session.Finish(); });
#ifndef TESSERA_TESTS_SESSION_GPU_RANKS_H_
#define TESSERA_TESTS_SESSION_GPU_RANKS_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/grpc_server.h"
#include "common/simulated_clock.h"
#include "coordinator/coordinator.h"
#include "coordinator/membership_service.h"
#include "tests/fakes/thread_ranks.h"
#include "tests/session/gpu_steps.h"
#include "worker/attend_client.h"
#include "worker/device/cuda_api.h"

namespace tessera {

// A coordinator with a job "toy" of so many ranks, whose agent has joined. The job's own plan is of
// no interest: membership and rendezvous are.
class RendezvousCluster {
 public:
  explicit RendezvousCluster(int world_size);

  // Joins as `rank`, as Session::Join does.
  absl::Status JoinRank(int rank, SessionParts& parts);

  // So much time passes at once.
  void Pass(absl::Duration time);
  // Time passes, fast, as long as this lives.
  std::jthread Tick();

 private:
  SimulatedClock clock_;
  Coordinator coordinator_{{.clock = &clock_}};
  MembershipService membership_{&coordinator_};
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<AttendClient> agent_;
};

class GpuRanks {
 public:
  // Rank r is on GPU r.
  static absl::StatusOr<std::unique_ptr<GpuRanks>> Create(const CudaApi* api, int world_size,
                                                          const v1::JobSpec& job);

  // As ThreadRanks::Run. Every rank has allocated what it needs before any body begins.
  std::vector<absl::Status> Run(const std::function<absl::Status(Session&)>& body) {
    return ranks_->Run(body);
  }
  const JobPlan& plan() const { return ranks_->plan(); }

 private:
  GpuRanks(const CudaApi* api, int world_size) : api_(api), cluster_(world_size) {}
  absl::Status Prepare(int rank, absl::Span<char> rank_file, SessionParts& parts);

  const CudaApi* const api_;
  RendezvousCluster cluster_;
  std::unique_ptr<ThreadRanks> ranks_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_SESSION_GPU_RANKS_H_
