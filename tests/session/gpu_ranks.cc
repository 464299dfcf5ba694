#include "tests/session/gpu_ranks.h"

#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/access_rules.h"
#include "worker/data_path.h"

namespace tessera {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

}  // namespace

RendezvousCluster::RendezvousCluster(int world_size) {
  server_ = *GrpcServer::Start({.rules = AccessRules()},
                               {{v1::MembershipService::service_full_name(), &membership_}});
  v1::CreateJobRequest request;
  v1::JobSpec& spec = *request.mutable_spec();
  spec.set_name("toy");
  spec.mutable_model()->set_layers(kToyBlocks);  // as many units as the toy has
  spec.mutable_mesh()->set_min_workers(world_size);
  spec.mutable_mesh()->set_max_workers(world_size);
  spec.set_global_batch(world_size);
  spec.mutable_timeouts()->mutable_lease()->set_seconds(100'000);
  spec.mutable_timeouts()->mutable_form()->set_seconds(100'000);
  coordinator_.CreateJob(request).value();
  v1::AttendRequest join;
  join.mutable_join_host()->set_host_name("node-a");
  join.mutable_join_host()->set_incarnation("agent");
  join.mutable_join_host()->set_local_workers(world_size);
  join.mutable_join_host()->set_job("toy");
  const auto formed = std::make_shared<std::promise<void>>();
  agent_ = AttendClient::Start({.coordinator = server_->address()}, join,
                               {.on_response =
                                    [formed](const v1::AttendResponse& response) {
                                      if (response.has_form_host()) formed->set_value();
                                    },
                                .on_done = [](const absl::Status&) {}});
  formed->get_future().wait_for(absl::ToChronoSeconds(kPatience));
}

void RendezvousCluster::Pass(absl::Duration time) {
  clock_.Advance(time);
  coordinator_.Tick();
}

std::jthread RendezvousCluster::Tick() {
  return std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      Pass(absl::Milliseconds(100));
      std::this_thread::yield();
    }
  });
}

absl::Status RendezvousCluster::JoinRank(int rank, SessionParts& parts) {
  parts.incarnation = absl::StrCat("incarnation ", rank);
  parts.membership = CreateMembershipClient(server_->address());
  v1::JoinRank join;
  join.set_job("toy");
  join.set_generation(1);
  join.set_rank(rank);
  join.set_incarnation(parts.incarnation);
  Collectives* const collectives = parts.collectives.get();
  return parts.membership->JoinRank(join, kPatience, [collectives](const absl::Status& status) {
    collectives->Interrupt(status);
  });
}

absl::StatusOr<std::unique_ptr<GpuRanks>> GpuRanks::Create(const CudaApi* api, int world_size,
                                                           const v1::JobSpec& job) {
  std::unique_ptr<GpuRanks> gpus(new GpuRanks(api, world_size));
  ThreadRanks::Options options;
  options.prepare = [gpus = gpus.get()](int rank, absl::Span<char> rank_file, SessionParts& parts) {
    return gpus->Prepare(rank, rank_file, parts);
  };
  TESSERA_ASSIGN_OR_RETURN(gpus->ranks_, ThreadRanks::Create(job, world_size, std::move(options)));
  return gpus;
}

absl::Status GpuRanks::Prepare(int rank, absl::Span<char> rank_file, SessionParts& parts) {
  TESSERA_RETURN_IF_ERROR(cluster_.JoinRank(rank, parts));
  TESSERA_RETURN_IF_ERROR(TakeGpu(api_, rank, rank_file, parts));
  return parts.membership->AwaitStart(0, 0, kPatience);
}

}  // namespace tessera
