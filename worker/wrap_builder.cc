#include "worker/wrap_builder.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "worker/draft_rank.h"

namespace tessera {
namespace {

// The rest of a message of which the first byte is there.
constexpr absl::Duration kHandoffTimeout = absl::Seconds(60);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);

}  // namespace

WrapBuilder::WrapBuilder(World world) : world_(std::move(world)) {}

WrapBuilder::~WrapBuilder() {
  if (line_ == nullptr) return;
  absl::Status why;
  {
    MutexLock lock(mutex_);
    why = error_;
  }
  if (why.ok()) {
    why = absl::CancelledError(absl::StrCat(
        "the program of rank ", rank(),
        complete() ? " did not join its session" : " ended before it wrapped the root"));
  }
  line_->membership->Leave(why, std::nullopt, kLeaveTimeout);
}

absl::Status WrapBuilder::ChangeDType(DType dtype) {
  TESSERA_RETURN_IF_ERROR(CheckOpen());
  int number = 0;
  {
    MutexLock lock(mutex_);
    number = dtype_changes_ + 1;
  }
  TESSERA_RETURN_IF_ERROR(Note(world_.change_dtype(number, DTypeName(dtype))));
  kept_.Round(dtype);
  MutexLock lock(mutex_);
  dtype_changes_ = number;
  return absl::OkStatus();
}

bool WrapBuilder::complete() const {
  MutexLock lock(mutex_);
  return complete_;
}

absl::Status WrapBuilder::CheckOpen() const {
  if (!complete()) return absl::OkStatus();
  return WithReason(absl::FailedPreconditionError(
                        "the root is wrapped, which fixed the plan; wrap the root last"),
                    "PLAN_SEALED");
}

absl::Status WrapBuilder::Note(absl::Status status) {
  MutexLock lock(mutex_);
  error_ = status;
  return status;
}

absl::StatusOr<std::unique_ptr<DraftRank>> BuiltRank::Take(WrapBuilder& builder) {
  if (!builder.complete()) {
    return absl::FailedPreconditionError(
        "the root is not wrapped; give Wrap or AutoWrap the module \"\" in a scope of EnableWrap");
  }
  if (builder.line_ == nullptr) {
    return absl::FailedPreconditionError("a session has taken what was built already");
  }
  return std::move(builder.line_);
}

void BuiltRank::Give(std::unique_ptr<DraftRank> line, WrapBuilder& builder) {
  builder.line_ = std::move(line);
}

absl::Status AwaitFiles(DraftRank& rank) {
  const int socket = rank.handoff.agent_socket.get();
  // No deadline of its own: the coordinator has one for ranks that build and one for ranks that
  // form, and a coordinator or agent that is gone ends the wait too.
  pollfd entries[] = {{socket, POLLIN, 0}, {rank.relay->fd(), POLLIN, 0}};
  while (poll(entries, 2, -1) < 0 && errno == EINTR) {
  }
  if (entries[0].revents == 0) return rank.relay->status();
  TESSERA_ASSIGN_OR_RETURN(rank.handoff,
                           ReceiveHandoff(std::move(rank.handoff.agent_socket), kHandoffTimeout));
  if (!rank.handoff.hello.draft()) return absl::OkStatus();
  return absl::InternalError("the agent handed out no files; is it of the same build?");
}

}  // namespace tessera
