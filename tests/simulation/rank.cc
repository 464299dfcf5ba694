#include "tests/simulation/rank.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::simulation {
namespace {

uint64_t Mix(uint64_t value, int64_t step) {
  return (value ^ static_cast<uint64_t>(step)) * 0x9e3779b97f4a7c15 + 1;
}

}  // namespace

uint64_t ValueAfter(int64_t step) {
  uint64_t value = 0;
  for (int64_t done = 1; done <= step; ++done) value = Mix(value, done);
  return value;
}

Rank::Rank(Base* base, Server* server, Options options, std::string incarnation, Handoff handoff,
           std::function<void(int)> exited)
    : Process(base),
      server_(server),
      options_(options),
      incarnation_(std::move(incarnation)),
      at_(std::move(handoff)),
      exited_(std::move(exited)) {}

std::string Rank::name() const {
  return absl::StrCat("rank ", at_.rank, " (", incarnation_, ") of generation ", at_.generation,
                      " of ", at_.job);
}

void Rank::Start() {
  Later(absl::Milliseconds(2), absl::Milliseconds(60), [this] { Enter(); });
}

void Rank::Take(Handoff handoff) {
  if (stuck_ || state_ == State::kLeaving) return;
  at_.collective->Gone(at_.rank);
  at_ = std::move(handoff);
  leave_.reset();
  broken_.reset();
  drain_ = false;
  Enter();
}

void Rank::Enter() {
  state_ = State::kJoining;
  welcome_ = false;
  const std::shared_ptr<Process> user = at_.memory->user.lock();
  if (user != nullptr && user->alive() && user.get() != this) {
    base()->checker.Fail(Invariant::kOneOwner, absl::StrCat(name(), " has a memory in use"));
  }
  at_.memory->user = weak_from_this();
  at_.collective->memories[at_.rank] = at_.memory;
  const auto broken = [this, generation = at_.generation](int rank, const absl::Status& why) {
    if (generation == at_.generation && !stuck_) OnBroken(rank, why);
  };
  at_.collective->Enter(at_.rank, {at_.host, weak_from_this(), broken});
  Connect(/*rejoin=*/false);
}

Events::Action Rank::InGeneration(Events::Action action) {
  return [this, generation = at_.generation, action = std::move(action)] {
    const bool there = state_ != State::kWaiting && state_ != State::kLeaving;
    if (generation == at_.generation && there && !stuck_) action();
  };
}

Events::Action Rank::Computing(Events::Action action) {
  return InGeneration([this, action = std::move(action)] {
    stuck_ = sticks_;
    if (!stuck_) action();
  });
}

void Rank::Connect(bool rejoin) {
  if (stream_ != nullptr) stream_->Drop();
  ++heartbeats_of_;
  auto view = std::make_shared<MemberView>();
  view->job = at_.job;
  view->generation = at_.generation;
  view->rank = at_.rank;
  view->incarnation = incarnation_;
  v1::AttendRequest first;
  v1::JoinRank* join = first.mutable_join_rank();
  join->set_job(at_.job);
  join->set_generation(at_.generation);
  join->set_rank(at_.rank);
  join->set_incarnation(incarnation_);
  join->set_pid(100 + at_.rank);
  join->set_rejoin(rejoin);
  const bool ready = state_ == State::kReady || state_ == State::kRunning || leave_.has_value();
  join->set_ready(rejoin && ready);
  if (rejoin) join->set_step(step_);
  const std::weak_ptr<Process> self = weak_from_this();
  // What comes of this stream; a process that is stopped reads it later.
  const auto deliver = [self, this, number = heartbeats_of_](Events::Action action) {
    if (self.expired()) return;
    Guarded([this, number, action = std::move(action)] {
      if (number == heartbeats_of_) action();
    })();
  };
  stream_ = server_->Open(at_.host, std::move(view), std::move(first),
                          {[this, deliver](const v1::AttendResponse& message) {
                             deliver([this, message] { OnMessage(message); });
                           },
                           [this, deliver](const absl::Status& status) {
                             deliver([this, status] { OnEnd(status); });
                           }});
}

