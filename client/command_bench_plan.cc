// tessera bench plan: how long a plan of a generated model takes on this machine.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/bench_model.h"
#include "client/command.h"
#include "client/text_table.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/status_macros.h"
#include "coordinator/job_planner.h"

namespace tessera {
namespace {

struct BenchPlanFlags {
  int64_t modules = 100'000;
  int runs = 3;
  int world_size = 8;
  std::string wrap = "size";
  std::shared_ptr<ClientFlags> client = std::make_shared<ClientFlags>();
};

absl::Status Check(const BenchPlanFlags& flags) {
  constexpr int64_t kMostModules = 10'000'000;
  if (flags.modules < 2 || flags.modules > kMostModules) {
    return InvalidField("--modules",
                        absl::StrCat("is ", flags.modules, "; give 2 to ", kMostModules));
  }
  if (flags.runs < 1 || flags.runs > 1'000) {
    return InvalidField("--runs", absl::StrCat("is ", flags.runs, "; give 1 to 1000"));
  }
  if (flags.world_size < 1 || flags.world_size > kMaxWorkers) {
    return InvalidField("--world_size",
                        absl::StrCat("is ", flags.world_size, "; give 1 to ", kMaxWorkers));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::JobSpec> BenchJob(const BenchPlanFlags& flags) {
  v1::JobSpec spec;
  spec.set_name("bench");
  *spec.mutable_model()->mutable_spec() = BenchModel(flags.modules);
  spec.mutable_wrap()->set_policy(flags.wrap);
  // Each block is a unit, whichever of the two says so.
  if (flags.wrap == "size") spec.mutable_wrap()->set_min_params(kBenchBlockNumel);
  if (flags.wrap == "class") spec.mutable_wrap()->add_wrap_classes("Block");
  return ResolveJobSpec(std::move(spec));
}

// The median of the runs, from the model in memory to plan, layout and forecast.
absl::StatusOr<nlohmann::json> Measure(const BenchPlanFlags& flags) {
  TESSERA_RETURN_IF_ERROR(Check(flags));
  TESSERA_ASSIGN_OR_RETURN(const v1::JobSpec resolved, BenchJob(flags));
  std::vector<double> seconds;
  int units = 0;
  for (int run = 0; run < flags.runs; ++run) {
    const absl::Time start = absl::Now();
    TESSERA_ASSIGN_OR_RETURN(const JobPlan planned, PlanJob(resolved, flags.world_size));
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
    units = planned.plan.units_size();
  }
  const auto middle = seconds.begin() + static_cast<int64_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return nlohmann::json{{"modules", flags.modules}, {"units", units}, {"plan_seconds", *middle}};
}

int RunBenchPlan(const BenchPlanFlags& flags) {
  const absl::StatusOr<nlohmann::json> result = Measure(flags);
  if (!result.ok()) return Report(result.status());
  if (flags.client->json()) {
    Print(absl::StrCat(result->dump(), "\n"));
    return 0;
  }
  Print(absl::StrFormat("%s modules, %s units: planned in %.4f s\n",
                        WithThousands(result->at("modules").get<int64_t>()),
                        WithThousands(result->at("units").get<int64_t>()),
                        result->at("plan_seconds").get<double>()));
  return 0;
}

}  // namespace

void AddBenchPlanCommand(CLI::App& bench, Command* chosen) {
  CLI::App* plan = bench.add_subcommand("plan", "Plan, layout and forecast of a generated model");
  auto flags = std::make_shared<BenchPlanFlags>();
  plan->add_option("--modules", flags->modules, "of the model [100000]");
  plan->add_option("--wrap", flags->wrap, "size, class, always, none or annotated [size]");
  plan->add_option("--world_size", flags->world_size, "ranks [8]");
  plan->add_option("--runs", flags->runs, "the median counts [3]");
  AddOutputFlag(*plan, flags->client);
  plan->callback([=] { *chosen = [=] { return RunBenchPlan(*flags); }; });
}

}  // namespace tessera
