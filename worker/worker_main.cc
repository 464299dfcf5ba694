// tessera-worker: the agent of a host. With --run_workload it is one of the workers that the agent
// starts: the job's built-in workload as a rank.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/client_security.h"
#include "common/end_signals.h"
#include "common/errors.h"
#include "common/exit_code.h"
#include "common/file_roots.h"
#include "common/find_program.h"
#include "common/host_port.h"
#include "common/logging.h"
#include "common/process_env.h"
#include "common/security_flags.h"
#include "common/status_macros.h"
#include "worker/agent.h"
#include "worker/device/probe.h"
#include "worker/session.h"
#include "worker/workloads/gpt.h"
#include "worker/workloads/replay.h"

namespace tessera {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

struct Flags {
  Agent::Options agent;
  bool run_workload = false;
  bool help = false;  // printed already
};

// What CLI11 says, as a status: it throws.
absl::StatusOr<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  CLI::App app("The agent of a host: starts its workers and watches them.");
  app.add_option("--coordinator", flags.agent.coordinator,
                 "HOST:PORT of the coordinator [TESSERA_COORDINATOR]");
  app.add_option("--local_workers", flags.agent.local_workers, "ranks that this host offers [1]");
  app.add_option("--job", flags.agent.job, "the job to work for [any that waits for workers]");
  app.add_option("--host_name", flags.agent.host_name, "what to call this host [its own name]");
  app.add_option("--host_address", flags.agent.host_address,
                 "where the ranks of a job's other hosts find this host's, without a port [the "
                 "address that leads to the coordinator]");
  std::string coordinator_timeout = absl::FormatDuration(flags.agent.coordinator_timeout);
  app.add_option("--coordinator_timeout", coordinator_timeout,
                 "how long the coordinator may be away before the workers are ended [5m]");
  app.add_option(
      "program", flags.agent.program,
      "-- PROGRAM ARGS: what to run as each rank of a job with the workload attached [the "
      "job's built-in workload]");
  AddSecurityFlags(app);
  AddRootFlags(app);
  app.add_flag("--run_workload", flags.run_workload)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    printf("%s", app.help().c_str());
    flags.help = true;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), "; see --help"));
  }
  if (!absl::ParseDuration(coordinator_timeout, &flags.agent.coordinator_timeout) ||
      flags.agent.coordinator_timeout < absl::ZeroDuration()) {
    return InvalidField("--coordinator_timeout",
                        absl::StrCat("\"", coordinator_timeout, "\" is no duration; give e.g. 5m"));
  }
  return flags;
}

// Fills in what the flags left open, and checks it.
absl::Status Complete(Agent::Options& options) {
  TESSERA_ASSIGN_OR_RETURN(const ProcessEnv env, ProcessEnv::Read());
  if (options.coordinator.empty()) options.coordinator = env.coordinator;
  if (options.coordinator.empty()) {
    return InvalidField("--coordinator", "is not given; give HOST:PORT or set TESSERA_COORDINATOR");
  }
  TESSERA_RETURN_IF_ERROR(CheckHostPort("--coordinator", options.coordinator));
  TESSERA_RETURN_IF_ERROR(CheckClientSecurity(options.coordinator));
  TESSERA_RETURN_IF_ERROR(FileRoots::OfProcess().Check());
  if (!options.program.empty()) {
    options.attached = true;
    TESSERA_ASSIGN_OR_RETURN(options.program[0], FindProgram(options.program[0], env.path));
    return absl::OkStatus();
  }
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError("/proc/self/exe cannot be read; is /proc mounted?");
  options.program = {self.string(), "--run_workload"};
  return absl::OkStatus();
}

int RunAgent(Agent::Options options) {
  const absl::StatusOr<EndSignals> stop = EndSignals::Block();
  if (!stop.ok()) {
    LogError(stop.status().message());
    return ExitCode(stop.status());
  }
  signal(SIGPIPE, SIG_IGN);
  options.stop_fd = stop->fd();

  const absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Create(std::move(options));
  if (!agent.ok()) {
    LogError(agent.status().message());
    return kUsage;
  }
  SetLogPrefix(absl::StrCat("tessera-worker ", (*agent)->host_name()));
  if (const std::string devices = DescribeDevices(); !devices.empty()) LogInfo(devices);
  return (*agent)->Run();
}

// A worker that is not waiting for anybody does not see at once that its agent is dead: it has
// three seconds to find out and to say so, and is then ended by the kernel, whatever it is doing.
void EndWithAgent() {
  struct sigaction action = {};
  action.sa_handler = [](int) { alarm(3); };
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGUSR1);
}

absl::Status Work(Session& session) {
  const std::string& workload = session.job().workload();
  if (workload == "gpt") return RunGptToTheEnd(session);
  if (workload == "replay") return RunReplayToTheEnd(session);
  return absl::InvalidArgumentError(
      absl::StrCat("workload \"", workload,
                   "\" is not built in; start the host with `tessera-worker -- PROGRAM`"));
}

int RunWorkload() {
  EndWithAgent();
  SetLogPrefix(absl::StrCat("tessera-worker pid ", getpid()));
  const absl::StatusOr<std::unique_ptr<Session>> session = Session::Join({});
  if (!session.ok()) {
    LogError(session.status().message());
    return kFailed;
  }
  // Join has started threads, but none that logs before there is something to report.
  SetLogPrefix(absl::StrCat("tessera-worker rank ", (*session)->rank()));
  const absl::Status status = Work(**session);
  if (status.ok()) return 0;
  // First the line, since telling the coordinator may take a while.
  LogError(status.message());
  (*session)->Abort(status);
  return kFailed;
}

int Main(int argc, char** argv) {
  SetLogPrefix("tessera-worker");
  absl::StatusOr<Flags> flags = ParseFlags(argc, argv);
  if (flags.ok() && flags->help) return 0;
  if (flags.ok() && flags->run_workload) return RunWorkload();
  const absl::Status status = flags.ok() ? Complete(flags->agent) : flags.status();
  if (!status.ok()) {
    LogError(status.message());
    return kUsage;
  }
  return RunAgent(std::move(flags->agent));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
