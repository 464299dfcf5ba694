// Incidents: what is noted, who is told, and how people list them.
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "coordinator/coordinator.h"
#include "coordinator/proto_time.h"

namespace tessera {
namespace {

constexpr int kIncidentsPage = 100;
constexpr int kMaxIncidentsPage = 1000;

}  // namespace

absl::StatusOr<v1::ListIncidentsResponse> Coordinator::ListIncidents(
    const v1::ListIncidentsRequest& request) {
  if (request.page_size() < 0) {
    return InvalidField("page_size", "is negative; give 0 for 100 incidents a page");
  }
  // A token is the number of the last incident on its page.
  int64_t after = 0;
  if (!request.page_token().empty() &&
      (!absl::SimpleAtoi(request.page_token(), &after) || after <= 0)) {
    return InvalidField("page_token", "does not come from a page; start again with an empty one");
  }
  const bool usual = request.page_size() == 0 || request.page_size() > kMaxIncidentsPage;
  MutexLock lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(request.job()));
  IncidentLog::Page page =
      job->observer.incidents().Read(after, usual ? kIncidentsPage : request.page_size());
  v1::ListIncidentsResponse response;
  if (page.more) response.set_next_page_token(absl::StrCat(page.incidents.back().number()));
  for (v1::Incident& incident : page.incidents) *response.add_incidents() = std::move(incident);
  return response;
}

void CoordinatorCore::HearPositionLocked(const RankId& rank, const v1::AttendRequest& message) {
  const v1::Position* position = nullptr;
  if (message.has_heartbeat()) position = &message.heartbeat().position();
  if (message.has_broken()) position = &message.broken().position();
  JobEntry* job = position == nullptr ? nullptr : LiveLocked(rank.job);
  if (job != nullptr) job->observer.Position(rank.rank, *position, members_.now());
}

void CoordinatorCore::NoteLocked(JobEntry& job, v1::Incident incident) {
  SetTimestamp(options_.clock->WallNow(), incident.mutable_time());
  incident.set_generation(job.lifecycle.proto().generation());
  incident.set_step(job.lifecycle.proto().step());
  TellIncidentLocked(job, job.observer.Keep(std::move(incident), members_.now()));
}

void CoordinatorCore::TellIncidentLocked(JobEntry& job, const v1::Incident& incident) {
  v1::WatchJobResponse event;
  *event.mutable_incident() = incident;
  KeepEventLocked(job, std::move(event));
  LaterLocked([events = job.events] { events->Wake(); });
}

void CoordinatorCore::NoteLossLocked(JobEntry& job, Blame& blame) {
  const Generation* generation = members_.FindGeneration(job.lifecycle.proto().name());
  const bool known = blame.rank.has_value() && generation != nullptr &&
                     *blame.rank < static_cast<int>(generation->ranks.size());
  const std::string host = known ? generation->HostOf(*blame.rank).name : "";
  v1::Incident incident = job.observer.Explain(blame, host, members_.now());
  NoteLocked(job, std::move(incident));
}

void CoordinatorCore::NoteOutcomeLocked(JobEntry& job, const std::string& what) {
  const std::optional<v1::Incident> ended = job.observer.EndLoss(what, members_.now());
  if (ended.has_value()) TellIncidentLocked(job, *ended);
}

void CoordinatorCore::CheckStragglersLocked(JobEntry& job) {
  const Generation* generation = members_.FindGeneration(job.lifecycle.proto().name());
  if (generation == nullptr || !generation->live) return;
  const auto host_of = [&](int rank) { return generation->HostOf(rank).name; };
  for (v1::Incident& incident : job.observer.Advance(members_.now(), host_of)) {
    if (incident.number() > 0) {
      TellIncidentLocked(job, incident);
    } else {
      NoteLocked(job, std::move(incident));
    }
  }
}

}  // namespace tessera
