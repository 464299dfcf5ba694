// tessera-coordinator: serves the Coordinator over gRPC until SIGTERM or SIGINT.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/authenticator.h"
#include "common/end_signals.h"
#include "common/errors.h"
#include "common/exit_code.h"
#include "common/file_roots.h"
#include "common/grpc_server.h"
#include "common/logging.h"
#include "common/mutex.h"
#include "common/process_env.h"
#include "common/security_flags.h"
#include "coordinator/access_rules.h"
#include "coordinator/coordinator.h"
#include "coordinator/job_service.h"
#include "coordinator/membership_service.h"
#include "coordinator/plan_service.h"
#include "coordinator/sqlite_state_store.h"
#include "coordinator/stats_service.h"

namespace tessera {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
// In which streams get their last message and calls end.
constexpr absl::Duration kDrain = absl::Seconds(2);

constexpr int kFailed = 1;
constexpr int kUsage = 2;

struct Flags {
  std::string state_dir;
  int admin_port = 0;
  GrpcServer::Options server = {};
  int64_t max_jobs = Coordinator::Options().max_live_jobs;
  int64_t max_members = MembershipService::Options().max_members;
  absl::Duration drain_delay = absl::Seconds(1);
};

// Calls Coordinator::Tick until it is destroyed.
class Ticker {
 public:
  explicit Ticker(Coordinator* coordinator) : thread_([this, coordinator] { Run(coordinator); }) {}
  ~Ticker() {
    MutexLock lock(mutex_);
    stop_ = true;
    stopped_.NotifyAll();
  }

 private:
  void Run(Coordinator* coordinator) {
    pthread_setname_np(pthread_self(), "tick");
    for (;;) {
      {
        MutexLock lock(mutex_);
        if (!stop_) stopped_.WaitFor(lock, kTick);
        if (stop_) return;
      }
      coordinator->Tick();
    }
  }

