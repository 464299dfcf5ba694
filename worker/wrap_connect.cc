// WrapBuilder::Connect: from the socket of the agent to a rank that may announce modules.
#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "common/process_env.h"
#include "common/status_macros.h"
#include "worker/draft_rank.h"
#include "worker/wrap_builder.h"

namespace tessera {
namespace {

// The agent sends the handoff as soon as it has started all its workers.
constexpr absl::Duration kHandoffTimeout = absl::Seconds(60);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);

WrapBuilder::World WorldOf(const v1::AgentHello& hello, MembershipClient* membership) {
  const v1::Assignment& assignment = hello.assignment();
  const absl::Duration timeout = absl::Seconds(hello.spec().timeouts().form().seconds()) +
                                 absl::Nanoseconds(hello.spec().timeouts().form().nanos());
  v1::AnnounceModuleRequest request;
  request.set_job(assignment.job());
  request.set_generation(assignment.generation());
  request.set_rank(assignment.rank());
  request.set_incarnation(hello.incarnation());
  v1::ChangeModelDTypeRequest change;
  change.set_job(assignment.job());
  change.set_generation(assignment.generation());
  change.set_rank(assignment.rank());
  change.set_incarnation(hello.incarnation());
  WrapBuilder::World world;
  world.rank = assignment.rank();
  world.world_size = assignment.world_size();
  world.spec = hello.spec();
  world.announce = [=](const v1::ModuleAnnouncement& announcement) {
    v1::AnnounceModuleRequest announced = request;
    *announced.mutable_announcement() = announcement;
    return membership->AnnounceModule(announced, timeout);
  };
  world.change_dtype = [=](int number, const std::string& dtype) {
    v1::ChangeModelDTypeRequest changed = change;
    changed.set_number(number);
    changed.set_dtype(dtype);
    return membership->ChangeModelDType(changed, timeout);
  };
  return world;
}

absl::Status JoinRank(DraftRank& rank) {
  const v1::AgentHello& hello = rank.handoff.hello;
  v1::JoinRank join;
  join.set_job(hello.assignment().job());
  join.set_generation(hello.assignment().generation());
  join.set_rank(hello.assignment().rank());
  join.set_incarnation(hello.incarnation());
  join.set_pid(getpid());
  const absl::Duration timeout = absl::Seconds(hello.spec().timeouts().form().seconds()) +
                                 absl::Nanoseconds(hello.spec().timeouts().form().nanos());
  return rank.membership->JoinRank(
      join, timeout, [relay = rank.relay](const absl::Status& status) { relay->End(status); });
}

}  // namespace

absl::StatusOr<std::shared_ptr<WrapBuilder>> WrapBuilder::Connect(Options options) {
  TESSERA_ASSIGN_OR_RETURN(const ProcessEnv env, ProcessEnv::Read());
  if (!env.agent_fd.has_value()) {
    return absl::FailedPreconditionError(
        "no agent started this process; run it with `tessera-worker --coordinator=HOST:PORT -- "
        "PROGRAM`");
  }
  auto rank = std::make_unique<DraftRank>();
  TESSERA_ASSIGN_OR_RETURN(rank->handoff, ReceiveHandoff(UniqueFd(*env.agent_fd), kHandoffTimeout));
  rank->relay = std::make_shared<EndRelay>(std::move(options.on_end));
  rank->membership = CreateMembershipClient(rank->handoff.hello.coordinator());
  absl::Status status = JoinRank(*rank);
  if (status.ok() && !rank->handoff.hello.draft()) {
    status = absl::FailedPreconditionError(
        "this program builds its model, and the job gives one; set model.built of the job in place "
        "of it");
  }
  if (!status.ok()) {
    rank->membership->Leave(status, std::nullopt, kLeaveTimeout);
    return status;
  }
  auto builder =
      std::make_shared<WrapBuilder>(WorldOf(rank->handoff.hello, rank->membership.get()));
  BuiltRank::Give(std::move(rank), *builder);
  return builder;
}

}  // namespace tessera
