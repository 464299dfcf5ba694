#include "tests/simulation/agent.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/job.h"
#include "coordinator/proto_time.h"

namespace tessera::simulation {
std::shared_ptr<Collective> Cluster::CollectiveOf(const std::string& job, int64_t generation,
                                                  int world_size) {
  std::weak_ptr<Collective>& known = collectives_[{job, generation}];
  std::shared_ptr<Collective> collective = known.lock();
  if (collective == nullptr) {
    collective = std::make_shared<Collective>(base, server, world_size);
    known = collective;
  }
  return collective;
}

Agent::Agent(Cluster* cluster, Options options, std::function<void()> exited)
    : Process(cluster->base),
      cluster_(cluster),
      options_(std::move(options)),
      exited_(std::move(exited)),
      incarnation_(absl::StrCat(options_.host, "/", ++cluster->processes)),
      heard_(cluster->base->events.now()) {}

void Agent::Connect() {
  if (stream_ != nullptr) stream_->Drop();
  ++stream_number_;
  welcome_ = false;
  auto view = std::make_shared<MemberView>();
  view->incarnation = incarnation_;
  view->job = job_;
  view->generation = generation_;
  v1::AttendRequest first;
  v1::JoinHost* join = first.mutable_join_host();
  join->set_host_name(options_.host);
  join->set_local_workers(options_.local_workers);
  join->set_job(options_.job);
  join->set_incarnation(incarnation_);
  join->set_pid(7);
  join->set_serving_job(job_);
  join->set_generation(generation_);
  for (const auto& [rank, process] : ranks_) {
    if (process->alive()) join->add_living_ranks(rank);
  }
  const std::weak_ptr<Process> self = weak_from_this();
  const auto deliver = [self, this, number = stream_number_](Events::Action action) {
    if (self.expired()) return;
    Guarded([this, number, action = std::move(action)] {
      if (number == stream_number_) action();
    })();
  };
  stream_ = cluster_->server->Open(options_.host, std::move(view), std::move(first),
                                   {[this, deliver](const v1::AttendResponse& message) {
                                      deliver([this, message] { OnMessage(message); });
                                    },
                                    [this, deliver](const absl::Status& status) {
                                      deliver([this, status] { OnEnd(status); });
                                    }});
}

void Agent::OnMessage(const v1::AttendResponse& message) {
  heard_ = base()->events.now();
  if (message.has_welcome()) {
    welcome_ = true;
    back_off_ = absl::ZeroDuration();
    heartbeat_ = ToDuration(message.welcome().heartbeat());
    HeartbeatLater();
    if (leaving_) return Leave();
    for (v1::AttendRequest& untold : std::exchange(untold_, {})) stream_->Send(std::move(untold));
  } else if (message.has_form_host()) {
    const v1::FormHost& form = message.form_host();
    if (form.job() == job_ && form.generation() == generation_) return;  // said again
    if (form.job() == job_ && form.generation() < generation_) {
      base()->checker.Fail(Invariant::kGenerationsGrow,
                           absl::StrCat("agent ", incarnation_, " serves generation ", generation_,
                                        " of ", job_, " and is given ", form.generation()));
    }
    form.recover() ? FormAgain(form) : Form(form);
  } else if (message.has_end() && IsEnd(message.end().state())) {
    // Its ranks hear it too, and have a moment to go.
    ending_ = true;
    Later(absl::Milliseconds(50), absl::Milliseconds(400), [this] {
      DropRanks();
      Leave();
    });
  }
}

void Agent::OnEnd(const absl::Status& status) {
  base()->trace.Add("agent ", incarnation_, " sees its stream end: ", status.ToString());
  welcome_ = false;
  if (ending_ || (leaving_ && status.ok())) return Exit();
  // FAILED_PRECONDITION: there is no place for it.
  if (!absl::IsUnavailable(status) && !absl::IsCancelled(status) && !status.ok()) return Exit();
  if (base()->events.now() - heard_ > options_.gives_up) return Exit();
  back_off_ = std::clamp(back_off_ * 2, kLeastBackOff, kMostBackOff);
  Later(back_off_, [this] { Connect(); });
}

void Agent::HeartbeatLater() {
  Later(heartbeat_, [this, number = stream_number_] {
    if (number != stream_number_ || !stream_->open()) return;
    v1::AttendRequest message;
    message.mutable_heartbeat();
    stream_->Send(std::move(message));
    HeartbeatLater();
  });
}

void Agent::Form(const v1::FormHost& form) {
  DropRanks();
  job_ = form.job();
  generation_ = form.generation();
  run_ = form.run().empty() ? absl::StrCat(job_, "@", generation_) : form.run();
  for (const v1::Assignment& assignment : form.assignments()) {
    memories_[assignment.rank()] = std::make_shared<RankMemory>();
    StartRank(HandoffOf(form, assignment.rank()));
  }
}

void Agent::FormAgain(const v1::FormHost& form) {
  if (job_ != form.job()) {
    base()->checker.Fail(
        Invariant::kNothingLost,
        absl::StrCat("agent ", incarnation_, " is to go on with generation ", form.generation(),
                     " of ", form.job(), ", of which it holds nothing"));
    return;
  }
  generation_ = form.generation();
  for (const int rank : form.restart_ranks()) KillRank(rank);
  for (const v1::Assignment& assignment : form.assignments()) {
    const int rank = assignment.rank();
    if (memories_.count(rank) == 0) {
      base()->checker.Fail(Invariant::kNothingLost,
                           absl::StrCat("agent ", incarnation_, " is given rank ", rank, " of ",
                                        form.job(), " again, whose memory it does not hold"));
      return;
    }
    const auto living = ranks_.find(rank);
    const bool lives = living != ranks_.end() && living->second->alive();
    if (!lives || cluster_->starts_twice) {
      if (lives) forgotten_.push_back(living->second);
      StartRank(HandoffOf(form, rank));
      continue;
    }
    const std::shared_ptr<Rank> process = living->second;
    process->Later(
        absl::Milliseconds(1), absl::Milliseconds(20),
        [process = process.get(), handoff = HandoffOf(form, rank)] { process->Take(handoff); });
  }
}

Handoff Agent::HandoffOf(const v1::FormHost& form, int rank) {
  const v1::JobSpec& spec = form.spec();
  Handoff handoff;
  handoff.job = form.job();
  handoff.generation = form.generation();
  handoff.rank = rank;
  handoff.world_size = form.layout().world_size();
  handoff.host = options_.host;
  handoff.run = run_;
  handoff.recover = form.recover();
  handoff.resumes = form.attempt() >= 2;
  handoff.steps = spec.steps();
  handoff.checkpoint_every = spec.checkpoint().dir().empty() ? 0 : spec.checkpoint().every();
  handoff.can_recover = spec.max_recoveries() > 0;
  handoff.collective_timeout = ToDuration(spec.timeouts().collective());
  handoff.wait_for_handoff = ToDuration(spec.timeouts().form()) +
                             ToDuration(spec.timeouts().replacement()) + absl::Seconds(30);
  handoff.memory = memories_[rank];
  handoff.collective = cluster_->CollectiveOf(form.job(), form.generation(), handoff.world_size);
  return handoff;
}

void Agent::StartRank(Handoff handoff) {
  const int rank = handoff.rank;
  const std::string incarnation = absl::StrCat(handoff.job, ":", rank, "/", ++cluster_->processes);
  const std::weak_ptr<Process> self = weak_from_this();
  auto process = std::make_shared<Rank>(
      base(), cluster_->server, cluster_->rank, incarnation, std::move(handoff),
      [this, self, rank, incarnation](int code) {
        if (self.expired() || !alive()) return;
        Later(absl::ZeroDuration(), absl::Milliseconds(20),
              [this, rank, incarnation, code] { RankExited(rank, incarnation, code, 0); });
      });
  ranks_[rank] = process;
  process->Start();
}

void Agent::KillRank(int rank) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end() || !found->second->alive()) return;
  base()->trace.Add("rank ", rank, " (", found->second->incarnation(), ") is killed");
  found->second->Kill();
  Later(absl::ZeroDuration(), absl::Milliseconds(20),
        [this, rank, incarnation = found->second->incarnation()] {
          RankExited(rank, incarnation, 0, 9);
        });
}

