#include "tests/simulation/checker.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/job.h"

namespace tessera::simulation {
namespace {

std::string Who(const MemberView& view) {
  if (view.rank < 0) return absl::StrCat("agent ", view.incarnation, " on ", view.host);
  return absl::StrCat("rank ", view.rank, " (", view.incarnation, ") of generation ",
                      view.generation, " of ", view.job);
}

std::string TimeOf(const v1::Job& job) {
  return absl::StrCat(job.create_time().seconds(), ".", job.create_time().nanos());
}

}  // namespace

absl::string_view Name(Invariant invariant) {
  switch (invariant) {
    case Invariant::kOneOwner:
      return "one owner of a rank";
    case Invariant::kGenerationsGrow:
      return "generations grow";
    case Invariant::kEveryJobEnds:
      return "every job ends";
    case Invariant::kNothingLost:
      return "no committed step is lost";
    case Invariant::kNothingTwice:
      return "no step is done twice";
    case Invariant::kRequestsKept:
      return "requests are kept and act once";
    case Invariant::kRealCulprit:
      return "a failed job names a real culprit";
    case Invariant::kEndIsLast:
      return "a generation's end is its last word";
    case Invariant::kNothingLeaks:
      return "nothing leaks";
  }
  return "?";
}

void Checker::Fail(Invariant invariant, std::string what) {
  if (!violation_.has_value()) violation_ = Violation{invariant, std::move(what)};
}

void Checker::Sent(const std::shared_ptr<MemberView>& view, const v1::AttendResponse& message) {
  const auto late = [&](absl::string_view why) {
    Fail(Invariant::kEndIsLast,
         absl::StrCat(Who(*view), " ", why, ": ", message.ShortDebugString()));
  };
  if (view->closed) return late("was sent something after its stream was closed");
  if (message.has_welcome()) return;
  if (message.has_end()) {
    if (view->ended && view->rank >= 0) late("was told of its end twice");
    const bool over = IsEnd(message.end().state());
    // An agent stays with its job while that recovers.
    if (over || view->rank >= 0) view->ended = true;
    if (over && view->rank < 0) view->job.clear();
    if (view->rank >= 0) {
      ended_[view->job] = std::max(ended_[view->job], view->generation);
      Over(view);
    }
    return;
  }
  if (view->ended) return late("was sent something after its end");
  if (message.has_form_host()) {
    view->job = message.form_host().job();
    view->generation = message.form_host().generation();
    return SentForm(message.form_host());
  }
  if (view->rank >= 0 && view->generation <= ended_[view->job]) late("is of an ended generation");
  if (message.has_drain() && message.drain().resize()) Resized(view->job);
}

void Checker::SentForm(const v1::FormHost& form) {
  const std::string what =
      absl::StrCat(form.layout().world_size(), " ranks, ", form.recover() ? "again" : "anew");
  std::map<int64_t, std::string>& formed = formed_[form.job()];
  const auto [known, added] = formed.emplace(form.generation(), what);
  if (!added && known->second != what) {
    Fail(Invariant::kGenerationsGrow,
         absl::StrCat("generation ", form.generation(), " of ", form.job(),
                      " was formed twice: ", known->second, "; ", what));
  }
  if (formed.rbegin()->first > form.generation() || form.generation() <= ended_[form.job()]) {
    Fail(Invariant::kGenerationsGrow,
         absl::StrCat("generation ", form.generation(), " of ", form.job(), " was formed after ",
                      std::max(formed.rbegin()->first, ended_[form.job()])));
  }
  if (added) hosts_of_[form.job()] = {{}, now_()};
}

void Checker::Accepted(const std::shared_ptr<MemberView>& view) {
  if (view->rank < 0) {
    if (!view->job.empty()) hosts_of_[view->job].hosts.insert(view->host);
    return;
  }
  std::shared_ptr<MemberView>& owner = owners_[{view->job, view->rank}];
  if (owner != nullptr && owner->incarnation != view->incarnation) {
    Fail(Invariant::kOneOwner, absl::StrCat(Who(*view), " was accepted beside ", Who(*owner)));
  }
  owner = view;
  hosts_of_[view->job].hosts.insert(view->host);
}

void Checker::Over(const std::shared_ptr<MemberView>& view) {
  const auto owner = owners_.find({view->job, view->rank});
  if (owner != owners_.end() && owner->second == view) owners_.erase(owner);
}

void Checker::Reported(const v1::ReportStatsRequest& request) {
  if (request.generation() <= ended_[request.job()]) {
    Fail(Invariant::kOneOwner,
         absl::StrCat("a report of rank ", request.rank(), " of the ended generation ",
                      request.generation(), " of ", request.job(), " was taken"));
  }
}

bool Checker::HostsWereLost(const std::string& job) const {
  if (forgot_) return true;
  const auto before = hosts_began_.find(job);
  if (before == hosts_began_.end()) return true;
  return std::any_of(before->second.hosts.begin(), before->second.hosts.end(),
                     [&](const std::string& host) {
                       const auto fault = host_faults_.find(host);
                       // What happened while the generation formed counts as well.
                       return fault != host_faults_.end() &&
                              fault->second >= before->second.time - absl::Seconds(30);
                     });
}

void Checker::Began(const std::string& run, const std::string& job, int64_t generation,
                    bool recover, bool resumes, int64_t step) {
  RunTruth& truth = runs_[run];
  const std::string who = absl::StrCat("generation ", generation, " of ", job);
  if (generation < truth.generation) return;  // an old one that nobody hears any more
  if (recover && step < truth.committed) {
    Fail(Invariant::kNothingLost,
         absl::StrCat(who, " goes on after step ", step, "; committed were ", truth.committed));
  } else if (recover && step > truth.committed) {
    Fail(Invariant::kNothingTwice, absl::StrCat(who, " goes on after step ", step,
                                                "; committed were only ", truth.committed));
  } else if (!recover && step < truth.committed && resized_.count(job) == 0 &&
             !HostsWereLost(job)) {
    Fail(Invariant::kNothingLost,
         absl::StrCat(who, " starts anew after step ", step, ", though ", truth.committed,
                      " are committed and no host was lost"));
  } else if (!recover && resumes && step != truth.checkpoint) {
    Fail(Invariant::kNothingLost, absl::StrCat(who, " starts after step ", step,
                                               "; its checkpoint is of ", truth.checkpoint));
  }
  truth.generation = generation;
  truth.committed = step;
  hosts_began_[job] = hosts_of_[job];
  resized_.erase(job);
}

void Checker::Committed(const std::string& run, int64_t generation, int64_t step) {
  RunTruth& truth = runs_[run];
  if (generation < truth.generation) return;
  if (step != truth.committed + 1) {
    Fail(step <= truth.committed ? Invariant::kNothingTwice : Invariant::kNothingLost,
         absl::StrCat(run, " commits step ", step, " after ", truth.committed));
  }
  truth.committed = step;
}

void Checker::Saw(const v1::Job& job) {
  v1::Job& before = jobs_[job.name()];
  if (TimeOf(before) == TimeOf(job)) {
    if (IsEnd(before.state()) && before.state() != job.state()) {
      Fail(Invariant::kRequestsKept,
           absl::StrCat(job.name(), " was ", v1::JobState_Name(before.state()), " and is ",
                        v1::JobState_Name(job.state())));
    }
  }
  // 0: it has taken the name and has none yet.
  if (before.generation() > job.generation() && job.generation() > 0) {
    Fail(Invariant::kGenerationsGrow,
         absl::StrCat(job.name(), " showed generation ", before.generation(), " and now shows ",
                      job.generation()));
  }
  const bool news = TimeOf(before) != TimeOf(job) || before.state() != job.state();
  const int32_t generation = std::max(before.generation(), job.generation());
  before = job;
  before.set_generation(generation);
  if (news && job.state() == v1::FAILED) CheckCulprit(job);
}

void Checker::CheckCulprit(const v1::Job& job) {
  if (forgot_) return;  // it may have run to its end before, and its hosts have gone
  const std::string said =
      absl::StrCat(job.name(), " failed: ", job.reason_code(), ": ", job.reason());
  if (job.reason().empty() || job.reason_code().empty()) {
    return Fail(Invariant::kRealCulprit, absl::StrCat(said, "(no reason)"));
  }
  const auto mentioned = [&job](const std::string& host) {
    return absl::StrContains(job.reason(), absl::StrCat("host ", host));
  };
  bool host_fault = false;
  for (const auto& [host, time] : host_faults_) host_fault = host_fault || mentioned(host);
  if (job.has_failed_rank()) {
    if (rank_faults_.count({job.name(), job.failed_rank()}) == 0 && !host_fault) {
      Fail(Invariant::kRealCulprit, absl::StrCat(said, " (that rank did nothing wrong)"));
    }
  } else if (!absl::StrContains(job.reason(), "missing") &&
             !absl::StrContains(job.reason(), "joined") && !host_fault) {
    Fail(Invariant::kRealCulprit, absl::StrCat(said, " (nothing happened to what it names)"));
  }
}

}  // namespace tessera::simulation
