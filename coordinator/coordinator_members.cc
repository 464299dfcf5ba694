// Members: joins, messages, and what a loss means for the job.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "coordinator/coordinator.h"
#include "coordinator/job_planner.h"
#include "coordinator/proto_time.h"
#include "coordinator/runnable_hosts.h"

namespace tessera {
namespace {

using State = RankMember::State;

// Of a host that waits; a job's own figures come with the job.
constexpr absl::Duration kHostHeartbeat = absl::Seconds(1);
constexpr absl::Duration kHostLease = absl::Seconds(5);
constexpr int kMaxLocalWorkers = 65536;

absl::Status ToStatus(const v1::Leave& leave) {
  if (leave.code() == 0) return absl::OkStatus();
  const bool known = leave.code() > 0 && leave.code() <= 16;
  return absl::Status(
      known ? static_cast<absl::StatusCode>(leave.code()) : absl::StatusCode::kUnknown,
      leave.message());
}

std::optional<int> BlamedRank(const v1::Leave& leave, int world_size) {
  // A rank that does not exist is no evidence.
  if (!leave.has_blamed_rank() || leave.blamed_rank() < 0 || leave.blamed_rank() >= world_size) {
    return std::nullopt;
  }
  return leave.blamed_rank();
}

absl::Status Misplaced(absl::string_view field, absl::string_view member) {
  return InvalidField(
      field, absl::StrCat("cannot be sent by ", member, "; close the stream and join again"));
}

absl::Status CheckJoin(const v1::JoinHost& join) {
  if (join.host_name().empty()) return InvalidField("join_host.host_name", "is empty");
  if (join.incarnation().empty()) return InvalidField("join_host.incarnation", "is empty");
  if (join.local_workers() < 1 || join.local_workers() > kMaxLocalWorkers) {
    return InvalidField("join_host.local_workers", absl::StrCat("is ", join.local_workers(),
                                                                "; give 1 to ", kMaxLocalWorkers));
  }
  return absl::OkStatus();
}

absl::Status CheckJoin(const v1::JoinRank& join) {
  if (join.job().empty()) return InvalidField("join_rank.job", "is empty");
  if (join.incarnation().empty()) return InvalidField("join_rank.incarnation", "is empty");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MemberId> Coordinator::Join(const v1::AttendRequest& first,
                                           std::shared_ptr<MemberSink> sink) {
  absl::StatusOr<MemberId> member = InvalidField(
      "message", "the first message of a stream is no join; send join_host or join_rank");
  {
    MutexLock lock(mutex_);
    if (shut_down_) {
      member = absl::UnavailableError("the coordinator is shutting down");
    } else if (first.has_join_host()) {
      member = JoinHostLocked(first.join_host(), std::move(sink));
    } else if (first.has_join_rank()) {
      member = JoinRankLocked(first.join_rank(), std::move(sink));
    }
  }
  Flush();
  return member;
}

void Coordinator::WelcomeLocked(MemberId member, std::shared_ptr<MemberSink> sink,
                                absl::Duration heartbeat, absl::Duration lease) {
  sinks_[member] = std::move(sink);
  v1::AttendResponse message;
  SetDuration(heartbeat, message.mutable_welcome()->mutable_heartbeat());
  SetDuration(lease, message.mutable_welcome()->mutable_lease());
  SendLocked(member, std::move(message));
}

absl::StatusOr<MemberId> Coordinator::JoinHostLocked(const v1::JoinHost& join,
                                                     std::shared_ptr<MemberSink> sink) {
  TESSERA_RETURN_IF_ERROR(CheckJoin(join));
  absl::Duration heartbeat = kHostHeartbeat;
  absl::Duration lease = kHostLease;
  if (JobEntry* job = LiveLocked(join.job()); job != nullptr) {
    TESSERA_RETURN_IF_ERROR(CheckProgram(*job, join.program()));
    const std::vector<MemberId> there = members_.MembersOf(join.job());
    if (!there.empty() && (job->reserved || RanksOfHost(*job->spec) == 0)) {
      const Blame refusal = SecondHostLocked(*job, there[0], join.host_name());
      // The host that is there is too small, or the job would be forming on it.
      if (!job->reserved) FailLocked(*job, refusal);
      return WithReason(absl::Status(refusal.code, refusal.reason), "SECOND_HOST");
    }
    heartbeat = ToDuration(job->spec->timeouts().heartbeat());
    lease = ToDuration(job->spec->timeouts().lease());
  }
  const MemberId member = members_.AddHost(join, lease);
  WelcomeLocked(member, std::move(sink), heartbeat, lease);
  const auto bound = jobs_.find(join.job());
  if (bound != jobs_.end() && bound->second->lifecycle.ended()) {
    v1::AttendResponse message;
    message.mutable_end()->set_state(bound->second->lifecycle.state());
    message.mutable_end()->set_reason(bound->second->lifecycle.proto().reason());
    SendLocked(member, std::move(message));
    members_.Remove(member);
    return member;
  }
  MatchLocked();
  return member;
}

absl::StatusOr<MemberId> Coordinator::JoinRankLocked(const v1::JoinRank& join,
                                                     std::shared_ptr<MemberSink> sink) {
  TESSERA_RETURN_IF_ERROR(CheckJoin(join));
  TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(join.job()));
  const absl::Duration lease = ToDuration(job->spec->timeouts().lease());
  TESSERA_ASSIGN_OR_RETURN(const MemberId member, members_.AddRank(join, lease));
  WelcomeLocked(member, std::move(sink), ToDuration(job->spec->timeouts().heartbeat()), lease);
  const Generation& generation = *members_.FindGeneration(join.job());
  if (generation.CountAtLeast(State::kJoined) == static_cast<int>(generation.ranks.size())) {
    job->all_joined = true;
    job->deadline = members_.now() + ToDuration(job->spec->timeouts().form());
    for (absl::Time& built : job->built) {
      if (built != absl::InfiniteFuture()) built = members_.now();
    }
  }
  return member;
}

absl::Status Coordinator::Receive(MemberId member, const v1::AttendRequest& message) {
  absl::Status status;
  {
    MutexLock lock(mutex_);
    status = ReceiveLocked(member, message);
  }
  Flush();
  return status;
}

absl::Status Coordinator::ReceiveLocked(MemberId member, const v1::AttendRequest& message) {
  members_.Heard(member);
  const HostMember* host = members_.FindHost(member);
  const std::optional<RankId> rank = members_.FindRank(member);
  switch (message.message_case()) {
    case v1::AttendRequest::kHeartbeat:
      return absl::OkStatus();
    case v1::AttendRequest::kRankReady:
      if (host != nullptr) return Misplaced("rank_ready", "an agent");
      if (rank.has_value()) RankReadyLocked(*rank, message.rank_ready().measured_bytes());
      return absl::OkStatus();
    case v1::AttendRequest::kWorkerExited:
      if (rank.has_value()) return Misplaced("worker_exited", "a worker");
      return host == nullptr ? absl::OkStatus()
                             : WorkerExitedLocked(*host, message.worker_exited());
    case v1::AttendRequest::kLeave:
      if (host != nullptr) {
        HostLeftLocked(HostMember(*host), message.leave());
      } else if (rank.has_value()) {
        RankLeftLocked(*rank, message.leave());
      }
      CloseLocked(member, absl::OkStatus());
      return absl::OkStatus();
    case v1::AttendRequest::kJoinHost:
    case v1::AttendRequest::kJoinRank:
      return InvalidField("message", "this stream has joined already; join once a stream");
    case v1::AttendRequest::MESSAGE_NOT_SET:
      break;
  }
  return InvalidField("message", "is empty or unknown to this coordinator");
}

absl::Status Coordinator::WorkerExitedLocked(const HostMember& host,
                                             const v1::WorkerExited& exited) {
  JobEntry* job = LiveLocked(host.job);
  const Generation* generation = members_.FindGeneration(host.job);
  if (job == nullptr || generation == nullptr || !generation->live) return absl::OkStatus();
  if (exited.rank() < 0 || exited.rank() >= static_cast<int>(generation->ranks.size())) {
    return InvalidField(
        "worker_exited.rank",
        absl::StrCat("is ", exited.rank(), "; the world size is ", generation->ranks.size()));
  }
  const bool joined = generation->ranks[exited.rank()].state != State::kMissing;
  job->verdict.RankExited(exited.rank(), host.name, exited.exit_code(), exited.signal(),
                          members_.now(), joined);
  return absl::OkStatus();
}

void Coordinator::HostLeftLocked(const HostMember& host, const v1::Leave& leave) {
  const Generation* generation = members_.FindGeneration(host.job);
  JobEntry* job = LiveLocked(host.job);
  members_.Remove(host.id);
  // One that only waited, or whose layout is being made, takes nothing with it.
  if (job == nullptr || generation == nullptr || !generation->live) return;
  job->verdict.HostLeft(host.name, ToStatus(leave),
                        BlamedRank(leave, static_cast<int>(generation->ranks.size())),
                        members_.now());
  DecideLocked(*job);
}

void Coordinator::RankReadyLocked(const RankId& rank, int64_t measured_bytes) {
  JobEntry* job = LiveLocked(rank.job);
  const Generation* generation = members_.FindGeneration(rank.job);
  if (job == nullptr || generation->ranks[rank.rank].state != State::kJoined) return;
  if (job->planned == nullptr) return;  // for what?
  members_.SetState(rank, State::kReady);
  members_.SetMeasuredBytes(rank, measured_bytes);
  if (generation->CountAtLeast(State::kReady) < static_cast<int>(generation->ranks.size())) return;
  if (!job->lifecycle.Run().ok()) return;
  job->rate.Add(0, options_.clock->Now());
  v1::AttendResponse start;
  start.mutable_start();
  for (const RankMember& member : generation->ranks) SendLocked(member.id, start);
  ChangedLocked(*job);
}

void Coordinator::RankLeftLocked(const RankId& rank, const v1::Leave& leave) {
  JobEntry* job = LiveLocked(rank.job);
  const Generation* generation = members_.FindGeneration(rank.job);
  const MemberId member = generation->ranks[rank.rank].id;
  const int world_size = static_cast<int>(generation->ranks.size());
  const std::optional<int> blamed = BlamedRank(leave, world_size);
  const bool done = leave.code() == 0 && job != nullptr && job->lifecycle.state() == v1::RUNNING;
  if (done) members_.SetState(rank, State::kDone);
  members_.Remove(member);
  if (job == nullptr) return;
  if (!done) {
    job->verdict.RankLeft(rank.rank, generation->HostOf(blamed.value_or(rank.rank)).name,
                          ToStatus(leave), blamed, members_.now());
    return;
  }
  job->verdict.Done(rank.rank);
  if (generation->CountAtLeast(State::kDone) < world_size) return;
  const v1::Job& ran = job->lifecycle.proto();
  const absl::Time now = options_.clock->WallNow();
  const absl::Status ended =
      ran.draining() && ran.step() < ran.steps()
          ? job->lifecycle.EndDrained(
                absl::StrCat("drained after step ", ran.step(), " of ", ran.steps()), now)
          : job->lifecycle.Succeed(now);
  if (ended.ok()) EndedLocked(*job);
}

void Coordinator::StreamBroken(MemberId member) {
  {
    MutexLock lock(mutex_);
    LostLocked(member, /*expired=*/false);
    sinks_.erase(member);
  }
  Flush();
}

void Coordinator::LostLocked(MemberId member, bool expired) {
  const HostMember* known = members_.FindHost(member);
  const std::optional<RankId> rank = members_.FindRank(member);
  if (known == nullptr && !rank.has_value()) return;
  const std::string name = known != nullptr ? known->job : rank->job;
  const Generation* generation = members_.FindGeneration(name);
  JobEntry* job = generation != nullptr && generation->live ? LiveLocked(name) : nullptr;
  const bool blame_host = known != nullptr || (expired && members_.HostIsSilent(*rank));
  if (job != nullptr && blame_host) {
    const HostMember* host =
        known != nullptr ? known : members_.FindHost(generation->HostOf(rank->rank).id);
    const std::string agent = absl::StrCat("its agent (pid ", host->pid, ") ");
    job->verdict.HostLost(
        host->name,
        expired ? absl::StrCat(agent, "was not heard of for ", absl::FormatDuration(host->lease))
                : absl::StrCat(agent, "is gone"),
        members_.now());
  } else if (job != nullptr && expired) {
    const absl::Duration lease = generation->ranks[rank->rank].lease;
    job->verdict.RankLeaseEnded(rank->rank, generation->HostOf(rank->rank).name, lease,
                                members_.now());
  } else if (job != nullptr) {
    job->verdict.RankBroke(rank->rank, generation->HostOf(rank->rank).name, members_.now());
  }
  members_.Remove(member);
  if (expired)
    CloseLocked(member, absl::UnavailableError("your lease has ended: no heartbeat came"));
  if (job != nullptr) DecideLocked(*job);
}

void Coordinator::DecideLocked(JobEntry& job) {
  if (job.lifecycle.ended()) return;
  const std::optional<Blame> blame = job.verdict.Decide(members_.now());
  if (blame.has_value()) FailLocked(job, *blame);
}

absl::StatusOr<std::shared_ptr<const std::string>> Coordinator::ListUnits(
    const v1::ListUnitsRequest& request) {
  std::shared_ptr<const PlannedJob> planned;
  {
    MutexLock lock(mutex_);
    TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(request.job()));
    TESSERA_RETURN_IF_ERROR(members_.CheckGeneration(request.job(), request.generation()));
    planned = job->planned;
    if (planned == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", request.job(), " is DRAFT: it has no units to list yet"));
    }
  }
  return planned->SerializedPage(request.page_token());
}

v1::WatchJobResponse Coordinator::ProgressEvent(const v1::Progress& progress, const JobEntry& job) {
  v1::WatchJobResponse event;
  *event.mutable_progress() = progress;
  event.mutable_progress()->clear_time_left();
  const v1::Job& ran = job.lifecycle.proto();
  const std::optional<absl::Duration> left = job.rate.TimeLeft(ran.steps());
  if (left.has_value() && !ran.draining() && progress.step() < ran.steps()) {
    SetDuration(*left, event.mutable_progress()->mutable_time_left());
  }
  return event;
}

absl::Status Coordinator::ReportStats(const v1::ReportStatsRequest& request) {
  {
    MutexLock lock(mutex_);
    TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(request.job()));
    TESSERA_RETURN_IF_ERROR(members_.CheckRank(request.job(), request.generation(), request.rank(),
                                               request.incarnation()));
    if (request.step() < 0 || request.step() > job->lifecycle.proto().steps()) {
      return InvalidField("step", absl::StrCat("is ", request.step(), "; the job has ",
                                               job->lifecycle.proto().steps(), " steps"));
    }
    if (!job->stats.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", request.job(), " is DRAFT: nothing of it can have been measured"));
    }
    TESSERA_RETURN_IF_ERROR(job->stats->Record(request.rank(), request.samples()));
    job->lifecycle.SetStep(request.step());
    job->rate.Add(job->lifecycle.proto().step(), options_.clock->Now());
    if (request.measured_bytes() > 0) {
      members_.SetMeasuredBytes({request.job(), request.rank()}, request.measured_bytes());
    }
    for (const v1::Progress& progress : request.progress()) {
      if (progress.step() <= job->progress_step) continue;
      job->progress_step = progress.step();
      job->lifecycle.SetLoss(progress.loss());
      job->events->Append(ProgressEvent(progress, *job));
    }
    if (request.progress_size() > 0) LaterLocked([events = job->events] { events->Wake(); });
  }
  Flush();
  return absl::OkStatus();
}

}  // namespace tessera
