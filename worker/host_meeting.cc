#include "worker/host_meeting.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/control_file.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "worker/blame.h"
#include "worker/collectives/shm_control.h"

namespace tessera {
namespace {

// The coordinator ends a fetch at timeouts.collective and says who is missing; this leaves it time.
constexpr absl::Duration kAnswerTime = absl::Seconds(5);

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

// The end of the rank's part of the gradient file: first what the links take, then the sums.
absl::Span<char> StagingOf(const v1::AgentHello& hello, absl::Span<char> gradients) {
  const v1::Layout& layout = hello.layout();
  const int64_t local_rank = hello.assignment().rank() - hello.assignment().local_rank_start();
  const int64_t end = (local_rank + 1) * layout.gradient_stride_bytes();
  return gradients.subspan(end - RoundUp(layout.staging_bytes(), kPageBytes),
                           layout.staging_bytes());
}

template <typename Request>
Request RequestOf(const v1::AgentHello& hello, int rank_of_group) {
  Request request;
  request.set_job(hello.assignment().job());
  request.set_generation(hello.assignment().generation());
  request.set_rank(hello.assignment().rank());
  request.set_incarnation(hello.incarnation());
  request.set_group(hello.layout().replica_count() + rank_of_group);
  return request;
}

HostLinks::Options OptionsOf(const v1::AgentHello& hello, absl::Span<char> gradients) {
  const v1::Assignment& assignment = hello.assignment();
  HostLinks::Options options;
  options.host_names.assign(hello.host_names().begin(), hello.host_names().end());
  options.host = hello.host();
  const int local_rank = assignment.rank() - assignment.local_rank_start();
  for (int host = 0; host < hello.host_names_size(); ++host)
    options.ranks.push_back(host * assignment.local_world_size() + local_rank);
  options.address = hello.host_address();
  options.gather_bytes = assignment.local_world_size() * int64_t{kExchangeBytes};
  options.staging =
      StagingOf(hello, gradients).first(HostLinks::StagingBytes(hello.host_names_size()));
  options.timeout = FromProto(hello.spec().timeouts().collective());
  return options;
}

}  // namespace

absl::Span<char> SumStaging(const v1::AgentHello& hello, absl::Span<char> gradients) {
  if (hello.host_names_size() < 2) return {};
  return StagingOf(hello, gradients).subspan(HostLinks::StagingBytes(hello.host_names_size()));
}

absl::StatusOr<std::unique_ptr<HostLinks>> MeetHosts(const v1::AgentHello& hello,
                                                     absl::Span<char> gradients,
                                                     MembershipClient* membership) {
  if (hello.host_names_size() < 2) return nullptr;
  const HostLinks::Options options = OptionsOf(hello, gradients);
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<GlooHostListener> listener,
                           GlooHostListener::Listen(options));
  const absl::Time form_by = Clock::Real()->Now() + FromProto(hello.spec().timeouts().form());
  std::vector<std::string> addresses(options.ranks.size());
  addresses[options.host] = listener->addresses();
  auto publish = RequestOf<v1::PublishCommunicatorIdsRequest>(hello, options.ranks[options.host]);
  publish.mutable_ids()->set_host_links(listener->addresses());
  TESSERA_RETURN_IF_ERROR(membership->PublishCommunicatorIds(publish, options.timeout));
  for (size_t host = 0; host < options.ranks.size(); ++host) {
    const int peer = options.ranks[host];
    if (peer == hello.assignment().rank()) continue;
    absl::StatusOr<v1::CommunicatorIds> ids;
    // Ranks start as long as timeouts.form allows; a fetch waits timeouts.collective.
    do {
      ids = membership->FetchCommunicatorIds(
          RequestOf<v1::FetchCommunicatorIdsRequest>(hello, peer), options.timeout + kAnswerTime);
    } while (absl::IsDeadlineExceeded(ids.status()) && Clock::Real()->Now() < form_by);
    if (absl::IsDeadlineExceeded(ids.status())) {
      return BlameRank(
          Annotate(ids.status(), absl::StrCat("rank ", peer, " on host ", options.host_names[host],
                                              " did not say where it listens")),
          peer);
    }
    TESSERA_RETURN_IF_ERROR(ids.status());
    addresses[host] = ids->host_links();
  }
  return GlooHostListener::Connect(std::move(listener), addresses);
}

}  // namespace tessera