void Agent::RankExited(int rank, const std::string& incarnation, int exit_code, int signal) {
  const auto found = ranks_.find(rank);
  // One that was started again meanwhile, or is of a job that is over.
  if (found == ranks_.end() || found->second->incarnation() != incarnation) return;
  v1::AttendRequest message;
  message.mutable_worker_exited()->set_rank(rank);
  message.mutable_worker_exited()->set_exit_code(exit_code);
  message.mutable_worker_exited()->set_signal(signal);
  message.mutable_worker_exited()->set_generation(found->second->handoff().generation);
  Tell(std::move(message));
}

void Agent::Tell(v1::AttendRequest message) {
  if (welcome_ && stream_->open()) {
    stream_->Send(std::move(message));
  } else {
    untold_.push_back(std::move(message));
  }
}

void Agent::DropRanks() {
  for (const auto& [rank, process] : ranks_) process->Kill();
  ranks_.clear();
  memories_.clear();
  untold_.clear();
  job_.clear();
  generation_ = 0;
}

void Agent::Leave() {
  leaving_ = true;
  v1::AttendRequest message;
  message.mutable_leave();
  stream_->Send(std::move(message));
}

void Agent::Kill() {
  if (!alive()) return;
  base()->trace.Add("agent ", incarnation_, " is killed");
  Die();
  for (const auto& [rank, process] : ranks_) process->Kill();
  if (stream_ != nullptr) stream_->Drop();
}

void Agent::Freeze() {
  Stop();
  for (const auto& [rank, process] : ranks_) process->Stop();
}

void Agent::Thaw() {
  Continue();
  for (const auto& [rank, process] : ranks_) process->Continue();
}

std::vector<std::shared_ptr<Rank>> Agent::ranks() const {
  std::vector<std::shared_ptr<Rank>> living;
  for (const auto& [rank, process] : ranks_) {
    if (process->alive()) living.push_back(process);
  }
  return living;
}

void Agent::Exit() {
  base()->trace.Add("agent ", incarnation_, " exits");
  Kill();
  exited_();
}

}  // namespace tessera::simulation
