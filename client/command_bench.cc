// tessera bench: figures of this machine.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/child_process.h"
#include "client/command.h"
#include "client/local_cluster.h"
#include "client/text_table.h"
#include "common/byte_count.h"
#include "common/errors.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// For the largest sizes on a loaded machine; the ranks give up on each other long before.
constexpr absl::Duration kLongestBench = absl::Minutes(30);

struct BenchFlags {
  int world_size = 2;
  int runs = 41;
  std::string sizes = "1MiB,16MiB,64MiB";
  std::shared_ptr<ClientFlags> client = std::make_shared<ClientFlags>();
};

absl::StatusOr<std::vector<int64_t>> ParseSizes(const std::string& sizes) {
  std::vector<int64_t> bytes;
  for (const absl::string_view size : absl::StrSplit(sizes, ',')) {
    absl::StatusOr<int64_t> parsed = ParseByteCount(size);
    if (!parsed.ok()) return InvalidField("--sizes", std::string(parsed.status().message()));
    if (*parsed < 1 || *parsed > int64_t{1} << 40) {
      return InvalidField("--sizes", absl::StrCat("\"", size, "\" is not between 1B and 1TiB"));
    }
    bytes.push_back(*parsed);
  }
  return bytes;
}

// What tessera-bench printed.
absl::StatusOr<std::string> RunBenchProgram(const BenchFlags& flags) {
  if (flags.world_size < 1 || flags.world_size > 64) {
    return InvalidField("--world_size", absl::StrCat("is ", flags.world_size, "; give 1 to 64"));
  }
  if (flags.runs < 1 || flags.runs > 10'000) {
    return InvalidField("--runs", absl::StrCat("is ", flags.runs, "; give 1 to 10000"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, ParseSizes(flags.sizes));
  TESSERA_ASSIGN_OR_RETURN(const std::string program,
                           FindSiblingProgram(OwnDirectory(), "worker/bench", "tessera-bench"));
  TESSERA_ASSIGN_OR_RETURN(
      const std::unique_ptr<ChildProcess> child,
      ChildProcess::Start({program, "collective", absl::StrCat("--world_size=", flags.world_size),
                           absl::StrCat("--runs=", flags.runs),
                           absl::StrCat("--unit_bytes=", absl::StrJoin(sizes, ","))},
                          ChildProcess::Stdout::kPipe));
  const absl::Time deadline = absl::Now() + kLongestBench;
  std::string output;
  absl::StatusOr<std::string> line;
  while ((line = child->ReadLine(deadline, /*interrupt_fd=*/-1)).ok()) {
    absl::StrAppend(&output, *line, "\n");
  }
  if (!absl::IsUnavailable(line.status())) return line.status();
  child->WaitUntil(deadline, /*interrupt_fd=*/-1);
  if (child->Ending() == "exited with code 0") return output;
  return absl::InternalError(absl::StrCat("tessera-bench ", child->Ending(), "; see above"));
}

std::string Milliseconds(double seconds) { return absl::StrFormat("%.4f", seconds * 1e3); }

std::string Text(const nlohmann::json& result, const char* key) { return result.value(key, "-"); }

std::string BenchTable(const nlohmann::json& document) {
  TextTable table({{"OPERATION", Align::kLeft},
                   {"MODE", Align::kLeft},
                   {"DTYPE", Align::kLeft},
                   {"BYTES"},
                   {"MEDIAN ms"},
                   {"P99 ms"},
                   {"BARE ms"},
                   {"RATIO"}});
  for (const nlohmann::json& result : document.at("results")) {
    // A barrier moves nothing, nor does the unshard of a resident unit: only their time says much.
    const bool moves = Text(result, "mode") != "RESIDENT" && result.at("op") != "barrier";
    const int64_t bytes = std::stoll(result.at("bytes").get<std::string>());
    table.AddRow(
        {result.at("op"), Text(result, "mode"), Text(result, "param_dtype"),
         bytes == 0 ? "-" : FormatByteCount(bytes), Milliseconds(result.at("median_seconds")),
         Milliseconds(result.at("p99_seconds")),
         Milliseconds(result.at("bare_loop_median_seconds")),
         moves ? absl::StrFormat("%.2f", result.at("bare_loop_ratio").get<double>()) : "-"});
  }
  return absl::StrCat(
      table.ToString(), "\nBARE: the same traffic by plain loops in the same processes, in turn.\n",
      "Loops ran in ", document.at("instruction_set").get<std::string>(), " instructions.\n");
}

int RunBench(const BenchFlags& flags) {
  const absl::StatusOr<std::string> output = RunBenchProgram(flags);
  if (!output.ok()) return Report(output.status());
  if (flags.client->json()) {
    Print(*output);
    return 0;
  }
  const nlohmann::json document =
      nlohmann::json::parse(*output, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) {
    return Report(absl::InternalError(
        "tessera-bench printed something else than JSON; client and bench are of different "
        "builds"));
  }
  Print(BenchTable(document));
  return 0;
}

}  // namespace

void AddBenchCommand(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand("bench", "Figures of this machine");
  command->require_subcommand(1);
  CLI::App* collective =
      command->add_subcommand("collective", "The data path's operations beside plain loops");
  auto flags = std::make_shared<BenchFlags>();
  collective->add_option("--world_size", flags->world_size, "ranks, each a process here [2]");
  collective->add_option("--sizes", flags->sizes,
                         "of an unsharded float32 unit [1MiB,16MiB,64MiB]");
  collective->add_option("--runs", flags->runs, "of each, timed; 21 or more make a figure [41]");
  AddOutputFlag(*collective, flags->client);
  collective->callback([=] { *chosen = [=] { return RunBench(*flags); }; });
  AddBenchPlanCommand(*command, chosen);
  AddBenchControlCommand(*command, chosen);
}

}  // namespace tessera
