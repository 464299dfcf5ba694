#include "tests/simulation/people.h"

#include "absl/strings/str_cat.h"
#include "coordinator/job.h"

namespace tessera::simulation {
namespace {

std::string BornAt(const v1::Job& job) {
  return absl::StrCat(job.create_time().seconds(), ".", job.create_time().nanos());
}

bool AskAgain(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

}  // namespace

void People::Insist(const std::string& what, Act act, Answered answered) {
  ++unanswered_;
  server_->Call<v1::Job>("", act, [this, what, act, answered](absl::StatusOr<v1::Job> job) {
    --unanswered_;
    base_->trace.Add("operator: ", what, ": ", job.status().ToString());
    if (job.ok()) return answered(*job);
    if (!AskAgain(job.status())) return;
    ++unanswered_;
    base_->events.After(absl::Milliseconds(300), [this, what, act, answered] {
      --unanswered_;
      Insist(what, act, answered);
    });
  });
}

void People::Ask(const PlannedJobRequest& asked) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = asked.spec;
  request.set_request_id(NextId());
  ++asked_[asked.spec.name()];
  const Act act = [request](Facade& facade) { return facade.CreateJob(request); };
  Insist(absl::StrCat("create ", asked.spec.name()), act, [this, asked, act](const v1::Job& job) {
    Created(asked, "", job);
    if (asked.asks_twice) Repeat(absl::StrCat("create ", job.name(), " again"), act, job);
  });
}

void People::Created(const PlannedJobRequest& asked, const std::string&, const v1::Job& job) {
  acknowledged_[job.name()] = BornAt(job);
  if (asked.cancel.has_value()) {
    base_->events.After(*asked.cancel, [this, name = job.name(), again = asked.asks_twice] {
      Cancel(name, NextId(), again);
    });
  }
  if (asked.drain.has_value()) {
    base_->events.After(*asked.drain, [this, name = job.name(), again = asked.asks_twice] {
      Drain(name, NextId(), again);
    });
  }
}

void People::Cancel(const std::string& name, const std::string& id, bool again) {
  v1::CancelJobRequest request;
  request.set_name(name);
  request.set_reason("no longer wanted");
  request.set_request_id(id);
  const Act act = [request](Facade& facade) { return facade.CancelJob(request); };
  Insist(absl::StrCat("cancel ", name), act, [this, name, act, again](const v1::Job& job) {
    cancelled_[name] = BornAt(job);
    if (again) Repeat(absl::StrCat("cancel ", name, " again"), act, job);
  });
}

void People::Drain(const std::string& name, const std::string& id, bool again) {
  v1::DrainJobRequest request;
  request.set_name(name);
  request.set_request_id(id);
  const Act act = [request](Facade& facade) { return facade.DrainJob(request); };
  Insist(absl::StrCat("drain ", name), act, [this, name, act, again](const v1::Job& job) {
    drained_[name] = BornAt(job);
    if (again) Repeat(absl::StrCat("drain ", name, " again"), act, job);
  });
}

// A second call with the same id is answered as the first, and changes nothing.
void People::Repeat(const std::string& what, Act act, const v1::Job& first) {
  base_->events.After(
      base_->random.Delay(absl::ZeroDuration(), absl::Seconds(2)), [this, what, act, first] {
        Insist(what, act, [this, what, first](const v1::Job& job) {
          if (BornAt(job) == BornAt(first)) return;
          base_->checker.Fail(Invariant::kRequestsKept,
                              absl::StrCat(what, ": acted on the job of ", BornAt(job),
                                           ", at first on that of ", BornAt(first)));
        });
      });
}

void People::Look() {
  if (!server_->up()) return;
  const auto fail = [this](const v1::Job& job, absl::string_view what) {
    base_->checker.Fail(Invariant::kRequestsKept,
                        absl::StrCat(job.name(), " ", what, ": ", job.ShortDebugString()));
  };
  for (const auto& [name, born] : acknowledged_) {
    const absl::StatusOr<v1::GetJobResponse> got = server_->facade()->GetJob(name);
    if (!got.ok()) {
      if (absl::IsUnavailable(got.status())) continue;
      v1::Job lost;
      lost.set_name(name);
      fail(lost, absl::StrCat("was acknowledged and is not there: ", got.status().ToString()));
      continue;
    }
    const v1::Job& job = got->job();
    if (seen_[name].state() != job.state() || seen_[name].generation() != job.generation()) {
      base_->trace.Add("job ", job.ShortDebugString());
    }
    base_->checker.Saw(job);
    seen_[name] = job;
    lives_[name].insert(BornAt(job));
    if (static_cast<int64_t>(lives_[name].size()) > asked_[name]) {
      fail(job, absl::StrCat("was created more often than the ", asked_[name], " times asked for"));
    }
    const auto cancelled = cancelled_.find(name);
    if (cancelled != cancelled_.end() && cancelled->second == BornAt(job) && !IsEnd(job.state())) {
      fail(job, "was cancelled and lives");
    }
    const auto drained = drained_.find(name);
    if (drained != drained_.end() && drained->second == BornAt(job) && !IsEnd(job.state()) &&
        !job.draining()) {
      fail(job, "was drained and goes on");
    }
  }
}

bool People::AllEnded() {
  if (unanswered_ > 0 || !server_->up()) return false;
  for (const auto& [name, born] : acknowledged_) {
    const auto seen = seen_.find(name);
    if (seen == seen_.end() || !IsEnd(seen->second.state())) return false;
  }
  return true;
}

std::string People::Unfinished() {
  std::string text = absl::StrCat(unanswered_, " requests without an answer");
  for (const auto& [name, job] : seen_) {
    if (!IsEnd(job.state())) absl::StrAppend(&text, "; ", job.ShortDebugString());
  }
  return text;
}

std::map<v1::JobState, int64_t> People::Ends() const {
  std::map<v1::JobState, int64_t> ends;
  for (const auto& [name, job] : seen_) ++ends[job.state()];
  return ends;
}

}  // namespace tessera::simulation
