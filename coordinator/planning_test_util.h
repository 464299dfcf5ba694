// What tests of the planning core share: jobs from a few words of JSON, and plans by hand.
#ifndef TESSERA_COORDINATOR_PLANNING_TEST_UTIL_H_
#define TESSERA_COORDINATOR_PLANNING_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job_spec.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// {"name":"j", MORE}, resolved.
inline v1::JobSpec TestJob(const std::string& more = "") {
  auto spec =
      ParseJobSpec(absl::StrCat(R"({"name":"j")", more.empty() ? "" : ",", more, "}"), "job.json");
  EXPECT_TRUE(spec.ok()) << spec.status();
  if (!spec.ok()) return {};
  auto resolved = ResolveJobSpec(*std::move(spec));
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return resolved.ok() ? *std::move(resolved) : v1::JobSpec();
}

// No padding within units, and slots.
inline constexpr char kTightSlots[] =
    R"("wrap":{"param_align_bytes":0,"shard_align_bytes":0},"memory":{"unshard":"slots"})";

// A float32 unit of one parameter.
inline v1::Unit* AddTestUnit(const std::string& fqn, int64_t numel, int enclosing, v1::Plan* plan) {
  v1::Unit* unit = plan->add_units();
  unit->set_fqn(fqn);
  unit->set_numel(numel);
  unit->set_original_dtype(v1::FLOAT32);
  unit->set_param_dtype(v1::FLOAT32);
  unit->set_reduce_dtype(v1::FLOAT32);
  if (enclosing >= 0) unit->set_enclosing_unit(enclosing);
  v1::UnitParameter* parameter = unit->add_parameters();
  parameter->set_fqn(fqn.empty() ? "w" : absl::StrCat(fqn, ".w"));
  parameter->set_numel(numel);
  parameter->set_requires_grad(true);
  return unit;
}

// Units "a" and "b" in a root.
inline v1::Plan ThreeUnits(int64_t a, int64_t b, int64_t root) {
  v1::Plan plan;
  plan.set_plan_fingerprint("p");
  AddTestUnit("a", a, 2, &plan);
  AddTestUnit("b", b, 2, &plan);
  AddTestUnit("", root, -1, &plan);
  return plan;
}

// "OFFSET+BYTES@LEVEL" for each slot.
inline std::vector<std::string> SlotShapes(
    const google::protobuf::RepeatedPtrField<v1::Slot>& slots) {
  std::vector<std::string> lines;
  for (const v1::Slot& slot : slots) {
    lines.push_back(absl::StrCat(slot.offset_bytes(), "+", slot.bytes(), "@",
                                 slot.has_level()  ? absl::StrCat(slot.level())
                                 : slot.has_unit() ? absl::StrCat("unit ", slot.unit())
                                                   : "spare"));
  }
  return lines;
}

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_PLANNING_TEST_UTIL_H_
