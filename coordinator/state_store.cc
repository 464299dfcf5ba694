#include "coordinator/state_store.h"

#include <algorithm>

namespace tessera {
namespace {

void DropJob(int64_t id, StoredState* state) {
  state->jobs.erase(id);
  state->members.erase(id);
  state->events.erase(id);
  state->stats.erase(id);
}

void DropOldest(StoredEvents* events) {
  while (static_cast<int64_t>(events->size()) > kMaxStoredEvents) events->erase(events->begin());
}

}  // namespace

bool StateChange::empty() const {
  return jobs.empty() && progress.empty() && erased_jobs.empty() && new_generations.empty() &&
         members.empty() && events.empty() && stats.empty() && requests.empty() &&
         erased_requests.empty() && last_generations.empty() && last_job_id == 0;
}

void MergeChange(StateChange newer, StateChange* into) {
  into->durable = into->durable || newer.durable;
  for (auto& [id, job] : newer.jobs) {
    into->jobs[id] = std::move(job);
    into->progress.erase(id);
  }
  for (auto& [id, job] : newer.progress) {
    const auto whole = into->jobs.find(id);
    (whole == into->jobs.end() ? into->progress[id] : whole->second.job) = std::move(job);
  }
  for (const int64_t id : newer.new_generations) {
    into->new_generations.insert(id);
    into->members.erase(id);
  }
  for (auto& [id, members] : newer.members) {
    for (auto& [index, member] : members) into->members[id][index] = std::move(member);
  }
  for (auto& [id, events] : newer.events) {
    StoredEvents& all = into->events[id];
    all.merge(events);
    DropOldest(&all);
  }
  for (auto& [id, stats] : newer.stats) into->stats[id] = std::move(stats);
  for (const std::string& id : newer.erased_requests) {
    into->erased_requests.insert(id);
    into->requests.erase(id);
  }
  for (auto& [id, request] : newer.requests) into->requests[id] = std::move(request);
  for (const auto& [name, last] : newer.last_generations) into->last_generations[name] = last;
  into->last_job_id = std::max(into->last_job_id, newer.last_job_id);
  // Ids are never used again, so that nothing of such a job can come later.
  for (const int64_t id : newer.erased_jobs) {
    into->erased_jobs.insert(id);
    into->jobs.erase(id);
    into->progress.erase(id);
    into->new_generations.erase(id);
    into->members.erase(id);
    into->events.erase(id);
    into->stats.erase(id);
  }
}

void ApplyChange(const StateChange& change, StoredState* state) {
  for (const auto& [id, job] : change.jobs) state->jobs[id] = job;
  for (const auto& [id, job] : change.progress) {
    const auto whole = state->jobs.find(id);
    if (whole != state->jobs.end()) whole->second.job = job;
  }
  for (const int64_t id : change.new_generations) state->members.erase(id);
  for (const auto& [id, members] : change.members) {
    for (const auto& [index, member] : members) state->members[id][index] = member;
  }
  for (const auto& [id, events] : change.events) {
    StoredEvents& all = state->events[id];
    for (const auto& [cursor, event] : events) all[cursor] = event;
    DropOldest(&all);
  }
  for (const auto& [id, stats] : change.stats) state->stats[id] = stats;
  for (const std::string& id : change.erased_requests) state->requests.erase(id);
  for (const auto& [id, request] : change.requests) state->requests[id] = request;
  for (const auto& [name, last] : change.last_generations) state->last_generations[name] = last;
  state->last_job_id = std::max(state->last_job_id, change.last_job_id);
  for (const int64_t id : change.erased_jobs) DropJob(id, state);
}

}  // namespace tessera
