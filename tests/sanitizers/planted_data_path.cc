// Trains the toy model on two ranks over one mapping, with the real planner, executor, collectives
// and session, but for the faults that plant.py planted in copies of three sources.
//
//   planted_data_path none     no fault, and no sanitizer may report any
//   planted_data_path FAULT    one of plant.py's
//
// Rank 1 lags at the point at which the fault matters, so that what is reported does not depend on
// how the threads happen to run.
#include <cstdio>
#include <string>
#include <vector>

#include "common/status_macros.h"
#include "tests/fakes/thread_ranks.h"
#include "tests/sanitizers/planted.h"
#include "tests/session/toy_model.h"

namespace tessera {
namespace {

constexpr int kRanks = 2;
constexpr int kSteps = 2;

struct Fault {
  const char* name;
  const char* lag_point;
};
constexpr Fault kFaults[] = {
    {"gather_wait", "unshard_write"},      {"slot_release", "lease_release"},
    {"gradient_complete", "reduce_ready"}, {"gradient_release", "reduce"},
    {"offset", "unshard_write"},
};

// The toy model, less what would hide an element too much: with 35 + 5 + 4 elements and two shards
// of 22 there is no padding behind the last parameter of a block.
v1::JobSpec Job() {
  v1::JobSpec job = ToyJob("slots");
  job.mutable_wrap()->set_param_align_bytes(0);
  job.mutable_wrap()->set_shard_align_bytes(0);
  v1::Module* blocks = job.mutable_model()->mutable_spec()->mutable_root()->mutable_children(1);
  for (v1::Module& block : *blocks->mutable_children()) {
    block.mutable_parameters(2)->set_shape(0, 4);
  }
  return job;
}

absl::Status Train(Session& session) {
  for (int step = 0; step < kSteps; ++step)
    TESSERA_RETURN_IF_ERROR(ToyStep(session, 0.01).status());
  return session.Finish();
}

bool Run(const v1::JobSpec& job, const char* lag_point) {
  absl::StatusOr<std::unique_ptr<ThreadRanks>> ranks =
      ThreadRanks::Create(job, kRanks, {.lag_rank = 1, .lag_point = lag_point});
  if (!ranks.ok()) {
    std::fprintf(stderr, "%s\n", ranks.status().ToString().c_str());
    return false;
  }
  bool ok = (*ranks)->lags() == 0;
  for (const absl::Status& status : (*ranks)->Run(Train)) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    ok = ok && status.ok();
  }
  return ok && (*ranks)->lags() > 0;
}

int Main(const std::string& fault) {
  bool known = fault == "none", ok = true;
  planted_fault = fault.c_str();
  for (const auto& [name, lag_point] : kFaults) {
    if (fault != "none" && fault != name) continue;
    known = true;
    ok = Run(Job(), lag_point) && ok;
  }
  if (!known) return 2;
  return ok ? 0 : 3;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: planted_data_path none|FAULT\n");
    return 2;
  }
  return tessera::Main(argv[1]);
}
