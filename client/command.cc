#include "client/command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/client_security.h"
#include "common/errors.h"
#include "common/exit_code.h"
#include "common/host_port.h"
#include "common/process_env.h"
#include "common/security_flags.h"
#include "common/status_macros.h"
#include "google/protobuf/util/json_util.h"

namespace tessera {

int Report(const absl::Status& status) {
  if (!status.ok()) {
    const std::string line = absl::StrReplaceAll(status.message(), {{"\n", " "}, {"\r", " "}});
    fprintf(stderr, "tessera: %s\n", line.c_str());
  }
  return ExitCode(status);
}

int ReportEnded(const v1::Job& job) {
  if (job.state() == v1::SUCCEEDED) return 0;
  std::string line = absl::StrCat("job ", job.name(), " ", v1::JobState_Name(job.state()),
                                  " at step ", job.step(), "/", job.steps());
  if (!job.reason().empty()) absl::StrAppend(&line, ": ", job.reason());
  Report(absl::UnknownError(line));
  return 1;
}

void Print(const std::string& text) {
  fwrite(text.data(), 1, text.size(), stdout);
  fflush(stdout);
}

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return absl::InternalError(absl::StrCat("as JSON: ", status.ToString()));
  return json;
}

absl::StatusOr<std::string> CoordinatorAddress(const std::string& flag) {
  std::string address = flag;
  if (address.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const ProcessEnv env, ProcessEnv::Read());
    address = env.coordinator;
  }
  if (address.empty()) {
    return InvalidField("--coordinator", "is not given; give HOST:PORT or set TESSERA_COORDINATOR");
  }
  TESSERA_RETURN_IF_ERROR(CheckHostPort("--coordinator", address));
  TESSERA_RETURN_IF_ERROR(CheckClientSecurity(address));
  return address;
}

void AddCoordinatorFlag(CLI::App& command, const std::shared_ptr<ClientFlags>& flags) {
  command.add_option("--coordinator", flags->coordinator,
                     "HOST:PORT of the coordinator [TESSERA_COORDINATOR]");
  AddSecurityFlags(command);
}

void AddOutputFlag(CLI::App& command, const std::shared_ptr<ClientFlags>& flags) {
  command.add_option("--output", flags->output, "table or json [table]")
      ->check(CLI::IsMember({"table", "json"}));
}

}  // namespace tessera
