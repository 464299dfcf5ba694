// Trains the toy model on two ranks over one set of buffers, with the real planner, executor,
// collectives and session, but for the races that plant.py planted in copies of two sources, and a
// layout that overflows.
//
//   planted_data_path none     no fault, and no sanitizer may report any
//   planted_data_path FAULT    one of Faults()
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

// One rank lags at a passage of `lag_point`, and the other does not pass `meet_point` before it
// does: so it does what it must not do yet, whatever way the threads happen to run.
struct Fault {
  const char* name;
  const char* unshard;
  ThreadRanks::Options options;
};

ThreadRanks::Options Lag(int rank, const char* point, int passage, const char* meet_point,
                         int meet_passage) {
  ThreadRanks::Options options;
  options.lag_rank = rank;
  options.lag_point = point;
  options.lag_passage = passage;
  options.meet_point = meet_point;
  options.meet_passage = meet_passage;
  return options;
}

// The ranks believe that the last slot begins one element further on than the memory made for it.
ThreadRanks::Options WithOffsetTooLarge() {
  ThreadRanks::Options options;
  options.spoil_layout = [](v1::Layout& layout) {
    v1::Slot& last = *layout.mutable_unsharded_slots()->rbegin();
    if (Planted("offset")) last.set_offset_bytes(last.offset_bytes() + sizeof(float));
  };
  return options;
}

// In the order of the toy model's step: root, h.0, h.1, h.2, then h.2, h.1, h.0, root.
std::vector<Fault> Faults() {
  return {
      // Rank 1 has yet to write its slice of h.0, which rank 0 reads.
      {"gather_wait", "slots", Lag(1, "unshard_write", 2, "unshard_written", 2)},
      // Rank 1 has not yet released h.0, into whose slot rank 0 writes h.1.
      {"slot_release", "slots", Lag(1, "lease_release", 1, "lease_release", 1)},
      // Rank 0 has not yet said that its gradients of h.2 are complete, which rank 1 reads. Its
      // last words before that came with the release of h.2; the zeros, in rank 1's slice, later.
      {"gradient_complete", "slots", Lag(0, "reduce_ready", 1, "reduce_ready", 1)},
      // Rank 1 has yet to read rank 0's gradients of h.2, over which rank 0 writes those of h.0.
      // With nothing to gather rank 0 gets there all alone.
      {"gradient_release", "resident", Lag(1, "reduce", 1, "gradient_acquire", 4)},
      {"offset", "slots", WithOffsetTooLarge()},
  };
}

// The toy model, less what would hide a fault: slots are taken again at once, and there is no
// padding behind the last parameter of a block (35 + 5 + 4 elements in two shards of 22).
v1::JobSpec Job(const char* unshard) {
  v1::JobSpec job = ToyJob(unshard);
  job.mutable_memory()->set_prefetch(0);
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

bool Run(const Fault& fault) {
  absl::StatusOr<std::unique_ptr<ThreadRanks>> ranks =
      ThreadRanks::Create(Job(fault.unshard), kRanks, fault.options);
  if (!ranks.ok()) {
    std::fprintf(stderr, "%s\n", ranks.status().ToString().c_str());
    return false;
  }
  bool ok = true;
  for (const absl::Status& status : (*ranks)->Run(Train)) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    ok = ok && status.ok();
  }
  return ok && (*ranks)->lags() == (fault.options.lag_rank < 0 ? 0 : 1);
}

int Main(const std::string& fault) {
  bool known = fault == "none", ok = true;
  planted_fault = fault.c_str();
  for (const Fault& planted : Faults()) {
    if (fault != "none" && fault != planted.name) continue;
    known = true;
    ok = Run(planted) && ok;
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
