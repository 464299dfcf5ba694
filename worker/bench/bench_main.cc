// tessera-bench: what `tessera bench` starts. Prints one JSON document.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/exit_code.h"
#include "common/instruction_set.h"
#include "worker/bench/collective_bench.h"

namespace tessera {
namespace {

// Insertion order is the order that people read.
using Json = nlohmann::ordered_json;

Json ToJson(const BenchResult& result, const CollectiveBenchOptions& options) {
  Json json = {{"op", result.op}};
  const auto add_if_set = [&](const char* key, const std::string& value) {
    if (!value.empty()) json[key] = value;
  };
  add_if_set("mode", result.mode);
  add_if_set("original_dtype", result.original_dtype);
  add_if_set("param_dtype", result.param_dtype);
  add_if_set("reduce_dtype", result.reduce_dtype);
  json["world_size"] = options.world_size;
  json["bytes"] = absl::StrCat(result.bytes);
  json["runs"] = options.runs;
  json["median_seconds"] = result.median_seconds;
  json["p99_seconds"] = result.p99_seconds;
  json["bare_loop_median_seconds"] = result.bare_loop_median_seconds;
  json["bare_loop_ratio"] = result.median_seconds / result.bare_loop_median_seconds;
  if (result.bytes > 0) {
    json["memcpy_median_seconds"] = result.memcpy_median_seconds;
    json["algbw_gbps"] = static_cast<double>(result.bytes) / result.median_seconds / 1e9;
  }
  if (result.waiting_core_fraction.has_value()) {
    json["waiting_core_fraction"] = *result.waiting_core_fraction;
  }
  return json;
}

int Main(int argc, char** argv) {
  CollectiveBenchOptions options;
  CLI::App app("Measures this host's data path. `tessera bench` starts it.");
  app.require_subcommand(1);
  CLI::App* collective = app.add_subcommand("collective", "the data path's operations");
  collective->add_option("--world_size", options.world_size)->check(CLI::Range(1, 64));
  collective->add_option("--unit_bytes", options.unit_bytes)->delimiter(',');
  collective->add_option("--runs", options.runs)->check(CLI::Range(1, 10'000));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::StatusOr<std::vector<BenchResult>> results = RunCollectiveBench(options);
  if (!results.ok()) {
    fprintf(stderr, "tessera-bench: %s\n", std::string(results.status().message()).c_str());
    return ExitCode(results.status());
  }
  Json document = {{"instruction_set", InstructionSetName(WidestInstructionSet())},
                   {"results", Json::array()}};
  for (const BenchResult& result : *results) {
    document["results"].push_back(ToJson(result, options));
  }
  printf("%s\n", document.dump(2).c_str());
  return fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
