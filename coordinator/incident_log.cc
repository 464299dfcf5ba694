#include "coordinator/incident_log.h"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

bool Before(const v1::Incident& incident, int64_t number) { return incident.number() < number; }

}  // namespace

int64_t IncidentLog::Add(v1::Incident incident) {
  incident.set_number(last_number_ + 1);
  Restore(std::move(incident));
  return last_number_;
}

void IncidentLog::Restore(v1::Incident incident) {
  if (incident.number() <= last_number_) return;
  last_number_ = incident.number();
  incidents_.push_back(std::move(incident));
  if (static_cast<int64_t>(incidents_.size()) > max_incidents_) incidents_.pop_front();
}

const v1::Incident* IncidentLog::SetOutcome(int64_t number, const std::string& outcome) {
  const auto found = std::lower_bound(incidents_.begin(), incidents_.end(), number, Before);
  if (found == incidents_.end() || found->number() != number) return nullptr;
  found->set_outcome(outcome);
  return &*found;
}

const v1::Incident* IncidentLog::Find(int64_t number) const {
  const auto found = std::lower_bound(incidents_.begin(), incidents_.end(), number, Before);
  return found == incidents_.end() || found->number() != number ? nullptr : &*found;
}

IncidentLog::Page IncidentLog::Read(int64_t after, int64_t limit) const {
  Page page;
  auto at = std::lower_bound(incidents_.begin(), incidents_.end(), after + 1, Before);
  for (; at != incidents_.end() && static_cast<int64_t>(page.incidents.size()) < limit; ++at) {
    page.incidents.push_back(*at);
  }
  page.more = at != incidents_.end();
  return page;
}

}  // namespace tessera
