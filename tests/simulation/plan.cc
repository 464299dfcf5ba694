#include "tests/simulation/plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/proto_time.h"

namespace tessera::simulation {
namespace {

// Divides by every number of workers up to 10.
constexpr int64_t kGlobalBatch = 2520;

v1::JobSpec Spec(Random& random, const std::string& name, const PlanOptions& options) {
  v1::JobSpec spec;
  spec.set_name(name);
  spec.set_workload("replay");
  v1::Module* root = spec.mutable_model()->mutable_spec()->mutable_root();
  v1::Parameter* parameter = root->add_parameters();
  parameter->set_name("w");
  parameter->add_shape(8);
  parameter->set_dtype("float32");
  spec.set_global_batch(kGlobalBatch);
  spec.set_steps(random.Between(1, 10));
  spec.set_device("cpu");
  spec.set_max_recoveries(options.recovery && !random.Percent(10) ? random.Between(1, 12) : 0);
  v1::TimeoutSpec* timeouts = spec.mutable_timeouts();
  SetDuration(absl::Milliseconds(500), timeouts->mutable_heartbeat());
  SetDuration(absl::Seconds(2), timeouts->mutable_lease());
  SetDuration(absl::Milliseconds(1500), timeouts->mutable_collective());
  SetDuration(absl::Seconds(random.Between(4, 12)), timeouts->mutable_form());
  SetDuration(absl::Seconds(random.Between(1, 6)), timeouts->mutable_replacement());
  v1::CheckpointSpec* checkpoint = spec.mutable_checkpoint();
  checkpoint->set_save(random.Percent(70));
  if (checkpoint->save()) {
    checkpoint->set_dir("/checkpoints/" + name);
    checkpoint->set_every(random.Between(1, 4));
  }
  return spec;
}

// On one host, which has `workers`.
void OnOneHost(Random& random, int workers, v1::JobSpec& spec) {
  const int64_t least = random.Between(1, workers);
  spec.mutable_mesh()->set_min_workers(least);
  spec.mutable_mesh()->set_max_workers(random.Between(least, workers));
}

void OnHosts(Random& random, int hosts, int workers, v1::JobSpec& spec) {
  const int64_t local = random.Between(1, workers);
  v1::MeshSpec* mesh = spec.mutable_mesh();
  mesh->set_strategy("hybrid_shard");
  mesh->set_local_world_size(local);
  const int64_t least = random.Between(1, hosts);
  mesh->set_min_workers(local * least);
  mesh->set_max_workers(local * random.Between(least, hosts));
}

FaultKind DrawKind(Random& random, const PlanOptions& options) {
  static constexpr FaultKind kKinds[] = {
      FaultKind::kKillRank,        FaultKind::kKillRank,        FaultKind::kKillRank,
      FaultKind::kKillAgent,       FaultKind::kBreakStream,     FaultKind::kBreakStream,
      FaultKind::kCutOff,          FaultKind::kFreezeRank,      FaultKind::kFreezeAgent,
      FaultKind::kStickRank,       FaultKind::kRankError,       FaultKind::kPauseCoordinator,
      FaultKind::kKillCoordinator, FaultKind::kKillCoordinator, FaultKind::kDiskFull};
  const int64_t kinds = options.restarts ? std::size(kKinds) : std::size(kKinds) - 3;
  return kKinds[random.Between(0, kinds - 1)];
}

}  // namespace

Plan DrawPlan(Random& random, const PlanOptions& options) {
  Plan plan;
  const bool large = random.Percent(1);
  const int hosts = static_cast<int>(large ? random.Between(4, 16) : random.Between(1, 4));
  const int workers = static_cast<int>(large ? random.Between(2, 8) : random.Between(1, 8));
  const int jobs = static_cast<int>(random.Between(1, 3));
  for (int job = 0; job < jobs; ++job) {
    PlannedJobRequest& asked = plan.jobs.emplace_back();
    // Some take the name of an earlier one.
    const std::string name = absl::StrCat("job", random.Percent(15) ? 0 : job);
    asked.spec = Spec(random, name, options);
    if (large || (hosts > 1 && random.Percent(60))) {
      OnHosts(random, hosts, workers, asked.spec);
      if (large) asked.spec.set_global_batch(asked.spec.mesh().max_workers());
      if (large) asked.spec.mutable_mesh()->set_min_workers(asked.spec.mesh().max_workers());
    } else {
      OnOneHost(random, workers, asked.spec);
    }
    asked.create = random.Delay(absl::ZeroDuration(), absl::Seconds(4));
    if (random.Percent(12)) asked.cancel = random.Delay(absl::ZeroDuration(), absl::Seconds(5));
    if (random.Percent(15)) asked.drain = random.Delay(absl::ZeroDuration(), absl::Seconds(5));
    asked.asks_twice = random.Percent(40);
  }
  for (int host = 0; host < hosts; ++host) {
    const std::string bound = random.Percent(25) ? plan.jobs[0].spec.name() : "";
    plan.hosts.push_back({absl::StrCat("h", std::string(1, static_cast<char>('a' + host))), workers,
                          bound, random.Delay(absl::ZeroDuration(), absl::Seconds(3))});
  }
  plan.faults_end = absl::Seconds(8);
  const int64_t faults = !options.faults || random.Percent(8) ? 0 : random.Between(1, 7);
  for (int64_t fault = 0; fault < faults; ++fault) {
    plan.faults.push_back({DrawKind(random, options),
                           random.Delay(absl::Milliseconds(100), plan.faults_end),
                           random.Delay(absl::Milliseconds(50), absl::Seconds(4)),
                           random.Between(0, 1000), random.Between(0, 1000)});
  }
  plan.lost_calls_percent = random.Percent(40) ? random.Between(1, 25) : 0;
  return plan;
}

}  // namespace tessera::simulation
