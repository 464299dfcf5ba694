// A program whose ranks build their model unit by unit (worker/wrap.h): UNITS blocks of NUMEL
// elements each and a bias. Says what the process held at most while it built and joined, checks
// every value, trains for the job's steps with gradients of 1 and checks them again.
//
//   tessera run --job=JOB -- built_model UNITS NUMEL [FAULT]
//
// FAULT: what goes wrong on rank 1, for tests: "shape" (its block 1 is shorter), "exit" (ends
// before block 1), "hang" (never wraps block 1); "tie" on every rank.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/session.h"
#include "worker/wrap.h"

namespace {

using namespace tessera;  // NOLINT(google-build-using-namespace): a program, and short

constexpr float kRate = 0.5;

// Element i of block `unit`: exact in float32, and another for its neighbours.
float Value(int unit, int64_t i) { return static_cast<float>(unit * 16 + i % 8191); }

std::string BlockName(int unit) { return absl::StrCat("h.", unit); }

// Of /proc/self/status, in bytes.
int64_t StatusBytes(absl::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!absl::StartsWith(line, key)) continue;
    return strtoll(line.c_str() + key.size() + 1, nullptr, 10) * 1024;
  }
  return -1;
}

struct Arguments {
  int units = 0;
  int64_t numel = 0;
  std::string fault;
};

WrapModule MakeBlock(int unit, int64_t numel) {
  WrapModule block;
  block.name = BlockName(unit);
  block.class_name = "Block";
  WrapParameter& weight = block.parameters.emplace_back();
  weight.name = "weight";
  weight.shape = {numel};
  weight.values.resize(numel);
  for (int64_t i = 0; i < numel; ++i) weight.values[i] = Value(unit, i);
  return block;
}

absl::Status Build(WrapBuilder& builder, const Arguments& arguments) {
  TESSERA_ASSIGN_OR_RETURN(const EnableWrap scope, EnableWrap::Enter(&builder, {}));
  WrapModule layers;
  layers.name = "h";
  for (int unit = 0; unit < arguments.units; ++unit) {
    int64_t numel = arguments.numel;
    if (unit == 1 && builder.rank() == 1) {
      if (arguments.fault == "exit") exit(9);
      if (arguments.fault == "hang") pause();
      if (arguments.fault == "shape") numel /= 2;
    }
    WrapModule block = MakeBlock(unit, numel);
    TESSERA_RETURN_IF_ERROR(Wrap(&builder, block));
    layers.children.push_back(std::move(block));
  }
  WrapModule model;
  model.class_name = "Model";
  WrapParameter& bias = model.parameters.emplace_back();
  bias.name = "bias";
  bias.shape = {3};
  bias.values = {1, 2, 3};
  if (arguments.fault == "tie") {
    WrapParameter& tied = model.parameters.emplace_back();
    tied.name = "head";
    tied.shape = {arguments.numel};
    tied.tied_to = "h.0.weight";
  }
  model.children.push_back(std::move(layers));
  return Wrap(&builder, model);
}

// Every value of the model less `less`, each block while it is whole.
absl::Status Check(Session& session, const Arguments& arguments, float less) {
  for (int unit = 0; unit <= arguments.units; ++unit) {
    const bool root = unit == arguments.units;
    const std::string fqn = root ? "bias" : BlockName(unit) + ".weight";
    TESSERA_ASSIGN_OR_RETURN(const int index, session.FindUnitOf(fqn));
    TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(index, Phase::kEval));
    TESSERA_ASSIGN_OR_RETURN(const TensorView view, lease.Parameter(fqn));
    for (int64_t i = 0; i < view.numel; ++i) {
      const float expected = (root ? static_cast<float>(i + 1) : Value(unit, i)) - less;
      if (view.as<float>()[i] == expected) continue;
      return absl::DataLossError(
          absl::StrCat(fqn, "[", i, "] is ", view.as<float>()[i], " and should be ", expected));
    }
  }
  return absl::OkStatus();
}

// Moves every element down by kRate.
absl::Status Step(Session& session) {
  TESSERA_RETURN_IF_ERROR(session.BeginStep({.learning_rate = kRate}).status());
  TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
  for (int unit = 0; unit < session.plan().units_size(); ++unit) {
    if (session.plan().units(unit).parameters().empty()) continue;
    TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(unit, Phase::kForward));
    for (const v1::UnitParameter& parameter : session.plan().units(unit).parameters()) {
      TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot,
                               session.GradientView(unit, parameter.fqn()));
      std::fill_n(slot.view.as<float>(), slot.view.numel, 1.0f);
    }
    TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
  }
  return session.EndStep({.loss_sum = 1, .loss_count = 1}).status();
}

absl::Status Train(const std::shared_ptr<WrapBuilder>& builder, const Arguments& arguments) {
  TESSERA_RETURN_IF_ERROR(builder->Note(Build(*builder, arguments)));
  const int64_t kept = builder->kept_bytes();
  Session::Options options;
  options.built = builder;
  TESSERA_ASSIGN_OR_RETURN(const auto session, Session::Join(std::move(options)));
  fprintf(stderr, "rank %d kept %lld peak %lld\n", session->rank(), static_cast<long long>(kept),
          static_cast<long long>(StatusBytes("VmHWM")));
  absl::Status status = Check(*session, arguments, 0);
  for (int64_t step = 0; status.ok() && step < session->job().steps(); ++step) {
    status = Step(*session);
  }
  if (status.ok()) {
    status = Check(*session, arguments, kRate * static_cast<float>(session->job().steps()));
  }
  if (status.ok()) status = session->Finish();
  if (!status.ok()) session->Abort(status);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (argc < 3 || argc > 4 || !absl::SimpleAtoi(argv[1], &arguments.units) ||
      !absl::SimpleAtoi(argv[2], &arguments.numel)) {
    fprintf(stderr, "usage: built_model UNITS NUMEL [FAULT]\n");
    return 2;
  }
  if (argc == 4) arguments.fault = argv[3];
  const auto builder = WrapBuilder::Connect({});
  const absl::Status status = builder.ok() ? Train(*builder, arguments) : builder.status();
  if (status.ok()) return 0;
  fprintf(stderr, "built_model: %s\n", std::string(status.message()).c_str());
  return 1;
}
