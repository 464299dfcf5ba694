// tessera submit, get, list, watch, stats, drain, cancel: what speaks to a coordinator that
// somebody else started.
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/command.h"
#include "client/job_input.h"
#include "client/job_tables.h"
#include "client/plan_table.h"
#include "client/tables.h"
#include "client/watch_printer.h"
#include "common/logging.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// What the commands of this file are given; none uses all of it.
struct JobFlags {
  std::string kind;
  std::string name;
  JobInput input;
  bool validate_only = false;
  bool no_wait = false;
  std::shared_ptr<ClientFlags> client = std::make_shared<ClientFlags>();
};

// `message` as JSON where that was asked for, else `table`.
absl::Status PrintResult(const JobFlags& flags, const google::protobuf::Message& message,
                         const std::string& table) {
  if (!flags.client->json()) {
    Print(table);
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string json, ToJson(message));
  Print(json);
  return absl::OkStatus();
}

absl::Status Submit(const JobFlags& flags, Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const v1::JobSpec spec, LoadJob(flags.input));
  TESSERA_RETURN_IF_ERROR(CheckPathsOfSubmit(spec));
  // The workers may well have it where they run.
  if (!spec.data().empty() && access(spec.data().c_str(), R_OK) != 0) {
    LogInfo(absl::StrCat("data: ", spec.data(),
                         " cannot be read on this machine; the workers need "
                         "it on theirs"));
  }
  TESSERA_ASSIGN_OR_RETURN(const v1::Job job, client.CreateJob(spec, flags.validate_only));
  // With --validate_only there is no job whose name could be used.
  if (!flags.validate_only) Print(absl::StrCat(job.name(), "\n"));
  return absl::OkStatus();
}

absl::Status Get(const JobFlags& flags, Client& client) {
  if (flags.kind == "job") {
    TESSERA_ASSIGN_OR_RETURN(const v1::Job job, client.GetJob(flags.name));
    return PrintResult(flags, job, JobText(job));
  }
  if (flags.kind == "plan") {
    TESSERA_ASSIGN_OR_RETURN(const v1::CreatePlanResponse plan, client.GetPlan(flags.name));
    return PrintResult(flags, plan, PlanTable(plan.plan(), plan.layout(), plan.forecast()));
  }
  if (flags.kind == "incidents") {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<v1::Incident> incidents,
                             client.ListIncidents(flags.name));
    v1::ListIncidentsResponse all;
    for (const v1::Incident& incident : incidents) *all.add_incidents() = incident;
    return PrintResult(flags, all, IncidentsText(incidents));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<v1::Worker> workers, client.ListWorkers(flags.name));
  v1::ListWorkersResponse all;
  for (const v1::Worker& worker : workers) *all.add_workers() = worker;
  return PrintResult(flags, all, WorkersTable(workers));
}

absl::Status List(const JobFlags& flags, Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const v1::ListJobsResponse jobs, client.ListJobs());
  return PrintResult(flags, jobs, JobsTable(jobs));
}

absl::Status Stats(const JobFlags& flags, Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const v1::JobStats stats, client.GetStats(flags.name));
  return PrintResult(
      flags, stats,
      absl::StrCat("job ", stats.job(), ", ", v1::JobState_Name(stats.state()), ", step ",
                   stats.step(), "\n\n", UnitStatsTable(stats), "\n", RankStatsTable(stats)));
}

absl::Status Cancel(const JobFlags& flags, Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const v1::Job job,
                           client.CancelJob(flags.name, "cancelled with `tessera cancel`"));
  Print(absl::StrCat(job.name(), " ", v1::JobState_Name(job.state()), "\n"));
  return absl::OkStatus();
}

int Watch(const JobFlags& flags, Client& client) {
  WatchPrinter printer({.states = true});
  const absl::StatusOr<v1::Job> job = client.WatchJob(flags.name, printer.Handlers());
  return job.ok() ? ReportEnded(*job) : Report(job.status());
}

