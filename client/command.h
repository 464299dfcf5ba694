// The commands of `tessera` and what they share. A command declares its flags and hands main what
// is to be done, so that nothing runs before the whole command line is known to be right.
//
//   Command command;
//   AddPlanCommand(app, &command);
//   app.parse(argc, argv);
//   return command();
#ifndef TESSERA_CLIENT_COMMAND_H_
#define TESSERA_CLIENT_COMMAND_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "tessera/v1/job.pb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tessera {

// Returns the process's exit code.
using Command = std::function<int()>;

// One line on stderr for an error, nothing for OK. Returns ExitCode(status).
int Report(const absl::Status& status);

// 0 for SUCCEEDED; else 1 and a line on stderr with the reason.
int ReportEnded(const v1::Job& job);

// Writes to stdout at once: whoever reads a pipe sees each line when it is written.
void Print(const std::string& text);

// One JSON document with proto field names and a value for every field that has one by default.
absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message);

// The flag's value, else TESSERA_COORDINATOR. INVALID_ARGUMENT: neither is given, or it is not
// HOST:PORT.
absl::StatusOr<std::string> CoordinatorAddress(const std::string& flag);

// --coordinator and --output, as every client command has them. The strings outlive the app's
// parse.
struct ClientFlags {
  std::string coordinator;
  std::string output = "table";
  bool json() const { return output == "json"; }
};
void AddCoordinatorFlag(CLI::App& command, const std::shared_ptr<ClientFlags>& flags);
void AddOutputFlag(CLI::App& command, const std::shared_ptr<ClientFlags>& flags);

void AddPlanCommand(CLI::App& app, Command* chosen);
void AddRunCommand(CLI::App& app, Command* chosen);
void AddSubmitCommand(CLI::App& app, Command* chosen);
void AddGetCommand(CLI::App& app, Command* chosen);
void AddListCommand(CLI::App& app, Command* chosen);
void AddWatchCommand(CLI::App& app, Command* chosen);
void AddStatsCommand(CLI::App& app, Command* chosen);
void AddDrainCommand(CLI::App& app, Command* chosen);
void AddCancelCommand(CLI::App& app, Command* chosen);
void AddCheckpointCommand(CLI::App& app, Command* chosen);
void AddBenchCommand(CLI::App& app, Command* chosen);
// Under `bench`.
void AddBenchPlanCommand(CLI::App& bench, Command* chosen);
void AddBenchControlCommand(CLI::App& bench, Command* chosen);

}  // namespace tessera

#endif  // TESSERA_CLIENT_COMMAND_H_
