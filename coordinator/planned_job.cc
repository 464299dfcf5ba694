#include "coordinator/planned_job.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "coordinator/mesh.h"

namespace tessera {
namespace {

v1::Plan WithoutUnits(const v1::Plan& plan) {
  v1::Plan header;
  header.set_plan_fingerprint(plan.plan_fingerprint());
  *header.mutable_orphans() = plan.orphans();
  *header.mutable_ignored() = plan.ignored();
  *header.mutable_notes() = plan.notes();
  header.set_model_name(plan.model_name());
  return header;
}

template <typename Page>
void AddUnits(const JobPlan& planned, int first, int end, Page* page) {
  for (int unit = first; unit < end; ++unit) {
    *page->add_units() = planned.plan.units(unit);
    *page->add_layouts() = planned.layout.units(unit);
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const PlannedJob>> PlannedJob::Create(const v1::JobSpec& resolved,
                                                                     int world_size) {
  TESSERA_ASSIGN_OR_RETURN(JobPlan planned, PlanJob(resolved, world_size));
  return std::make_shared<const PlannedJob>(resolved.name(), std::move(planned));
}

PlannedJob::PlannedJob(std::string job, JobPlan planned)
    : job_(std::move(job)), planned_(std::move(planned)) {
  plan_header_ = WithoutUnits(planned_.plan);
  layout_header_ = planned_.layout;
  layout_header_.clear_units();
  int first = 0;
  do {
    const int end = PageEnd(first, 0);
    v1::ListUnitsResponse page;
    AddUnits(planned_, first, end, &page);
    if (end < unit_count()) page.set_next_page_token(Token(end));
    pages_[first] = std::make_shared<const std::string>(page.SerializeAsString());
    first = end;
  } while (first < unit_count());
}

v1::GetPlanResponse PlannedJob::Header() const {
  v1::GetPlanResponse header;
  *header.mutable_plan() = plan_header_;
  *header.mutable_layout() = layout_header_;
  *header.mutable_forecast() = planned_.forecast;
  header.set_unit_count(unit_count());
  return header;
}

std::string PlannedJob::Token(int unit) const {
  return absl::StrCat(job_, "/", planned_.layout.layout_fingerprint(), "/", unit);
}

absl::StatusOr<int> PlannedJob::FirstUnit(absl::string_view token) const {
  if (token.empty()) return 0;
  absl::string_view rest = token;
  int unit = 0;
  if (!absl::ConsumePrefix(&rest,
                           absl::StrCat(job_, "/", planned_.layout.layout_fingerprint(), "/")) ||
      !absl::SimpleAtoi(rest, &unit) || unit <= 0 || unit >= unit_count() || Token(unit) != token) {
    return InvalidField(
        "page_token", absl::StrCat("does not come from a page of the present layout of job ", job_,
                                   "; start again with an empty one"));
  }
  return unit;
}

int PlannedJob::PageEnd(int first, int page_size) const {
  int64_t bytes = 0;
  int unit = first;
  for (; unit < unit_count(); ++unit) {
    if (page_size > 0 && unit - first >= page_size) break;
    // Tags and lengths of the two entries take at most 12 bytes.
    bytes += 12 + static_cast<int64_t>(planned_.plan.units(unit).ByteSizeLong() +
                                       planned_.layout.units(unit).ByteSizeLong());
    if (bytes > kMaxPageBytes && unit > first) break;
  }
  return unit;
}

absl::StatusOr<std::shared_ptr<const std::string>> PlannedJob::SerializedPage(
    absl::string_view token) const {
  TESSERA_ASSIGN_OR_RETURN(const int first, FirstUnit(token));
  const auto found = pages_.find(first);
  if (found == pages_.end()) {
    return InvalidField("page_token", "comes from ListPlanUnits; give one that ListUnits returned");
  }
  return found->second;
}

absl::StatusOr<v1::ListPlanUnitsResponse> PlannedJob::Page(int page_size,
                                                           absl::string_view token) const {
  if (page_size < 0) {
    return InvalidField("page_size", "is negative; give 0 for as many units as fit");
  }
  TESSERA_ASSIGN_OR_RETURN(const int first, FirstUnit(token));
  const int end = PageEnd(first, page_size);
  v1::ListPlanUnitsResponse page;
  AddUnits(planned_, first, end, &page);
  if (end < unit_count()) page.set_next_page_token(Token(end));
  return page;
}

v1::FormHost PlannedJob::Form(const v1::JobSpec& resolved, int64_t generation, int host,
                              const std::vector<std::string>& host_names) const {
  v1::FormHost form = FormOfAll(resolved, generation, host_names);
  form.MergeFrom(FormOfHost(generation, host));
  return form;
}

v1::FormHost PlannedJob::FormOfAll(const v1::JobSpec& resolved, int64_t generation,
                                   const std::vector<std::string>& host_names) const {
  v1::FormHost form;
  form.set_job(job_);
  form.set_generation(generation);
  *form.mutable_spec() = resolved;
  *form.mutable_layout() = layout_header_;
  if (host_names.size() > 1) form.mutable_host_names()->Add(host_names.begin(), host_names.end());
  return form;
}

v1::FormHost PlannedJob::FormOfHost(int64_t generation, int host) const {
  v1::FormHost form;
  form.set_host(host);
  const v1::Layout& layout = planned_.layout;
  const Mesh mesh = MeshOf(layout);
  const int first = host * mesh.local_world_size;
  for (int rank = first; rank < first + mesh.RanksOf(host); ++rank) {
    v1::Assignment* assignment = form.add_assignments();
    assignment->set_job(job_);
    assignment->set_generation(generation);
    assignment->set_rank(rank);
    assignment->set_world_size(world_size());
    assignment->set_shard_index(rank % layout.shard_count());
    assignment->set_replica_index(rank / layout.shard_count());
    assignment->set_local_rank_start(first);
    assignment->set_local_world_size(mesh.RanksOf(host));
    assignment->set_plan_fingerprint(planned_.plan.plan_fingerprint());
    assignment->set_layout_fingerprint(layout.layout_fingerprint());
    *form.add_rank_forecasts() = planned_.forecast.ranks(rank);
  }
  if (host < planned_.forecast.hosts_size())
    *form.mutable_host_forecast() = planned_.forecast.hosts(host);
  return form;
}

int64_t PlannedJob::ForecastBytes(int rank) const {
  int64_t bytes = 0;
  if (rank < planned_.forecast.ranks_size()) bytes += planned_.forecast.ranks(rank).mapped_bytes();
  const int host = MeshOf(planned_.layout).HostOf(rank);
  if (host < planned_.forecast.hosts_size()) bytes += planned_.forecast.hosts(host).mapped_bytes();
  return bytes;
}

}  // namespace tessera
