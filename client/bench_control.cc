#include "client/bench_control.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "client/local_cluster.h"
#include "client/process_usage.h"
#include "client/simulated_members_client.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/report_schedule.h"
#include "common/status_macros.h"
#include "coordinator/model_import/hf_config.h"

namespace tessera {
namespace {

constexpr int kMostLocalWorkers = 8;
// Only against hanging.
constexpr absl::Duration kLongestForm = absl::Minutes(10);
constexpr absl::Duration kSettle = absl::Seconds(1);

constexpr char kLlama405B[] = R"({
    "model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248,
    "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8,
    "vocab_size": 128256, "torch_dtype": "bfloat16", "max_position_embeddings": 131072})";

absl::Status Check(const ControlBenchOptions& options) {
  if (options.workers < 1 || options.workers > kMaxWorkers) {
    return InvalidField("--workers",
                        absl::StrCat("has ", options.workers, "; give 1 to ", kMaxWorkers));
  }
  if (options.connections < 1 || options.connections > kMaxWorkers) {
    return InvalidField("--connections",
                        absl::StrCat("is ", options.connections, "; give 1 to ", kMaxWorkers));
  }
  if (options.steady < absl::Seconds(1) || options.steady > absl::Hours(1)) {
    return InvalidField("--seconds", "is out of range; give 1 to 3600");
  }
  if (options.plan_calls < 1 || options.plan_calls > 100'000) {
    return InvalidField("--plan_calls",
                        absl::StrCat("is ", options.plan_calls, "; give 1 to 100000"));
  }
  return absl::OkStatus();
}

// A connection is a descriptor here and another in the coordinator, which inherits the limit.
absl::Status AllowDescriptors(int connections) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  constexpr rlim_t kOthers = 100;
  if (limit.rlim_max >= static_cast<rlim_t>(connections) + kOthers) return absl::OkStatus();
  return InvalidField("--connections",
                      absl::StrCat("is ", connections, ", and a process may have only ",
                                   limit.rlim_max, " descriptors; raise `ulimit -Hn`"));
}

// The wall's and the coordinator's time since it was made.
class Stretch {
 public:
  explicit Stretch(pid_t pid) : pid_(pid) {}
  absl::Status Begin() {
    TESSERA_ASSIGN_OR_RETURN(first_, ReadProcessUsage(pid_));
    start_ = Clock::Real()->Now();
    return absl::OkStatus();
  }
  absl::StatusOr<double> CpuSeconds() const {
    TESSERA_ASSIGN_OR_RETURN(const ProcessUsage usage, ReadProcessUsage(pid_));
    return usage.cpu_seconds - first_.cpu_seconds;
  }
  double WallSeconds() const { return absl::ToDoubleSeconds(Clock::Real()->Now() - start_); }

 private:
  const pid_t pid_;
  ProcessUsage first_;
  absl::Time start_;
};

absl::Status MeasureForm(pid_t coordinator, SimulatedMembers& members, ControlFigures* figures) {
  Stretch stretch(coordinator);
  TESSERA_RETURN_IF_ERROR(stretch.Begin());
  TESSERA_ASSIGN_OR_RETURN(const absl::Duration formed,
                           members.Form(Clock::Real()->Now() + kLongestForm));
  TESSERA_ASSIGN_OR_RETURN(figures->coordinator_cpu_seconds, stretch.CpuSeconds());
  figures->form_seconds = absl::ToDoubleSeconds(formed);
  return absl::OkStatus();
}

absl::Status MeasureSteady(pid_t coordinator, const ControlBenchOptions& options,
                           SimulatedMembers& members, ControlFigures* figures) {
  members.BeginSteady();
  absl::SleepFor(kSettle);
  Stretch stretch(coordinator);
  TESSERA_RETURN_IF_ERROR(stretch.Begin());
  members.TakeSent();
  absl::SleepFor(options.steady);
  const double seconds = stretch.WallSeconds();
  TESSERA_ASSIGN_OR_RETURN(const double cpu_seconds, stretch.CpuSeconds());
  const SimulatedMembers::Sent sent = members.TakeSent();
  figures->steady_core_fraction = cpu_seconds / seconds;
  figures->heartbeats_per_second = static_cast<double>(sent.heartbeats) / seconds;
  figures->reports_per_second = static_cast<double>(sent.reports) / seconds;
  return members.Health();
}

