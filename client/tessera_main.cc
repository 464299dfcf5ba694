// The `tessera` command.
#include <stdio.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/command.h"
#include "common/logging.h"

namespace tessera {
namespace {

constexpr char kVersion[] = "0.1.0";

void AddVersionCommand(CLI::App& app, Command* chosen) {
  app.add_subcommand("version", "Print the version")->callback([=] {
    *chosen = [] {
      Print(absl::StrCat("tessera ", kVersion, "\n"));
      return 0;
    };
  });
}

// `argv` with "--flag=" as "--flag" and "": CLI11 would take the next argument for the value. What
// follows "--" is a program's.
std::vector<std::string> SplitEmptyValues(int argc, char** argv) {
  std::vector<std::string> split;
  bool ours = true;
  for (int i = 0; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    ours = ours && argument != "--";
    if (ours && absl::StartsWith(argument, "--") && argument.find('=') == argument.size() - 1) {
      split.emplace_back(argument.substr(0, argument.size() - 1));
      split.emplace_back();
    } else {
      split.emplace_back(argument);
    }
  }
  return split;
}

// Fills `chosen`, or returns the exit code: 0 after --help, 2 for a command line that is wrong.
// CLI11 throws; nothing gets out of here.
int Parse(int argc, char** argv, CLI::App& app, Command* chosen) {
  try {
    std::vector<std::string> arguments = SplitEmptyValues(argc - 1, argv + 1);
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
    app.parse(std::move(arguments));
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::Success)) {
      return Report(absl::InvalidArgumentError(
          absl::StrCat(error.what(), "; `tessera --help` lists commands and flags")));
    }
    std::ostringstream help;
    std::ostringstream unused;
    app.exit(error, help, unused);
    Print(help.str());
    *chosen = [] { return 0; };
    return 0;
  }
}

int Main(int argc, char** argv) {
  // Errors come back as statuses and are told once, on one line.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  SetLogPrefix("tessera");
  CLI::App app("Tessera: trains models that are cut into shards over many workers.", "tessera");
  app.require_subcommand(1);
  Command chosen;
  AddPlanCommand(app, &chosen);
  AddRunCommand(app, &chosen);
  AddSubmitCommand(app, &chosen);
  AddGetCommand(app, &chosen);
  AddListCommand(app, &chosen);
  AddWatchCommand(app, &chosen);
  AddStatsCommand(app, &chosen);
  AddDrainCommand(app, &chosen);
  AddCancelCommand(app, &chosen);
  AddCheckpointCommand(app, &chosen);
  AddBenchCommand(app, &chosen);
  AddVersionCommand(app, &chosen);
  // CLI11 would say that a command is missing.
  const auto is_asked_for = [&](CLI::App* command) { return command->check_name(argv[1]); };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_asked_for).empty()) {
    return Report(absl::InvalidArgumentError(
        absl::StrCat("no command \"", argv[1], "\"; `tessera --help` lists commands and flags")));
  }
  if (const int code = Parse(argc, argv, app, &chosen); code != 0) return code;
  const int code = chosen();
  // A result that did not reach its file is no success.
  if (code == 0 && (fflush(stdout) != 0 || ferror(stdout) != 0)) {
    return Report(absl::InternalError("the output could not be written; is the disk full?"));
  }
  return code;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
