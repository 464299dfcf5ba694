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

void CoordinatorCore::WelcomeLocked(MemberId member, std::shared_ptr<MemberSink> sink,
                                    absl::Duration heartbeat, absl::Duration lease) {
  sinks_[member] = std::move(sink);
  v1::AttendResponse message;
  SetDuration(heartbeat, message.mutable_welcome()->mutable_heartbeat());
  SetDuration(lease, message.mutable_welcome()->mutable_lease());
  SendLocked(member, std::move(message));
}

absl::StatusOr<MemberId> CoordinatorCore::JoinHostLocked(const v1::JoinHost& join,
                                                         std::shared_ptr<MemberSink> sink) {
  TESSERA_RETURN_IF_ERROR(CheckJoin(join));
  TESSERA_ASSIGN_OR_RETURN(const auto again, RejoinHostLocked(join, sink));
  if (again.has_value()) return *again;
  absl::Duration heartbeat = kHostHeartbeat;
  absl::Duration lease = kHostLease;
  if (JobEntry* job = LiveLocked(join.job()); job != nullptr) {
    TESSERA_RETURN_IF_ERROR(CheckProgram(*job->spec, join.program()));
    TESSERA_RETURN_IF_ERROR(CheckPlaceLocked(*job, join));
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
  if (JobEntry* job = LiveLocked(join.job()); job != nullptr) GrowLocked(*job);
  return member;
}

absl::StatusOr<MemberId> CoordinatorCore::JoinRankLocked(const v1::JoinRank& join,
                                                         std::shared_ptr<MemberSink> sink) {
  TESSERA_RETURN_IF_ERROR(CheckJoin(join));
  if (join.rejoin()) return RejoinRankLocked(join, std::move(sink));
  TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(join.job()));
  const absl::Duration lease = ToDuration(job->spec->timeouts().lease());
  TESSERA_ASSIGN_OR_RETURN(const MemberId member, members_.AddRank(join, lease));
  WelcomeLocked(member, std::move(sink), ToDuration(job->spec->timeouts().heartbeat()), lease);
  RankJoinedLocked(*job);
  return member;
}

