// The model of a job that is DRAFT: its ranks build it, and announce each module that they have
// completed (worker/wrap.h). What has been announced is planned at once; the units in it are
// sealed.
//
//   Draft draft(resolved, /*world_size=*/2);
//   TESSERA_ASSIGN_OR_RETURN(const auto answer, draft.Announce(/*rank=*/0, announcement));
//   ... each rank slices the values of answer.units by answer.layouts and drops the rest ...
//   if (draft.complete()) {
//     TESSERA_ASSIGN_OR_RETURN(const v1::JobSpec sealed, draft.Seal());
//     TESSERA_ASSIGN_OR_RETURN(JobPlan planned, PlanJob(sealed, 2));
//     TESSERA_RETURN_IF_ERROR(draft.CheckSealed(planned.plan, planned.layout));
//   }
//
// Rules:
//   - every rank announces the same; the first to announce is whom the others must agree with. The
//     order of announcements may differ between ranks, but for a module's after those in it and a
//     change of dtype's place among them;
//   - an announcement that is repeated gets the answer that it got, so a lost answer does no harm;
//     one that is refused leaves nothing behind;
//   - a sealed unit never changes: neither what it holds nor how it is cut. What is tied to it
//     later is refused;
//   - a change of dtype (pytorch #91192) resolves the dtypes of what is sealed again;
//   - sealed units are left out of what a later policy counts.
//
// Pure; values of parameters never come here.
#ifndef TESSERA_COORDINATOR_DRAFT_H_
#define TESSERA_COORDINATOR_DRAFT_H_

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/draft_planning.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera {

class Draft {
 public:
  // `resolved`: of a job with model.built.
  Draft(v1::JobSpec resolved, int world_size);

  // Errors: as MembershipService.AnnounceModule.
  absl::StatusOr<v1::AnnounceModuleResponse> Announce(int rank,
                                                      const v1::ModuleAnnouncement& announcement);
  // Errors: as MembershipService.ChangeModelDType.
  absl::Status ChangeDType(int rank, int number, absl::string_view dtype);

  // Every rank has announced the root.
  bool complete() const { return static_cast<int>(finished_.size()) == world_size_; }
  bool finished(int rank) const { return finished_.count(rank) > 0; }

  // The job with the model that was built and its units as annotations. FAILED_PRECONDITION: not
  // complete.
  absl::StatusOr<v1::JobSpec> Seal() const;
  // Whether the job's plan has the units that were sealed, each cut as the ranks were told.
  // INTERNAL: it has not; names the unit.
  absl::Status CheckSealed(const v1::Plan& plan, const v1::Layout& layout) const;

 private:
  struct Record {
    v1::ModuleAnnouncement announcement;
    int rank = 0;  // the first
    v1::AnnounceModuleResponse answer;
  };

  // Whether a rank may add an announcement that no other has made.
  absl::Status CheckNew(int rank, const v1::ModuleAnnouncement& announcement) const;
  absl::Status CheckPlaces(const v1::ModuleAnnouncement& announcement) const;
  // Whether the rank has announced all that others had before their change of dtype `number`.
  absl::Status CheckChange(int rank, int number, const std::string& dtype) const;
  absl::StatusOr<SealedUnits> Plan(const v1::ModuleAnnouncement& announcement,
                                   v1::Module* annotated) const;
  absl::Status ApplyDType(const std::string& dtype);
  void Keep(const v1::ModuleAnnouncement& announcement, const SealedUnits& units,
            const v1::Module& annotated);

  const v1::JobSpec resolved_;
  const int world_size_;
  // By FQN, in the order in which a rank announces them (a module that AutoWrap left as it is may
  // be wrapped later), and how many of them each rank has announced.
  std::map<std::string, std::vector<Record>> records_;
  std::map<std::pair<int, std::string>, size_t> announced_;
  std::vector<std::string> dtypes_;  // that the model was changed to
  std::map<int, size_t> changes_;    // how many of them, by rank
  std::set<int> finished_;
  // The units with parameters, all of them, and which has a parameter or a tied one.
  std::map<std::string, SealedUnit> units_;
  std::set<std::string> unit_fqns_;
  std::map<std::string, std::string> unit_of_parameter_;
  // Annotated subtrees of the sealed units that no other encloses.
  std::map<std::string, v1::Module> modules_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_DRAFT_H_