void Rank::OnMessage(const v1::AttendResponse& message) {
  if (message.has_welcome()) {
    back_off_ = absl::ZeroDuration();
    heartbeat_ = absl::Seconds(message.welcome().heartbeat().seconds()) +
                 absl::Nanoseconds(message.welcome().heartbeat().nanos());
    HeartbeatLater();
    if (leave_.has_value()) return SendLeave();
    if (broken_.has_value()) {
      v1::AttendRequest again;
      *again.mutable_broken() = *broken_;
      return stream_->Send(std::move(again));
    }
    if (!std::exchange(welcome_, true)) {
      state_ = State::kPreparing;
      Later(absl::Milliseconds(1), absl::Milliseconds(50), Computing([this] {
              Meet([this] { DecideStep(); }, [this] { GetReady(); }, /*for_ever=*/true);
            }));
    } else if (state_ == State::kReady) {
      // It was said in the join; saying it again changes nothing.
    }
  } else if (message.has_start()) {
    if (state_ != State::kReady) return;
    state_ = State::kRunning;
    const bool unsaved = SaveIsDue(step_) && base()->checker.run(at_.run).checkpoint < step_;
    if (step_ >= at_.steps || unsaved) {
      Later(absl::ZeroDuration(), InGeneration([this] { AfterStep(step_); }));
    } else {
      Begin(step_ + 1);
    }
  } else if (message.has_drain()) {
    drain_ = true;
  } else if (message.has_end()) {
    if (leave_.has_value()) return;
    at_.collective->Gone(at_.rank);
    broken_.reset();
    if (message.end().state() == v1::RECOVERING) {
      state_ = State::kWaiting;
    } else if (!stuck_) {
      Exit(message.end().state() == v1::SUCCEEDED ? 0 : 1);
    }
  }
}

void Rank::OnEnd(const absl::Status& status) {
  base()->trace.Add(name(), " sees its stream end: ", status.ToString());
  if (leave_.has_value() && status.ok()) return Exit(leave_->code() == 0 ? 0 : 1);
  if (status.code() == absl::StatusCode::kAborted || absl::IsFailedPrecondition(status) ||
      absl::IsNotFound(status) || absl::IsInvalidArgument(status)) {
    if (leave_.has_value()) return Exit(leave_->code() == 0 ? 0 : 1);
    broken_.reset();
    at_.collective->Gone(at_.rank);
    if (!at_.can_recover) return stuck_ ? void() : Exit(1);
    state_ = State::kWaiting;
  }
  // It waits for its agent and has nothing to say.
  if (state_ == State::kWaiting && !broken_.has_value()) {
    const int64_t generation = at_.generation;
    return Later(at_.wait_for_handoff, [this, generation] {
      if (generation == at_.generation && state_ == State::kWaiting && !stuck_) Exit(1);
    });
  }
  back_off_ = std::clamp(back_off_ * 2, kLeastBackOff, kMostBackOff);
  Later(back_off_, [this, generation = at_.generation] {
    if (generation == at_.generation && (state_ != State::kWaiting || broken_.has_value())) {
      Connect(/*rejoin=*/welcome_);
    }
  });
}

void Rank::HeartbeatLater() {
  Later(heartbeat_, [this, number = heartbeats_of_] {
    if (number != heartbeats_of_ || !stream_->open()) return;
    v1::AttendRequest message;
    message.mutable_heartbeat();
    stream_->Send(std::move(message));
    HeartbeatLater();
  });
}

void Rank::Meet(Events::Action all_there, Events::Action released, bool for_ever) {
  at_.collective->Arrive(at_.rank, for_ever ? absl::InfiniteDuration() : at_.collective_timeout,
                         std::move(all_there), InGeneration(std::move(released)));
}

void Rank::DecideStep() {
  Collective& all = *at_.collective;
  const int64_t base_step = at_.resumes ? base()->checker.run(at_.run).checkpoint : 0;
  for (const std::shared_ptr<RankMemory>& memory : all.memories) {
    if (memory->filled) continue;
    memory->filled = true;
    memory->applied = base_step;
    memory->value = ValueAfter(base_step);
    memory->votes[0] = memory->votes[1] = {base_step, 0};
  }
  int64_t last = all.memories[0]->newest().step;
  for (const auto& memory : all.memories) last = std::min(last, memory->newest().step);
  bool committed = true;
  for (const auto& memory : all.memories) {
    committed = committed && memory->of(last) == all.memories[0]->of(last);
  }
  all.step = committed ? last : last - 1;
  all.attempt = 1;
  for (const auto& memory : all.memories) {
    const Vote& vote = memory->of(all.step + 1);
    if (vote.step == all.step + 1) all.attempt = std::max(all.attempt, vote.attempt + 1);
  }
  base()->checker.Began(at_.run, at_.job, at_.generation, at_.recover, at_.resumes, all.step);
}

void Rank::GetReady() {
  step_ = at_.collective->step;
  if (at_.memory->applied < step_ || (step_ > 0 && options_.forgets_tags)) Apply(step_);
  state_ = State::kReady;
  v1::AttendRequest message;
  message.mutable_rank_ready()->set_measured_bytes(4096);
  message.mutable_rank_ready()->set_step(step_);
  stream_->Send(std::move(message));
}

void Rank::Begin(int64_t step) {
  Later(options_.least_compute, options_.most_compute,
        InGeneration([this, step] { Meet(nullptr, [this, step] { CastVote(step); }); }));
}

