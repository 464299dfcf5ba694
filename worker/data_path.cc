#include "worker/data_path.h"

#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "common/status_macros.h"
#include "worker/blame.h"
#include "worker/collectives/nccl_collectives.h"
#include "worker/device/cuda_device.h"

namespace tessera {
namespace {

// The coordinator ends a fetch at timeouts.collective and says who is missing; this leaves it time.
constexpr absl::Duration kAnswerTime = absl::Seconds(5);

// What NcclCollectives stand on.
struct Gpu {
  std::unique_ptr<RegisteredMemory> shards;
  std::unique_ptr<CudaStream> compute;
};

template <typename Request>
Request RequestOf(const SessionParts& parts) {
  Request request;
  request.set_job(parts.assignment.job());
  request.set_generation(parts.assignment.generation());
  request.set_rank(parts.assignment.rank());
  request.set_incarnation(parts.incarnation);
  request.set_group(parts.assignment.replica_index());
  return request;
}

absl::StatusOr<v1::CommunicatorIds> PublishIds(const CudaApi& api, int gpu, absl::Duration timeout,
                                               const SessionParts& parts) {
  auto request = RequestOf<v1::PublishCommunicatorIdsRequest>(parts);
  v1::CommunicatorIds& ids = *request.mutable_ids();
  TESSERA_ASSIGN_OR_RETURN(*ids.mutable_unshard_id(), NcclCollectives::NewId(api, gpu));
  TESSERA_ASSIGN_OR_RETURN(*ids.mutable_reduce_id(), NcclCollectives::NewId(api, gpu));
  TESSERA_RETURN_IF_ERROR(parts.membership->PublishCommunicatorIds(request, timeout));
  return ids;
}

absl::StatusOr<v1::CommunicatorIds> FetchIds(absl::Duration timeout, int publisher,
                                             const SessionParts& parts) {
  absl::StatusOr<v1::CommunicatorIds> ids = parts.membership->FetchCommunicatorIds(
      RequestOf<v1::FetchCommunicatorIdsRequest>(parts), timeout + kAnswerTime);
  if (absl::IsDeadlineExceeded(ids.status())) return BlameRank(ids.status(), publisher);
  return ids;
}

}  // namespace

absl::Status TakeGpu(const CudaApi* api, int gpu, absl::Span<char> rank_file, SessionParts& parts) {
  const google::protobuf::Duration& collective = parts.spec.timeouts().collective();
  NcclCollectives::Options options;
  options.wait.timeout =
      absl::Seconds(collective.seconds()) + absl::Nanoseconds(collective.nanos());
  options.group = parts.collectives->group();
  // First, since the others wait for it.
  TESSERA_ASSIGN_OR_RETURN(
      v1::CommunicatorIds ids,
      options.group.index == 0
          ? PublishIds(*api, gpu, options.wait.timeout, parts)
          : FetchIds(options.wait.timeout, options.group.ranks.front(), parts));
  options.unshard_id = std::move(*ids.mutable_unshard_id());
  options.reduce_id = std::move(*ids.mutable_reduce_id());

  auto keep = std::make_shared<Gpu>();
  TESSERA_ASSIGN_OR_RETURN(
      keep->shards,
      RegisteredMemory::Create(api, gpu, rank_file.data(), static_cast<int64_t>(rank_file.size())));
  TESSERA_ASSIGN_OR_RETURN(
      keep->compute,
      CudaStream::Create({.api = api, .device = gpu, .name = "compute", .wait = options.wait}));
  options.api = api;
  options.device = gpu;
  options.layout = parts.layout;
  for (const v1::Unit& unit : parts.planned.units)
    options.unit_names.push_back(unit.fqn().empty() ? "(root)" : unit.fqn());
  options.compute = keep->compute.get();
  options.host = parts.collectives.get();
  options.keep = keep;
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<NcclCollectives> collectives,
                           NcclCollectives::Create(std::move(options)));
  parts.stream = keep->compute.get();
  parts.host_collectives = std::exchange(parts.collectives, std::move(collectives));
  return absl::OkStatus();
}

}  // namespace tessera
