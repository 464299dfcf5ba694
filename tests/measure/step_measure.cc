// What moving parameters and gradients adds to a training step: the same step of the same job, by
// turns with the collectives and with them taken out. Ranks are processes of one thread.
//
//   bazel-bin/tests/measure/step_measure --width=2896 --layers=1 --context=256 --batch=8 --steps=9
//
// With the collectives taken out a step computes on parameters that nobody gathered and drops its
// gradients: its loss means nothing, its work is the same. Every step begins and ends with all
// ranks at one point, so that both kinds wait for the slowest rank.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tests/fakes/thread_ranks.h"
#include "worker/bench/bench_ranks.h"
#include "worker/bench/collective_bench.h"
#include "worker/workloads/gpt.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

struct StepSeconds {
  std::vector<double> with, without;
};

// Passes every second step's operations on and does the others' without moving anything. The vote
// of a step is its end.
class SwitchedCollectives final : public Collectives {
 public:
  SwitchedCollectives(std::unique_ptr<Collectives> inner, StepSeconds* seconds)
      : inner_(std::move(inner)), seconds_(seconds) {}

  const Group& group() const override { return inner_->group(); }
  void* Unsharded(int slot) override { return inner_->Unsharded(slot); }
  void* Gradient(int gradient_slot) override { return inner_->Gradient(gradient_slot); }
  absl::StatusOr<Event> AllGather(const AllGatherOp& op, Stream* stream,
                                  OpTiming* timing) override {
    return on_ ? inner_->AllGather(op, stream, timing) : Event();
  }
  void ReleaseUnsharded(int slot) override {
    if (on_) inner_->ReleaseUnsharded(slot);
  }
  void PublishShard(int unit) override { inner_->PublishShard(unit); }
  absl::StatusOr<Event> AcquireGradient(int unit, int gradient_slot, Stream* stream) override {
    return on_ ? inner_->AcquireGradient(unit, gradient_slot, stream) : Event();
  }
  absl::Status ZeroGradient(int gradient_slot, int64_t offset_bytes, int64_t bytes,
                            Stream* stream) override {
    return inner_->ZeroGradient(gradient_slot, offset_bytes, bytes, stream);
  }
  absl::StatusOr<Event> ReduceScatter(const ReduceScatterOp& op, Stream* stream,
                                      OpTiming* timing) override {
    return on_ ? inner_->ReduceScatter(op, stream, timing) : Event();
  }
  absl::Status GatherShards(int unit, int gradient_slot, const ShardSpan& shard,
                            char* whole) override {
    return inner_->GatherShards(unit, gradient_slot, shard, whole);
  }
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view payload,
                                                    absl::string_view what) override {
    absl::StatusOr<std::vector<std::string>> payloads = inner_->Exchange(payload, what);
    if (!payloads.ok() || !absl::StartsWith(what, "the commit vote")) return payloads;
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - step_start_).count();
    // The first step of each kind fills caches and what the compute library compiles.
    if (++steps_ > 2) (on_ ? seconds_->with : seconds_->without).push_back(seconds);
    on_ = !on_;
    step_start_ = now;
    return payloads;
  }
  absl::Status Progress() override { return inner_->Progress(); }
  void Abort(const absl::Status& status) override { inner_->Abort(status); }
  void Interrupt(const absl::Status& status) override { inner_->Interrupt(status); }

 private:
  const std::unique_ptr<Collectives> inner_;
  StepSeconds* const seconds_;
  bool on_ = true;
  int64_t steps_ = 0;
  Clock::time_point step_start_ = Clock::now();
};

struct Flags {
  int64_t width = 2896, heads = 16, layers = 1, context = 256, batch = 8, pairs = 5;
  std::string unshard = "auto", param_dtype = "float32", text;
};

v1::JobSpec JobOf(const Flags& flags) {
  v1::JobSpec spec;
  spec.set_name("step");
  v1::ModelSource& model = *spec.mutable_model();
  model.set_builtin("gpt");
  model.set_layers(flags.layers);
  model.set_width(flags.width);
  model.set_heads(flags.heads);
  model.set_context(flags.context);
  model.set_vocab(256);
  spec.set_data(flags.text);
  spec.set_global_batch(flags.batch);
  spec.set_steps(2 * (flags.pairs + 1));
  spec.set_eval_every(0);
  spec.mutable_optimizer()->set_lr(1e-5);
  spec.mutable_memory()->set_unshard(flags.unshard);
  spec.mutable_mixed_precision()->set_param_dtype(flags.param_dtype);
  spec.mutable_mixed_precision()->set_reduce_dtype("float32");
  return spec;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return Percentile(values, 0.5);
}

absl::Status Measure(const Flags& flags) {
  constexpr int kRanks = 2;
  StepSeconds seconds;
  ThreadRanks::Options options;
  options.timeout = absl::Minutes(5);
  options.forked = true;
  options.wrap = [&](int, std::unique_ptr<Collectives> inner) {
    return std::make_unique<SwitchedCollectives>(std::move(inner), &seconds);
  };
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadRanks> ranks,
                           ThreadRanks::Create(JobOf(flags), kRanks, options));
  int64_t largest = 0;
  for (const v1::Unit& unit : ranks->plan().plan.units()) {
    largest = std::max<int64_t>(largest, unit.numel());
  }
  return RunBenchRanks(kRanks, [&](int rank, BenchBarrier&) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, ranks->MakeSession(rank));
    TESSERA_RETURN_IF_ERROR(RunGpt(*session));
    TESSERA_RETURN_IF_ERROR(session->Finish());
    if (rank != 0) return absl::OkStatus();
    const double with = Median(seconds.with), without = Median(seconds.without);
    printf(
        "step of a gpt, largest unit %lld parameters, %s, %s, %lld tokens a rank: %.3f s with the "
        "collectives, %.3f s without, ratio %.3f (medians of %zu and %zu)\n",
        static_cast<long long>(largest), flags.param_dtype.c_str(),
        v1::UnshardMode_Name(ranks->plan().layout.unshard_mode()).c_str(),
        static_cast<long long>(flags.batch / kRanks * flags.context), with, without, with / without,
        seconds.with.size(), seconds.without.size());
    return absl::OkStatus();
  });
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("What the collectives add to a training step.");
  app.add_option("--width", flags.width, "of the gpt [2896]");
  app.add_option("--heads", flags.heads, "[16]");
  app.add_option("--layers", flags.layers, "[1]");
  app.add_option("--context", flags.context, "[256]");
  app.add_option("--batch", flags.batch, "sequences over both ranks [8]");
  app.add_option("--pairs", flags.pairs, "of steps that are timed [5]");
  app.add_option("--unshard", flags.unshard, "auto, resident or slots [auto]");
  app.add_option("--param_dtype", flags.param_dtype, "[float32]");
  app.add_option("--data", flags.text, "a text file [/usr/share/common-licenses/*]");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = Measure(flags);
  if (status.ok()) return 0;
  fprintf(stderr, "step_measure: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
