// tessera bench control: a coordinator under the members of one large job.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/bench_control.h"
#include "client/command.h"
#include "client/local_cluster.h"
#include "client/text_table.h"
#include "common/byte_count.h"
#include "common/errors.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

struct BenchControlFlags {
  std::vector<int> workers = {1000};
  ControlBenchOptions options;
  int64_t seconds = 10;
  std::shared_ptr<ClientFlags> client = std::make_shared<ClientFlags>();
};

absl::StatusOr<std::vector<ControlFigures>> Measure(const BenchControlFlags& flags) {
  ControlBenchOptions options = flags.options;
  options.steady = absl::Seconds(flags.seconds);
  TESSERA_ASSIGN_OR_RETURN(options.coordinator, FindSiblingProgram(OwnDirectory(), "coordinator",
                                                                   "tessera-coordinator"));
  std::vector<ControlFigures> all;
  for (const int workers : flags.workers) {
    options.workers = workers;
    TESSERA_ASSIGN_OR_RETURN(const ControlFigures figures, BenchControl(options));
    all.push_back(figures);
  }
  return all;
}

nlohmann::ordered_json Json(const ControlFigures& figures) {
  return {{"workers", figures.workers},
          {"connections", figures.connections},
          {"units", figures.units},
          {"form_seconds", figures.form_seconds},
          {"coordinator_cpu_seconds", figures.coordinator_cpu_seconds},
          {"coordinator_peak_rss_bytes", absl::StrCat(figures.coordinator_peak_rss_bytes)},
          {"steady_core_fraction", figures.steady_core_fraction},
          {"get_plan_p99_seconds", figures.get_plan_p99_seconds},
          {"hosts", figures.hosts},
          {"heartbeats_per_second", figures.heartbeats_per_second},
          {"reports_per_second", figures.reports_per_second}};
}

// One value is one object; several are compared in results.
std::string JsonDocument(const std::vector<ControlFigures>& all) {
  if (all.size() == 1) return absl::StrCat(Json(all[0]).dump(), "\n");
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const ControlFigures& figures : all) results.push_back(Json(figures));
  return absl::StrCat(nlohmann::ordered_json{{"results", results}}.dump(), "\n");
}

std::string Growth(double now, double before) {
  return before > 0 ? absl::StrFormat("x%.1f", now / before) : "-";
}

std::string ControlTable(const std::vector<ControlFigures>& all) {
  TextTable table({{"WORKERS"},
                   {"CONN"},
                   {"FORM s"},
                   {"GROWTH"},
                   {"CPU s"},
                   {"PEAK RSS"},
                   {"STEADY core"},
                   {"GetPlan p99 ms"}});
  for (size_t i = 0; i < all.size(); ++i) {
    const ControlFigures& figures = all[i];
    table.AddRow({absl::StrCat(figures.workers), absl::StrCat(figures.connections),
                  absl::StrFormat("%.3f", figures.form_seconds),
                  i == 0 ? "-" : Growth(figures.form_seconds, all[i - 1].form_seconds),
                  absl::StrFormat("%.2f", figures.coordinator_cpu_seconds),
                  FormatByteCount(figures.coordinator_peak_rss_bytes),
                  absl::StrFormat("%.3f", figures.steady_core_fraction),
                  absl::StrFormat("%.1f", figures.get_plan_p99_seconds * 1e3)});
  }
  return absl::StrCat(
      table.ToString(), "\nEach worker listed the ", all[0].units,
      " units of Llama-3.1-405B. FORM: from the first join\nto the last start; CPU: the "
      "coordinator's in that time. GROWTH: against the row\nbefore. STEADY: with a heartbeat a "
      "second of each member and the reports of its\nworkers.\n");
}

int RunBenchControl(const BenchControlFlags& flags) {
  const absl::StatusOr<std::vector<ControlFigures>> all = Measure(flags);
  if (!all.ok()) return Report(all.status());
  Print(flags.client->json() ? JsonDocument(*all) : ControlTable(*all));
  return 0;
}

}  // namespace

void AddBenchControlCommand(CLI::App& bench, Command* chosen) {
  CLI::App* control =
      bench.add_subcommand("control", "A coordinator under many simulated workers of one job");
  auto flags = std::make_shared<BenchControlFlags>();
  control
      ->add_option("--workers", flags->workers, "of the job; several: one after the other [1000]")
      ->delimiter(',');
  control->add_option("--connections", flags->options.connections,
                      "that the workers' streams are dealt out to [100]");
  control->add_option("--seconds", flags->seconds, "of steady load [10]");
  control->add_option("--plan_calls", flags->options.plan_calls,
                      "of GetPlan under that load [200]");
  AddOutputFlag(*control, flags->client);
  control->callback([=] { *chosen = [=] { return RunBenchControl(*flags); }; });
}

}  // namespace tessera
