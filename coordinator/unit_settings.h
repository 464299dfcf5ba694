// What each unit is told: the job's settings, the module's own wrap_config over them, and what
// wrap.overrides says over both, setting by setting.
//
//   TESSERA_ASSIGN_OR_RETURN(UnitSettings settings, UnitSettings::Create(index, resolved, choice));
//   TESSERA_RETURN_IF_ERROR(settings.Apply(module, &unit));
#ifndef TESSERA_COORDINATOR_UNIT_SETTINGS_H_
#define TESSERA_COORDINATOR_UNIT_SETTINGS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model_spec.h"
#include "coordinator/fqn_matcher.h"
#include "coordinator/wrap_policy.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

class UnitSettings {
 public:
  // All arguments must outlive it. INVALID_ARGUMENT: an entry of wrap.overrides is no pattern.
  static absl::StatusOr<UnitSettings> Create(const ModelIndex& index, const v1::JobSpec& resolved,
                                             const WrapChoice& choice);

  // From unit->original_dtype: param_dtype, reduce_dtype, gradient_dtype, unsynced_gradient_dtype,
  // input_dtype and overrides; and buffer_dtype of its buffers. INVALID_ARGUMENT: a dtype is
  // unknown, or a strategy that the job's does not go with; the message names where it is said.
  absl::Status Apply(int module, v1::Unit* unit);

  // INVALID_ARGUMENT: an entry of wrap.overrides has matched no unit that Apply was called for.
  absl::Status CheckAllUsed() const;

  // Where a unit's settings other than the job's come from, in the order in which they are taken.
  struct Source {
    std::string name;  // "its wrap_config", "wrap.overrides[0] (\"layers.*\")"
    v1::WrapConfig config;
  };
  std::vector<Source> SourcesOf(int module, const std::string& unit_fqn);

 private:
  UnitSettings(const ModelIndex& index, const v1::JobSpec& resolved, const WrapChoice& choice,
               FqnMatcher matcher)
      : index_(index), job_(resolved), choice_(choice), matcher_(std::move(matcher)) {}
  v1::MixedPrecisionSpec BaseOf(int module) const;
  absl::Status CheckStrategy(const Source& source, int module) const;

  const ModelIndex& index_;
  const v1::JobSpec& job_;
  const WrapChoice& choice_;
  FqnMatcher matcher_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_UNIT_SETTINGS_H_
