#include "coordinator/job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/proto_time.h"

namespace tessera {
namespace {

constexpr char kDrained[] = "DRAINED";

bool IsAllowed(v1::JobState from, v1::JobState to) {
  switch (to) {
    case v1::SEALED:
      return from == v1::DRAFT;
    case v1::FORMING:
      return from == v1::SEALED;
    case v1::RUNNING:
      return from == v1::FORMING || from == v1::RECOVERING;
    case v1::RECOVERING:
      return from == v1::RUNNING || from == v1::RECOVERING;
    case v1::SUCCEEDED:
      return from == v1::RUNNING;
    case v1::FAILED:
    case v1::CANCELLED:
      return !IsEnd(from);
    default:
      return false;
  }
}

}  // namespace

bool IsEnd(v1::JobState state) {
  return state == v1::SUCCEEDED || state == v1::FAILED || state == v1::CANCELLED;
}

JobLifecycle::JobLifecycle(std::string name, int64_t steps, absl::Time created) {
  job_.set_name(std::move(name));
  job_.set_state(v1::DRAFT);
  job_.set_steps(steps);
  SetTimestamp(created, job_.mutable_create_time());
}

absl::Status JobLifecycle::MoveTo(v1::JobState next) {
  if (!IsAllowed(job_.state(), next)) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job_.name(), " is ", v1::JobState_Name(job_.state()),
                     " and cannot become ", v1::JobState_Name(next)));
  }
  job_.set_state(next);
  job_.clear_reason();
  return absl::OkStatus();
}

void JobLifecycle::End(std::string code, std::string reason, absl::Time ended) {
  job_.set_reason_code(std::move(code));
  job_.set_reason(std::move(reason));
  SetTimestamp(ended, job_.mutable_end_time());
}

absl::Status JobLifecycle::Seal() { return MoveTo(v1::SEALED); }

absl::Status JobLifecycle::Form() { return MoveTo(v1::FORMING); }

absl::Status JobLifecycle::Run() { return MoveTo(v1::RUNNING); }

absl::Status JobLifecycle::Succeed(absl::Time ended) {
  TESSERA_RETURN_IF_ERROR(MoveTo(v1::SUCCEEDED));
  End("", "", ended);
  return absl::OkStatus();
}

absl::Status JobLifecycle::Fail(const Blame& blame, absl::Time ended) {
  TESSERA_RETURN_IF_ERROR(MoveTo(v1::FAILED));
  End(absl::StatusCodeToString(blame.code), blame.reason, ended);
  if (blame.rank.has_value()) job_.set_failed_rank(*blame.rank);
  return absl::OkStatus();
}

absl::Status JobLifecycle::Cancel(absl::StatusCode code, std::string reason, absl::Time ended) {
  TESSERA_RETURN_IF_ERROR(MoveTo(v1::CANCELLED));
  End(absl::StatusCodeToString(code), std::move(reason), ended);
  return absl::OkStatus();
}

absl::Status JobLifecycle::Recover(std::string reason, bool lost) {
  TESSERA_RETURN_IF_ERROR(MoveTo(v1::RECOVERING));
  job_.set_reason(std::move(reason));
  if (lost) job_.set_recoveries(job_.recoveries() + 1);
  return absl::OkStatus();
}

absl::Status JobLifecycle::Drain() {
  if (job_.state() != v1::RUNNING && job_.state() != v1::RECOVERING) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job_.name(), " is ", v1::JobState_Name(job_.state()), ", which cannot be drained"));
  }
  job_.set_draining(true);
  if (job_.state() == v1::RUNNING)
    job_.set_reason("is drained: it stops after the step that it is in");
  return absl::OkStatus();
}

absl::Status JobLifecycle::EndDrained(std::string reason, absl::Time ended) {
  TESSERA_RETURN_IF_ERROR(MoveTo(v1::CANCELLED));
  End(kDrained, std::move(reason), ended);
  return absl::OkStatus();
}

bool JobLifecycle::drained() const {
  return job_.state() == v1::CANCELLED && job_.reason_code() == kDrained;
}

void JobLifecycle::SetReason(std::string reason) {
  if (!ended()) job_.set_reason(std::move(reason));
}

void JobLifecycle::SetGeneration(int64_t generation, int world_size) {
  job_.set_generation(std::max(job_.generation(), static_cast<int32_t>(generation)));
  job_.set_world_size(world_size);
}

void JobLifecycle::SetStep(int64_t step) { job_.set_step(std::max(job_.step(), step)); }

void JobLifecycle::SetCheckpointStep(int64_t step) {
  job_.set_checkpoint_step(std::max(job_.checkpoint_step(), step));
}

}  // namespace tessera