  Mutex mutex_;
  CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // last: it ends before what it uses
};

void AddLimitFlags(CLI::App& app, Flags& flags) {
  const auto add = [&](const char* name, int64_t& value, const char* help) {
    app.add_option(name, value, help)->capture_default_str()->check(CLI::PositiveNumber);
  };
  add("--max_message_bytes", flags.server.max_message_bytes, "Of one request");
  add("--max_string_bytes", flags.server.message_limits.max_string_bytes,
      "Of one string in a request");
  add("--max_modules", flags.server.message_limits.max_modules, "Of a model");
  add("--max_jobs", flags.max_jobs, "Jobs that have not ended");
  add("--max_members", flags.max_members, "Agents and ranks that attend");
  add("--max_streams", flags.server.limits.max_streams, "Open streams of one caller");
  add("--max_requests_in_flight", flags.server.limits.max_requests_in_flight,
      "Calls of one caller that are not answered yet");
  add("--max_requests_per_second", flags.server.limits.max_requests_per_second,
      "Calls of one caller in a second");
}

int Fail(const absl::Status& status) {
  LogError(status.message());
  return ExitCode(status);
}

// Where jobs are kept; null: nowhere.
absl::StatusOr<std::unique_ptr<StateStore>> OpenStore(const Flags& flags) {
  if (flags.state_dir.empty()) return std::unique_ptr<StateStore>();
  return OpenSqliteStateStore(flags.state_dir);
}

int Serve(const Flags& flags, const EndSignals& signals) {
  const absl::StatusOr<ProcessEnv> env = ProcessEnv::Read();
  if (!env.ok()) return Fail(env.status());
  const FileRoots roots{.data = env->data_root, .checkpoints = env->checkpoint_root};
  if (const absl::Status status = roots.Check(); !status.ok()) return Fail(status);
  const absl::StatusOr<std::unique_ptr<Authenticator>> authenticator =
      Authenticator::Create({.tls = env->tls,
                             .token_file = env->token_file,
                             .allow_insecure = flags.server.allow_insecure});
  if (!authenticator.ok()) return Fail(authenticator.status());

  const absl::StatusOr<std::unique_ptr<StateStore>> store = OpenStore(flags);
  Coordinator::Options options;
  options.store = store.ok() ? store->get() : nullptr;
  options.max_live_jobs = flags.max_jobs;
  Coordinator coordinator(options);
  const absl::Status restored = store.ok() ? coordinator.Restore() : store.status();
  if (!restored.ok()) {
    LogError(restored.message());
    return kFailed;
  }
  JobService jobs(&coordinator, roots);
  PlanService plans(&coordinator);
  StatsService stats(&coordinator);
  MembershipService members(&coordinator, {.authenticator = authenticator->get(),
                                           .max_members = flags.max_members,
                                           .message_limits = flags.server.message_limits});
  GrpcServer::Options serve = flags.server;
  serve.rules = AccessRules();
  serve.authenticator = authenticator->get();
  absl::StatusOr<std::unique_ptr<GrpcServer>> server =
      GrpcServer::Start(serve, {{v1::JobService::service_full_name(), &jobs},
                                {v1::PlanService::service_full_name(), &plans},
                                {v1::StatsService::service_full_name(), &stats},
                                {v1::MembershipService::service_full_name(), &members}});
  if (!server.ok()) return Fail(server.status());
  const Ticker ticker(&coordinator);
  printf("listening %s\n", (*server)->address().c_str());
  fflush(stdout);
  LogInfo(absl::StrCat("listening on ", (*server)->address()));

  const int signal = signals.WaitForLast();
  LogInfo(absl::StrCat("stopping on signal ", signal));
  // Whoever looks at health sends nothing new by the time that jobs are cancelled. Calls are still
  // answered; a second signal ends the process at once.
  (*server)->StopServing();
  absl::SleepFor(flags.drain_delay);
  coordinator.Shutdown();
  (*server)->Shutdown(kDrain);
  return 0;
}

int Main(int argc, char** argv) {
  // Errors come back as statuses and are told once, on one line.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  SetLogPrefix("tessera-coordinator");
  Flags flags;
  CLI::App app("Plans jobs, hands their units to workers and keeps what they report.",
               "tessera-coordinator");
  app.add_option("--listen", flags.server.listen,
                 "HOST:PORT to serve on; port 0 takes a free one. The first line on stdout says "
                 "which: listening HOST:PORT")
      ->capture_default_str();
  app.add_option("--state_dir", flags.state_dir,
                 "Folder for what survives a restart: jobs that live then go on. It is one "
                 "coordinator's at a time [none: jobs end with the coordinator]");
  app.add_option("--admin_port", flags.admin_port,
                 "Port for probes and metrics. Only 0 (none) for now")
      ->capture_default_str();
  std::string drain_delay = absl::FormatDuration(flags.drain_delay);
  app.add_option(
         "--drain_delay", drain_delay,
         "After SIGTERM: how long health says NOT_SERVING before jobs are cancelled, or left to "
         "the next coordinator where there is a --state_dir")
      ->capture_default_str();
  app.add_flag("--insecure", flags.server.allow_insecure,
               "Allow to listen on an address that is not loopback, without TLS");
  AddSecurityFlags(app);
  AddRootFlags(app);
  AddLimitFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    LogError(absl::StrCat(error.what(), "; see --help"));
    return kUsage;
  }
  if (flags.admin_port != 0) {
    return Fail(InvalidField(
        "--admin_port",
        absl::StrCat("is ", flags.admin_port, "; this version has no admin port, leave it at 0")));
  }
  if (!absl::ParseDuration(drain_delay, &flags.drain_delay) ||
      flags.drain_delay < absl::ZeroDuration() || flags.drain_delay > absl::Hours(1)) {
    return Fail(InvalidField("--drain_delay",
                             absl::StrCat("\"", drain_delay, "\" is not a duration of 0s to 1h")));
  }
  const absl::StatusOr<EndSignals> signals = EndSignals::Block();
  if (!signals.ok()) return Fail(signals.status());
  ::signal(SIGPIPE, SIG_IGN);
  // A file that may not grow is an error like a full disk.
  ::signal(SIGXFSZ, SIG_IGN);
  return Serve(flags, *signals);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
