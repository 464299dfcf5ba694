// Any bytes as a job file, planned at several world sizes: refused on one line, or a layout in
// which every parameter lies once, within its unit, and the shards make up the unit.
#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/job_spec.h"
#include "coordinator/explain.h"
#include "coordinator/job_planner.h"
#include "tests/fuzz/fuzz_check.h"

namespace tessera {
namespace {

// A builtin model is as large as its fields say: a plan of 10,000 layers finds nothing that one of
// 8 does not.
constexpr int64_t kMaxLayers = 8;

void CheckPlan(const JobPlan& planned, int world_size) {
  CheckThat(planned.plan.units_size() == planned.layout.units_size(), "each unit has a layout");
  for (int i = 0; i < planned.plan.units_size(); ++i) {
    const v1::Unit& unit = planned.plan.units(i);
    const v1::UnitLayout& layout = planned.layout.units(i);
    CheckThat(!unit.has_enclosing_unit() || unit.enclosing_unit() > i, "children come first");
    CheckThat(unit.param_dtype() != v1::DTYPE_UNSPECIFIED &&
                  unit.reduce_dtype() != v1::DTYPE_UNSPECIFIED &&
                  unit.gradient_dtype() != v1::DTYPE_UNSPECIFIED &&
                  unit.unsynced_gradient_dtype() != v1::DTYPE_UNSPECIFIED,
              "every dtype is set");
    CheckThat(layout.shard_numel() * world_size == layout.padded_numel(),
              "the shards make up the unit");
    CheckThat(unit.parameters_size() == layout.parameters_size(), "each parameter has a place");
    int64_t end = 0;
    for (int p = 0; p < unit.parameters_size(); ++p) {
      CheckThat(layout.parameters(p).offset() >= end, "parameters do not overlap");
      end = layout.parameters(p).offset() + unit.parameters(p).numel();
    }
    CheckThat(end <= layout.padded_numel(), "parameters lie within their unit");
  }
}

void PlanBytes(absl::string_view json) {
  const auto job = ParseJobSpec(json, "job.json");
  if (!job.ok()) return;
  const auto resolved = ResolveJobSpec(*job);
  if (!resolved.ok() || resolved->model().layers() > kMaxLayers) return;
  for (const int world_size : {1, 2, 7}) {
    const auto planned = PlanJob(*resolved, world_size);
    CheckAnswer(planned.status());
    if (!planned.ok()) return;
    CheckPlan(*planned, world_size);
    CheckAnswer(CheckRunnable(*resolved, *planned));
  }
  for (const char* fqn : {"", "a", "layers.0", "h.0"}) {
    CheckAnswer(ExplainModule(*resolved, fqn).status());
  }
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::PlanBytes({reinterpret_cast<const char*>(data), size});
  return 0;
}
