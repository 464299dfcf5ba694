// What the job file says of single parameters of the optimizer (optimizer.groups), and of which
// norm its gradients are clipped by.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto groups, ParameterGroups::Create(job.optimizer()));
//   const ParameterSettings settings = groups.SettingsOf(unit.parameters(p));
//
// Thread-safety: values.
#ifndef TESSERA_COMMON_PARAMETER_GROUPS_H_
#define TESSERA_COMMON_PARAMETER_GROUPS_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fqn_pattern.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// How the optimizer treats one parameter.
struct ParameterSettings {
  double lr_scale = 1;
  // Absent: the optimizer's, on parameters of two or more dimensions.
  std::optional<double> weight_decay;
};

class ParameterGroups {
 public:
  // INVALID_ARGUMENT, with the field: a group without a pattern, or with a number out of range.
  static absl::StatusOr<ParameterGroups> Create(const v1::OptimizerSpec& optimizer);

  // Of the first group that matches one of the parameter's names.
  ParameterSettings SettingsOf(const v1::UnitParameter& parameter) const;

  // INVALID_ARGUMENT (optimizer.groups[i].pattern): group i is the first to match of no parameter.
  absl::Status CheckUsed(const v1::Plan& plan) const;

 private:
  struct Group {
    FqnPattern pattern;
    ParameterSettings settings;
  };

  static bool Matches(const Group& group, const v1::UnitParameter& parameter);
  // Index of the first that matches; -1: none.
  int Find(const v1::UnitParameter& parameter) const;

  std::vector<Group> groups_;
};

// The p of optimizer.clip_norm_type, infinity for "inf", 2 where it is absent. INVALID_ARGUMENT
// (optimizer.clip_norm_type): it is neither "inf" nor a finite number of 1 or more.
absl::StatusOr<double> NormTypeOf(const v1::OptimizerSpec& optimizer);

}  // namespace tessera

#endif  // TESSERA_COMMON_PARAMETER_GROUPS_H_