absl::Status MeasureGetPlan(const ControlBenchOptions& options, SimulatedMembers& members,
                            ControlFigures* figures) {
  constexpr absl::Duration kPause = absl::Milliseconds(20);
  std::vector<double> seconds;
  for (int call = 0; call < options.plan_calls; ++call) {
    TESSERA_ASSIGN_OR_RETURN(const absl::Duration took, members.TimeGetPlan());
    seconds.push_back(absl::ToDoubleSeconds(took));
    absl::SleepFor(kPause);
  }
  figures->get_plan_p99_seconds = Percentile(std::move(seconds), 0.99);
  return members.Health();
}

}  // namespace

int BenchLocalWorkers(int workers) {
  int local = std::min(workers, kMostLocalWorkers);
  while (workers % local != 0) --local;
  return local;
}

absl::StatusOr<v1::JobSpec> ControlBenchJob(int workers) {
  v1::JobSpec spec;
  spec.set_name("bench");
  TESSERA_ASSIGN_OR_RETURN(*spec.mutable_model()->mutable_spec(),
                           ModelFromHfConfig(kLlama405B, "Llama-3.1-405B"));
  spec.set_workload("replay");
  spec.set_steps(1'000'000);
  spec.set_global_batch(workers);
  spec.mutable_wrap()->set_policy("class");
  spec.mutable_wrap()->add_wrap_classes("LlamaDecoderLayer");
  const int local = BenchLocalWorkers(workers);
  v1::MeshSpec* mesh = spec.mutable_mesh();
  mesh->set_min_workers(workers);
  mesh->set_max_workers(workers);
  if (local < workers) {
    mesh->set_local_world_size(local);
    mesh->set_strategy("hybrid_shard");
    mesh->set_replicas(workers / local);
  }
  // This machine may be late with all of it; a real member's timeouts are for other faults.
  spec.mutable_timeouts()->mutable_lease()->set_seconds(120);
  spec.mutable_timeouts()->mutable_collective()->set_seconds(3600);
  spec.mutable_timeouts()->mutable_form()->set_seconds(900);
  spec.set_max_recoveries(0);
  return ResolveJobSpec(std::move(spec));
}

double Percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(part * static_cast<double>(values.size())));
  return values[std::max<size_t>(rank, 1) - 1];
}

absl::StatusOr<ControlFigures> BenchControl(const ControlBenchOptions& options) {
  TESSERA_RETURN_IF_ERROR(Check(options));
  TESSERA_RETURN_IF_ERROR(AllowDescriptors(options.connections));
  TESSERA_ASSIGN_OR_RETURN(const v1::JobSpec spec, ControlBenchJob(options.workers));
  TESSERA_ASSIGN_OR_RETURN(const auto cluster,
                           LocalCluster::Start({.coordinator = options.coordinator, .worker = ""},
                                               /*interrupt_fd=*/-1));
  const pid_t coordinator = cluster->coordinator().pid();
  Client client(cluster->coordinator_address());
  TESSERA_RETURN_IF_ERROR(client.CreateJob(spec, /*validate_only=*/false).status());
  TESSERA_ASSIGN_OR_RETURN(const v1::CreatePlanResponse plan, client.GetPlan(spec.name()));
  ControlFigures figures;
  figures.workers = options.workers;
  figures.connections = options.connections;
  figures.units = plan.plan().units_size();
  const int local = BenchLocalWorkers(options.workers);
  figures.hosts = options.workers / local;
  SimulatedMembers members({.address = cluster->coordinator_address(),
                            .job = spec.name(),
                            .workers = options.workers,
                            .local_workers = local,
                            .connections = options.connections,
                            .units = figures.units,
                            .step = ReportSchedule::Period(options.workers, figures.units)});
  TESSERA_RETURN_IF_ERROR(MeasureForm(coordinator, members, &figures));
  TESSERA_RETURN_IF_ERROR(MeasureSteady(coordinator, options, members, &figures));
  TESSERA_RETURN_IF_ERROR(MeasureGetPlan(options, members, &figures));
  TESSERA_ASSIGN_OR_RETURN(const ProcessUsage usage, ReadProcessUsage(coordinator));
  figures.coordinator_peak_rss_bytes = usage.peak_rss_bytes;
  members.Stop();
  cluster->Stop(absl::ZeroDuration(), /*interrupt_fd=*/-1);
  return figures;
}

}  // namespace tessera
