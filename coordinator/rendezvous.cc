#include "coordinator/rendezvous.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// "rank 0 had not published the communicator ids of group 1 of job gpt".
std::string Unpublished(const std::string& job, int first_rank, size_t group) {
  return absl::StrCat("rank ", first_rank, " had not published the communicator ids of group ",
                      group, " of job ", job);
}

absl::Status CheckId(absl::string_view field, const std::string& id) {
  if (!id.empty() && id.size() <= Rendezvous::kMaxIdBytes) return absl::OkStatus();
  return InvalidField(
      field, absl::StrCat("has ", id.size(), " bytes; give 1 to ", Rendezvous::kMaxIdBytes));
}

}  // namespace

void Rendezvous::Begin(const std::string& job, int64_t generation,
                       std::vector<std::vector<int>> groups) {
  Generation& begun = generations_[job];
  begun = Generation();
  begun.number = generation;
  for (std::vector<int>& ranks : groups) begun.groups.emplace_back().ranks = std::move(ranks);
}

void Rendezvous::End(const std::string& job, absl::string_view why) {
  const auto found = generations_.find(job);
  if (found == generations_.end()) return;
  for (size_t index = 0; index < found->second.groups.size(); ++index) {
    Group& group = found->second.groups[index];
    for (auto& [rank, waiter] : group.waiters) {
      Give(waiter, WithReason(absl::AbortedError(absl::StrCat(
                                  "generation ", found->second.number, " has ended (", why,
                                  ") and ", Unpublished(job, group.ranks.front(), index))),
                              "GENERATION_ENDED"));
    }
  }
  generations_.erase(found);
}

absl::StatusOr<Rendezvous::Group*> Rendezvous::Find(const Caller& caller) {
  const auto found = generations_.find(caller.job);
  if (found == generations_.end() || found->second.number != caller.generation) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat("generation ", caller.generation, " of job ",
                                                   caller.job, " is not the present one")),
        "STALE_GENERATION");
  }
  std::vector<Group>& groups = found->second.groups;
  if (caller.group < 0 || caller.group >= static_cast<int>(groups.size())) {
    return InvalidField("group", absl::StrCat("is ", caller.group, "; job ", caller.job,
                                              " has groups 0 to ", groups.size() - 1));
  }
  return &groups[caller.group];
}

absl::Status Rendezvous::Publish(const Caller& caller, const v1::CommunicatorIds& ids) {
  TESSERA_ASSIGN_OR_RETURN(Group * group, Find(caller));
  if (caller.rank != group->ranks.front()) {
    return InvalidField("rank", absl::StrCat("is ", caller.rank, "; rank ", group->ranks.front(),
                                             " publishes the ids of group ", caller.group));
  }
  if (!ids.host_links().empty()) {
    TESSERA_RETURN_IF_ERROR(CheckId("ids.host_links", ids.host_links()));
  } else {
    TESSERA_RETURN_IF_ERROR(CheckId("ids.unshard_id", ids.unshard_id()));
    TESSERA_RETURN_IF_ERROR(CheckId("ids.reduce_id", ids.reduce_id()));
  }
  if (!group->ids.has_value()) {
    group->ids = ids;
    for (auto& [rank, waiter] : group->waiters) Give(waiter, ids);
    group->waiters.clear();
    return absl::OkStatus();
  }
  if (group->ids->unshard_id() == ids.unshard_id() && group->ids->reduce_id() == ids.reduce_id() &&
      group->ids->host_links() == ids.host_links()) {
    return absl::OkStatus();
  }
  return WithReason(absl::AlreadyExistsError(absl::StrCat(
                        "rank ", caller.rank, " has published other communicator ids of group ",
                        caller.group, " of job ", caller.job, "; ids are made once a generation")),
                    "IDS_PUBLISHED");
}

absl::Status Rendezvous::Fetch(const Caller& caller, absl::Time now, absl::Duration timeout,
                               Done done) {
  TESSERA_ASSIGN_OR_RETURN(Group * group, Find(caller));
  if (std::find(group->ranks.begin(), group->ranks.end(), caller.rank) == group->ranks.end()) {
    return InvalidField("rank",
                        absl::StrCat("is ", caller.rank, ", which is not in group ", caller.group));
  }
  Waiter waiter{now + timeout, timeout, std::move(done)};
  if (group->ids.has_value()) {
    Give(waiter, *group->ids);
    return absl::OkStatus();
  }
  if (const auto earlier = group->waiters.find(caller.rank); earlier != group->waiters.end()) {
    Give(earlier->second, absl::AbortedError(absl::StrCat("rank ", caller.rank,
                                                          " has asked again for its group's "
                                                          "communicator ids")));
  }
  group->waiters.insert_or_assign(caller.rank, std::move(waiter));
  return absl::OkStatus();
}

void Rendezvous::Expire(absl::Time now) {
  for (auto& [job, generation] : generations_) {
    for (size_t index = 0; index < generation.groups.size(); ++index) {
      Group& group = generation.groups[index];
      for (auto it = group.waiters.begin(); it != group.waiters.end();) {
        Waiter& waiter = it->second;
        if (now < waiter.deadline) {
          ++it;
          continue;
        }
        Give(waiter, absl::DeadlineExceededError(
                         absl::StrCat("after ", absl::FormatDuration(waiter.timeout), " ",
                                      Unpublished(job, group.ranks.front(), index))));
        it = group.waiters.erase(it);
      }
    }
  }
}

void Rendezvous::Give(Waiter& waiter, absl::StatusOr<v1::CommunicatorIds> ids) {
  answers_.push_back({std::move(waiter.done), std::move(ids)});
}

std::vector<Rendezvous::Answer> Rendezvous::TakeAnswers() { return std::exchange(answers_, {}); }

}  // namespace tessera
