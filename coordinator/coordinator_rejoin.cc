// Members whose stream broke, or whose coordinator was started again, and who never stopped.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "coordinator/coordinator.h"
#include "coordinator/proto_time.h"

namespace tessera {
namespace {

using State = RankMember::State;

// The host's place in its job's generation; -1: it has none there.
int PlaceOf(const Generation* generation, const std::string& incarnation) {
  if (generation == nullptr || incarnation.empty()) return -1;
  for (int host = 0; host < static_cast<int>(generation->hosts.size()); ++host) {
    if (generation->hosts[host].incarnation == incarnation) return host;
  }
  return -1;
}

std::string IsOver(int64_t generation) {
  return absl::StrCat("generation ", generation, " is over");
}

}  // namespace

MemberId CoordinatorCore::TellEndLocked(std::shared_ptr<MemberSink> sink, v1::JobState state,
                                        const std::string& reason) {
  const MemberId member = members_.NewId();
  WelcomeLocked(member, std::move(sink), absl::Seconds(1), absl::Seconds(5));
  v1::AttendResponse message;
  message.mutable_end()->set_state(state);
  message.mutable_end()->set_reason(reason);
  SendLocked(member, std::move(message));
  CloseLocked(member, absl::OkStatus());
  return member;
}

absl::StatusOr<std::optional<MemberId>> CoordinatorCore::RejoinHostLocked(
    const v1::JoinHost& join, std::shared_ptr<MemberSink> sink) {
  // It may have been given to a job without hearing of it.
  const std::string& serving = join.serving_job().empty() ? join.job() : join.serving_job();
  JobEntry* job = LiveLocked(serving);
  for (const auto& [id, other] : live_) {
    // Of the pool.
    const Generation* of = members_.FindGeneration(other->lifecycle.proto().name());
    if (serving.empty() && PlaceOf(of, join.incarnation()) >= 0)
      return RejoinJobLocked(*other, join, std::move(sink));
  }
  if (job == nullptr) {
    if (join.serving_job().empty()) return std::optional<MemberId>();
    TESSERA_ASSIGN_OR_RETURN(job, FindLocked(serving));
    return TellEndLocked(std::move(sink), job->lifecycle.state(), job->lifecycle.proto().reason());
  }
  return RejoinJobLocked(*job, join, std::move(sink));
}

absl::StatusOr<std::optional<MemberId>> CoordinatorCore::RejoinJobLocked(
    JobEntry& job, const v1::JoinHost& join, std::shared_ptr<MemberSink> sink) {
  const std::string& serving = job.lifecycle.proto().name();
  const Generation* generation = members_.FindGeneration(serving);
  const int place = PlaceOf(generation, join.incarnation());
  const bool serves = !join.serving_job().empty() && join.generation() != 0;
  if (serves && join.generation() > members_.LastGeneration(serving)) {
    // Begun by a coordinator that could not keep it: no other may have the number.
    members_.SetLastGeneration(serving, join.generation());
  }
  if (place < 0) {
    if (!serves) return std::optional<MemberId>();
    return TellEndLocked(
        std::move(sink), v1::FAILED,
        absl::StrCat(IsOver(join.generation()), ": job ", serving, " goes on without this host"));
  }
  if (const MemberId before = generation->hosts[place].id; before != 0) {
    CloseLocked(before, absl::UnavailableError("the host has joined again"));
    members_.Detach(before);
  }
  const absl::Duration lease = ToDuration(job.spec->timeouts().lease());
  const MemberId member = members_.Reattach(serving, place, join, lease);
  WelcomeLocked(member, std::move(sink), ToDuration(job.spec->timeouts().heartbeat()), lease);
  const bool told = serves && join.generation() >= generation->number;
  if (generation->live && !told) {
    if (job.planned != nullptr) SendFormToLocked(job, place, FormOfAllLocked(job));
  } else if (!generation->live || join.generation() > generation->number) {
    v1::AttendResponse message;
    message.mutable_end()->set_state(v1::RECOVERING);
    message.mutable_end()->set_reason(IsOver(join.generation()));
    SendLocked(member, std::move(message));
  }
  bool all = true;
  for (const Generation::Host& host : generation->hosts) all = all && !host.away;
  if (job.recovery.pending && all)
    job.recovery.not_before = std::min(job.recovery.not_before, members_.now());
  return std::optional<MemberId>(member);
}

absl::StatusOr<MemberId> CoordinatorCore::RejoinRankLocked(const v1::JoinRank& join,
                                                           std::shared_ptr<MemberSink> sink) {
  TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(join.job()));
  const v1::Job& state = job->lifecycle.proto();
  if (job->lifecycle.ended()) return TellEndLocked(std::move(sink), state.state(), state.reason());
  if (!members_.CheckGeneration(join.job(), join.generation()).ok())
    return TellEndLocked(std::move(sink), v1::RECOVERING, IsOver(join.generation()));
  const Generation& generation = *members_.FindGeneration(join.job());
  if (join.rank() >= 0 && join.rank() < static_cast<int>(generation.ranks.size())) {
    const RankMember& before = generation.ranks[join.rank()];
    if (before.id != 0 && before.incarnation == join.incarnation()) {
      CloseLocked(before.id, absl::UnavailableError("the rank has joined again"));
      members_.Detach(before.id);
    }
  }
  const absl::Duration lease = ToDuration(job->spec->timeouts().lease());
  TESSERA_ASSIGN_OR_RETURN(const MemberId member, members_.AddRank(join, lease));
  WelcomeLocked(member, std::move(sink), ToDuration(job->spec->timeouts().heartbeat()), lease);
  RankJoinedLocked(*job);
  const RankId rank{join.job(), join.rank()};
  if (join.ready()) {
    if (join.measured_bytes() > 0) members_.SetMeasuredBytes(rank, join.measured_bytes());
    v1::RankReady ready;
    ready.set_measured_bytes(join.measured_bytes());
    ready.set_step(join.step());
    RankReadyLocked(rank, ready);
  }
  if (job->lifecycle.state() != v1::RUNNING) return member;
  // It may not have heard of it.
  v1::AttendResponse message;
  message.mutable_start();
  SendLocked(member, message);
  if (!state.draining() && !job->recovery.growing) return member;
  message.mutable_drain()->set_resize(!state.draining());
  SendLocked(member, message);
  return member;
}

}  // namespace tessera