void CoordinatorCore::RankJoinedLocked(JobEntry& job) {
  const Generation& generation = *members_.FindGeneration(job.lifecycle.proto().name());
  if (!generation.AllAtLeast(State::kJoined)) return;
  job.all_joined = true;
  job.deadline = members_.now() + ToDuration(job.spec->timeouts().form());
  for (absl::Time& built : job.built) {
    if (built != absl::InfiniteFuture()) built = members_.now();
  }
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

absl::Status CoordinatorCore::ReceiveLocked(MemberId member, const v1::AttendRequest& message) {
  members_.Heard(member);
  const HostMember* host = members_.FindHost(member);
  const std::optional<RankId> rank = members_.FindRank(member);
  if (rank.has_value()) HearPositionLocked(*rank, message);
  switch (message.message_case()) {
    case v1::AttendRequest::kHeartbeat:
      return absl::OkStatus();
    case v1::AttendRequest::kRankReady:
      if (host != nullptr) return Misplaced("rank_ready", "an agent");
      if (rank.has_value()) RankReadyLocked(*rank, message.rank_ready());
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
    case v1::AttendRequest::kBroken:
      if (host != nullptr) return Misplaced("broken", "an agent");
      if (rank.has_value()) RankBrokenLocked(*rank, message.broken());
      return absl::OkStatus();
    case v1::AttendRequest::MESSAGE_NOT_SET:
      break;
  }
  return InvalidField("message", "is empty or unknown to this coordinator");
}

absl::Status CoordinatorCore::WorkerExitedLocked(const HostMember& host,
                                                 const v1::WorkerExited& exited) {
  JobEntry* job = LiveLocked(host.job);
  const Generation* generation = members_.FindGeneration(host.job);
  if (job == nullptr || generation == nullptr) return absl::OkStatus();
  // The end of a process of an earlier generation is settled.
  if (exited.generation() != 0 && exited.generation() != generation->number)
    return absl::OkStatus();
  if (exited.rank() < 0 || exited.rank() >= static_cast<int>(generation->ranks.size())) {
    return InvalidField(
        "worker_exited.rank",
        absl::StrCat("is ", exited.rank(), "; the world size is ", generation->ranks.size()));
  }
  if (generation->HostOf(exited.rank()).id != host.id) return absl::OkStatus();
  Recovery& recovery = job->recovery;
  const bool survivor = recovery.recovers && recovery.fresh.count(exited.rank()) == 0;
  recovery.restart.insert(exited.rank());
  if (!generation->live) return absl::OkStatus();
  const bool joined = generation->ranks[exited.rank()].state != State::kMissing;
  if (!joined && survivor) {
    // It did not take the last loss; it has nothing to do with a new one.
    if (recovery.ended.empty()) recovery.ended_at = members_.now();
    recovery.ended.insert(exited.rank());
    return absl::OkStatus();
  }
  job->verdict.RankExited(exited.rank(), host.name, exited.exit_code(), exited.signal(),
                          members_.now(), joined);
  return absl::OkStatus();
}

void CoordinatorCore::HostLeftLocked(const HostMember& host, const v1::Leave& leave) {
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

void CoordinatorCore::RankReadyLocked(const RankId& rank, const v1::RankReady& ready) {
  JobEntry* job = LiveLocked(rank.job);
  const Generation* generation = members_.FindGeneration(rank.job);
  if (job == nullptr || generation->ranks[rank.rank].state != State::kJoined) return;
  if (job->planned == nullptr) return;  // for what?
  auto& first = job->recovery.ready;
  if (!first.has_value()) first = {rank.rank, ready.step()};
  if (first->second != ready.step()) {
    return FailLocked(*job,
                      {absl::StatusCode::kInternal,
                       absl::StrCat("rank ", rank.rank, " would go on after step ", ready.step(),
                                    " and rank ", first->first, " after step ", first->second,
                                    ": they do not hold the same state; start the job again from a "
                                    "checkpoint"),
                       rank.rank});
  }
  members_.SetState(rank, State::kReady);
  members_.SetMeasuredBytes(rank, ready.measured_bytes());
  if (!generation->AllAtLeast(State::kReady)) return;
  BeginLocked(*job, ready.step());
}

void CoordinatorCore::RankBrokenLocked(const RankId& rank, const v1::Broken& broken) {
  JobEntry* job = LiveLocked(rank.job);
  if (job == nullptr) return;
  const Generation& generation = *members_.FindGeneration(rank.job);
  v1::Leave saw;
  saw.set_code(broken.code());
  saw.set_message(broken.message());
  if (broken.has_blamed_rank()) saw.set_blamed_rank(broken.blamed_rank());
  const std::optional<int> blamed = BlamedRank(saw, static_cast<int>(generation.ranks.size()));
  job->verdict.RankBroken(rank.rank, generation.HostOf(blamed.value_or(rank.rank)).name,
                          ToStatus(saw), blamed, members_.now());
}

void CoordinatorCore::RankLeftLocked(const RankId& rank, const v1::Leave& leave) {
  JobEntry* job = LiveLocked(rank.job);
  const Generation* generation = members_.FindGeneration(rank.job);
  const MemberId member = generation->ranks[rank.rank].id;
  const int world_size = static_cast<int>(generation->ranks.size());
  const std::optional<int> blamed = BlamedRank(leave, world_size);
  const bool done = leave.code() == 0 && job != nullptr && job->lifecycle.state() == v1::RUNNING;
  if (done) {
    members_.SetState(rank, State::kDone);
    KeepRankLocked(rank);
  }
  members_.Remove(member);
  if (job == nullptr) return;
  if (!done) {
    job->verdict.RankLeft(rank.rank, generation->HostOf(blamed.value_or(rank.rank)).name,
                          ToStatus(leave), blamed, members_.now());
    return;
  }
  job->verdict.Done(rank.rank);
  if (!generation->AllAtLeast(State::kDone)) return;
  AllDoneLocked(*job);
}

void CoordinatorCore::AllDoneLocked(JobEntry& job) {
  const v1::Job& ran = job.lifecycle.proto();
  const absl::Time now = options_.clock->WallNow();
  const bool stopped = ran.step() < ran.steps();
  if (stopped && job.recovery.growing && !ran.draining()) return ResizeLocked(job);
  const absl::Status ended =
      stopped && ran.draining()
          ? job.lifecycle.EndDrained(
                absl::StrCat("drained after step ", ran.step(), " of ", ran.steps()), now)
          : job.lifecycle.Succeed(now);
  if (ended.ok()) EndedLocked(job);
}

void Coordinator::StreamBroken(MemberId member) {
  {
    MutexLock lock(mutex_);
    LostLocked(member, /*expired=*/false);
    sinks_.erase(member);
  }
  Flush();
}

void CoordinatorCore::LostLocked(MemberId member, bool expired) {
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
  // A host that is to blame is gone, whatever becomes of its stream.
  if (job != nullptr && known == nullptr && blame_host) {
    const MemberId host = generation->HostOf(rank->rank).id;
    members_.Remove(host);
    CloseLocked(host, absl::UnavailableError("your lease has ended: no heartbeat came"));
  }
  members_.Remove(member);
  if (expired)
    CloseLocked(member, absl::UnavailableError("your lease has ended: no heartbeat came"));
  if (job != nullptr) DecideLocked(*job);
}

void CoordinatorCore::DecideLocked(JobEntry& job) {
  if (job.lifecycle.ended()) return;
  const absl::Time now = members_.now();
  const Recovery& recovery = job.recovery;
  if (const std::optional<Blame> blame = job.verdict.Decide(now); blame.has_value()) {
    LoseLocked(job, *blame);
  } else if (!recovery.ended.empty() && now - recovery.ended_at >= options_.verdict.grace) {
    ReformLocked(job);
  }
}

}  // namespace tessera
