// A job's plan on one world size, ready to be handed out: headers without units, units in pages,
// and each rank's assignment. Made once, outside any lock, and then only read.
//
//   TESSERA_ASSIGN_OR_RETURN(auto planned, PlannedJob::Create(resolved, /*world_size=*/2));
//   TESSERA_ASSIGN_OR_RETURN(auto page, planned->SerializedPage(""));   same bytes for every rank
//
// Thread-safety: immutable.
#ifndef TESSERA_COORDINATOR_PLANNED_JOB_H_
#define TESSERA_COORDINATOR_PLANNED_JOB_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/job_planner.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/membership_service.pb.h"
#include "tessera/v1/plan_service.pb.h"

namespace tessera {

// Of the units in one message. A unit that is larger goes alone.
inline constexpr int64_t kMaxPageBytes = 1 << 20;

class PlannedJob {
 public:
  // INVALID_ARGUMENT: as PlanJob.
  static absl::StatusOr<std::shared_ptr<const PlannedJob>> Create(const v1::JobSpec& resolved,
                                                                  int world_size);
  PlannedJob(std::string job, JobPlan planned);

  int world_size() const { return planned_.layout.world_size(); }
  int unit_count() const { return planned_.plan.units_size(); }
  const JobPlan& planned() const { return planned_; }

  // Plan, layout and forecast without the units.
  v1::GetPlanResponse Header() const;

  // A serialized ListUnitsResponse. INVALID_ARGUMENT (field page_token): not "" and not from an
  // earlier page of this layout.
  absl::StatusOr<std::shared_ptr<const std::string>> SerializedPage(absl::string_view token) const;

  // At most `page_size` units (0: as many as fit) and at most kMaxPageBytes. INVALID_ARGUMENT: as
  // SerializedPage, or a negative page_size.
  absl::StatusOr<v1::ListPlanUnitsResponse> Page(int page_size, absl::string_view token) const;

  // What the agent of host `host`, of those called `host_names`, is told: what all are told, and
  // its own part.
  v1::FormHost Form(const v1::JobSpec& resolved, int64_t generation, int host,
                    const std::vector<std::string>& host_names) const;
  v1::FormHost FormOfAll(const v1::JobSpec& resolved, int64_t generation,
                         const std::vector<std::string>& host_names) const;
  v1::FormHost FormOfHost(int64_t generation, int host) const;

  // What one rank maps: its own file and its host's.
  int64_t ForecastBytes(int rank) const;

 private:
  std::string Token(int unit) const;
  absl::StatusOr<int> FirstUnit(absl::string_view token) const;
  // One past the last unit of a page that begins with `first`.
  int PageEnd(int first, int page_size) const;

  const std::string job_;
  const JobPlan planned_;
  v1::Plan plan_header_;
  v1::Layout layout_header_;
  std::map<int, std::shared_ptr<const std::string>> pages_;  // by first unit
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_PLANNED_JOB_H_