void Rank::CastVote(int64_t step) {
  Collective& all = *at_.collective;
  at_.memory->votes[step % 2] = {step, step == all.step + 1 ? all.attempt : 1};
  if (drain_ && !all.drain_step.has_value()) all.drain_step = step;
  if (std::exchange(all.voting, step) != step) all.votes = 0;
  if (++all.votes == all.world_size()) {
    base()->checker.Committed(at_.run, at_.generation, step);
  }
  Meet(nullptr, [this, step] { Finish(step); });
}

void Rank::Finish(int64_t step) {
  Later(absl::Milliseconds(1), absl::Milliseconds(10), InGeneration([this, step] {
          Apply(step);
          Report(step, 3);
          AfterStep(step);
        }));
}

void Rank::Apply(int64_t step) {
  RankMemory& memory = *at_.memory;
  // The tags of its arrays say what they have.
  if (memory.applied >= step && !options_.forgets_tags) return;
  memory.value = Mix(memory.value, step);
  memory.applied = step;
  if (memory.value != ValueAfter(step)) {
    base()->checker.Fail(
        Invariant::kNothingTwice,
        absl::StrCat("the memory of ", name(), " is not what step ", step, " makes of it"));
  }
}

bool Rank::SaveIsDue(int64_t step) const {
  return at_.checkpoint_every > 0 && step > 0 && step % at_.checkpoint_every == 0;
}

void Rank::AfterStep(int64_t step) {
  step_ = step;
  const bool stop = step >= at_.steps || at_.collective->drain_step.value_or(step + 1) <= step;
  const auto go_on = [this, step, stop] {
    if (!stop) return Begin(step + 1);
    Leave(absl::OkStatus(), std::nullopt);
  };
  if (at_.checkpoint_every == 0 || (!stop && !SaveIsDue(step))) return go_on();
  Meet(
      [this, step] {
        RunTruth& truth = base()->checker.run(at_.run);
        if (at_.generation >= truth.generation) truth.checkpoint = step;
      },
      go_on);
}

void Rank::Report(int64_t step, int tries) {
  if (at_.rank != 0 && !base()->random.Percent(20)) return;
  v1::ReportStatsRequest request;
  request.set_job(at_.job);
  request.set_generation(at_.generation);
  request.set_rank(at_.rank);
  request.set_incarnation(incarnation_);
  request.set_step(step);
  if (at_.rank == 0) {
    request.set_checkpoint_step(base()->checker.run(at_.run).checkpoint);
    request.add_progress()->set_step(step);
  }
  const std::weak_ptr<Process> self = weak_from_this();
  server_->Call<bool>(
      at_.host,
      [request, checker = &base()->checker](Facade& facade) -> absl::StatusOr<bool> {
        const absl::Status status = facade.ReportStats(request);
        if (!status.ok()) return status;
        checker->Reported(request);
        return true;
      },
      [self, this, step, tries](const absl::StatusOr<bool>& done) {
        if (self.expired() || !alive() || tries <= 1 || !absl::IsUnavailable(done.status())) return;
        Later(absl::Milliseconds(200),
              InGeneration([this, step, tries] { Report(step, tries - 1); }));
      });
}

void Rank::OnBroken(int rank, const absl::Status& why) {
  if (state_ == State::kWaiting || state_ == State::kLeaving) return;
  base()->trace.Add(name(), " is broken: ", why.ToString());
  if (!at_.can_recover) return Leave(why, rank);
  at_.collective->Gone(at_.rank);
  state_ = State::kWaiting;
  broken_.emplace();
  broken_->set_code(static_cast<int>(why.code()));
  broken_->set_message(std::string(why.message()));
  broken_->set_blamed_rank(rank);
  v1::AttendRequest message;
  *message.mutable_broken() = *broken_;
  stream_->Send(std::move(message));
}

void Rank::Leave(const absl::Status& status, std::optional<int> blamed) {
  if (status.ok()) {
    at_.collective->Done(at_.rank);
  } else {
    at_.collective->Gone(at_.rank);
  }
  state_ = State::kLeaving;
  leave_.emplace();
  leave_->set_code(static_cast<int>(status.code()));
  leave_->set_message(std::string(status.message()));
  if (blamed.has_value()) leave_->set_blamed_rank(*blamed);
  SendLeave();
}

void Rank::SendLeave() {
  v1::AttendRequest message;
  *message.mutable_leave() = *leave_;
  stream_->Send(std::move(message));
}

void Rank::Crash(const absl::Status& error) {
  if (state_ == State::kLeaving) return;
  if (stream_ == nullptr) return Exit(1);
  Leave(error, std::nullopt);
}

void Rank::JobEnded() { Kill(); }

void Rank::Kill() {
  if (!alive()) return;
  Die();
  at_.collective->Gone(at_.rank);
  if (stream_ != nullptr) stream_->Drop();
}

void Rank::Exit(int code) {
  base()->trace.Add(name(), " exits with ", code);
  Kill();
  exited_(code);
}

}  // namespace tessera::simulation