int Drain(const JobFlags& flags, Client& client) {
  absl::StatusOr<v1::Job> job = client.DrainJob(flags.name);
  const bool stops = job.ok() && (job->state() == v1::RUNNING || job->state() == v1::RECOVERING);
  if (stops && !flags.no_wait) {
    WatchPrinter notes({.out = [](const std::string&) {}});
    job = client.WatchJob(flags.name, notes.Handlers());
  }
  if (!job.ok()) return Report(job.status());
  Print(absl::StrCat(job->name(), " ", v1::JobState_Name(job->state()), "\n"));
  return job->state() == v1::FAILED ? ReportEnded(*job) : 0;
}

// Calls `action` with a client for the coordinator that was asked for.
Command WithClient(const std::shared_ptr<JobFlags>& flags,
                   int (*action)(const JobFlags&, Client&)) {
  return [=] {
    const absl::StatusOr<std::string> address = CoordinatorAddress(flags->client->coordinator);
    if (!address.ok()) return Report(address.status());
    Client client(*address);
    return action(*flags, client);
  };
}

// As above, for actions whose status is all there is to tell.
template <absl::Status (*action)(const JobFlags&, Client&)>
int Reported(const JobFlags& flags, Client& client) {
  return Report(action(flags, client));
}

CLI::App* AddCommand(CLI::App& app, const char* name, const char* help, Command* chosen,
                     const std::shared_ptr<JobFlags>& flags,
                     int (*action)(const JobFlags&, Client&)) {
  CLI::App* command = app.add_subcommand(name, help);
  AddCoordinatorFlag(*command, flags->client);
  command->callback([=] { *chosen = WithClient(flags, action); });
  return command;
}

}  // namespace

void AddSubmitCommand(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<JobFlags>();
  CLI::App* command = AddCommand(app, "submit", "Create a job, print its name, return", chosen,
                                 flags, &Reported<&Submit>);
  command->add_option("--job", flags->input.file, "job file")->required();
  command->add_option("--set", flags->input.sets, "PATH=VALUE: changes a field of the job file")
      ->allow_extra_args(false);
  command->add_flag("--validate_only", flags->validate_only, "check everything, create nothing");
}

void AddGetCommand(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<JobFlags>();
  CLI::App* command =
      AddCommand(app, "get", "Show a job, its plan, its workers or what went wrong in it", chosen,
                 flags, &Reported<&Get>);
  command->add_option("kind", flags->kind, "job, plan, workers or incidents")
      ->required()
      ->check(CLI::IsMember({"job", "plan", "workers", "incidents"}));
  command->add_option("name", flags->name, "the job's name")->required();
  AddOutputFlag(*command, flags->client);
}

void AddListCommand(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<JobFlags>();
  CLI::App* command =
      AddCommand(app, "list", "All jobs, the newest first", chosen, flags, &Reported<&List>);
  AddOutputFlag(*command, flags->client);
}

void AddWatchCommand(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<JobFlags>();
  AddCommand(app, "watch", "State changes and progress until the job ends", chosen, flags, &Watch)
      ->add_option("job", flags->name, "the job's name")
      ->required();
}

void AddStatsCommand(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<JobFlags>();
  CLI::App* command = AddCommand(app, "stats", "Bytes and times of each unit, over ranks", chosen,
                                 flags, &Reported<&Stats>);
  command->add_option("job", flags->name, "the job's name")->required();
  AddOutputFlag(*command, flags->client);
}

void AddDrainCommand(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<JobFlags>();
  CLI::App* command = AddCommand(app, "drain",
                                 "Stop a job after its step, let it save, and wait until it is "
                                 "CANCELLED",
                                 chosen, flags, &Drain);
  command->add_option("job", flags->name, "the job's name")->required();
  command->add_flag("--no_wait", flags->no_wait, "return once the job knows of it");
}

void AddCancelCommand(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<JobFlags>();
  AddCommand(app, "cancel", "End a job as CANCELLED at once", chosen, flags, &Reported<&Cancel>)
      ->add_option("job", flags->name, "the job's name")
      ->required();
}

}  // namespace tessera
