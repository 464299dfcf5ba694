// ResolveJobSpec, a message of the job file at a time: first its defaults, then its checks. The
// messages wrap and mixed_precision are in job_spec_resolve_plan.cc, mesh, memory and activations
// in job_spec_resolve_mesh.cc.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/job_spec_checks.h"
#include "common/name_rules.h"
#include "common/parameter_groups.h"
#include "common/status_macros.h"

namespace tessera {

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (low <= value && value <= high) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("is ", value, "; give ", low, " to ", high));
}

absl::Status CheckAtLeastZero(absl::string_view field, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("is ", value, "; give a finite number, 0 or more"));
}

absl::Status CheckOneOf(absl::string_view field, const std::string& value,
                        std::initializer_list<absl::string_view> known,
                        std::initializer_list<absl::string_view> later) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return absl::OkStatus();
  const bool planned = std::find(later.begin(), later.end(), value) != later.end();
  return InvalidField(
      field, absl::StrCat("\"", value, planned ? "\" is not available yet" : "\" is unknown",
                          "; use ", absl::StrJoin(known, " or ")));
}

namespace {

constexpr int64_t kMaxWidth = int64_t{1} << 20;
// As many as the largest machines have processors for a worker; more only wait for each other.
constexpr int64_t kMaxThreadsPerWorker = 256;

absl::Status ResolveName(const v1::JobSpec& spec) {
  constexpr absl::string_view kAdvice =
      "use 1 to 63 letters, digits, '-', '_' and '.', first a letter or digit";
  if (!spec.has_name()) return InvalidField("name", absl::StrCat("is absent; ", kAdvice));
  const std::string& name = spec.name();
  bool good = !name.empty() && name.size() <= 63 && absl::ascii_isalnum(name[0]);
  for (const char c : name)
    good = good && (absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.');
  // The name may be anything: it is not repeated.
  return good ? absl::OkStatus()
              : InvalidField("name", absl::StrCat("is not a job's name; ", kAdvice));
}

absl::Status ResolveModel(v1::ModelSource* model) {
  if (model->has_built() && !model->built()) model->clear_built();
  const int sources =
      model->has_builtin() + model->has_spec() + model->has_file() + model->has_built();
  if (sources > 1) {
    return InvalidField("model", "has several of builtin, spec, file and built; give one");
  }
  if (model->has_spec() || model->has_file() || model->has_built()) {
    if (model->has_layers() || model->has_width() || model->has_heads() || model->has_context() ||
        model->has_vocab() || model->has_attention()) {
      return InvalidField("model", "has sizes of a builtin model beside another; drop them");
    }
    if (model->has_file() && model->file().empty()) {
      return InvalidField("model.file", "is \"\"; give the path of a ModelSpec in JSON");
    }
    return absl::OkStatus();
  }
  TESSERA_DEFAULT(model, builtin, "gpt");
  TESSERA_DEFAULT(model, layers, 4);
  TESSERA_DEFAULT(model, width, 128);
  TESSERA_DEFAULT(model, heads, 4);
  TESSERA_DEFAULT(model, context, 64);
  TESSERA_DEFAULT(model, vocab, 256);
  TESSERA_DEFAULT(model, attention, true);
  TESSERA_RETURN_IF_ERROR(CheckOneOf("model.builtin", model->builtin(), {"gpt"}));
  TESSERA_RETURN_IF_ERROR(CheckRange("model.layers", model->layers(), 1, 10'000));
  TESSERA_RETURN_IF_ERROR(CheckRange("model.width", model->width(), 1, kMaxWidth));
  TESSERA_RETURN_IF_ERROR(CheckRange("model.heads", model->heads(), 1, kMaxWidth));
  if (model->width() % model->heads() != 0) {
    return InvalidField("model.heads",
                        absl::StrCat("is ", model->heads(), ", which does not divide model.width ",
                                     model->width(), "; change one of them"));
  }
  TESSERA_RETURN_IF_ERROR(CheckRange("model.context", model->context(), 1, kMaxWidth));
  return CheckRange("model.vocab", model->vocab(), 256, int64_t{1} << 24);
}

absl::Status ResolveOptimizer(v1::OptimizerSpec* optimizer) {
  TESSERA_DEFAULT(optimizer, name, "adamw");
  TESSERA_DEFAULT(optimizer, lr, 0.001);
  if (optimizer->betas().empty()) {
    optimizer->add_betas(0.9);
    optimizer->add_betas(0.95);
  }
  TESSERA_DEFAULT(optimizer, eps, 1e-8);
  TESSERA_DEFAULT(optimizer, momentum, 0);
  TESSERA_DEFAULT(optimizer, weight_decay, 0.1);
  TESSERA_DEFAULT(optimizer, warmup_steps, 50);
  TESSERA_DEFAULT(optimizer, schedule, "cosine");
  TESSERA_DEFAULT(optimizer, final_lr_fraction, 0.1);
  TESSERA_DEFAULT(optimizer, clip_norm, 0);
  TESSERA_DEFAULT(optimizer, clip_norm_type, "2");
  TESSERA_RETURN_IF_ERROR(
      CheckOneOf("optimizer.name", optimizer->name(), {"adamw", "adam", "sgd"}));
  TESSERA_RETURN_IF_ERROR(CheckAtLeastZero("optimizer.lr", optimizer->lr()));
  const auto in_unit = [](double value) { return value >= 0 && value < 1; };
  if (optimizer->betas_size() != 2 || !in_unit(optimizer->betas(0)) ||
      !in_unit(optimizer->betas(1))) {
    return InvalidField("optimizer.betas",
                        absl::StrCat("is [", absl::StrJoin(optimizer->betas(), ", "),
                                     "]; give two numbers, each 0 or more and less than 1"));
  }
  if (!std::isfinite(optimizer->eps()) || optimizer->eps() <= 0) {
    return InvalidField("optimizer.eps",
                        absl::StrCat("is ", optimizer->eps(), "; give a finite number above 0"));
  }
  if (!in_unit(optimizer->momentum())) {
    return InvalidField("optimizer.momentum", absl::StrCat("is ", optimizer->momentum(),
                                                           "; give 0 or more and less than 1"));
  }
  if (optimizer->momentum() != 0 && optimizer->name() != "sgd") {
    return InvalidField("optimizer.momentum", "is for sgd; drop it or give 0");
  }
  TESSERA_RETURN_IF_ERROR(CheckAtLeastZero("optimizer.weight_decay", optimizer->weight_decay()));
  TESSERA_RETURN_IF_ERROR(CheckRange("optimizer.warmup_steps", optimizer->warmup_steps(), 0));
  TESSERA_RETURN_IF_ERROR(
      CheckOneOf("optimizer.schedule", optimizer->schedule(), {"constant", "cosine"}));
  if (!(optimizer->final_lr_fraction() >= 0 && optimizer->final_lr_fraction() <= 1)) {
    return InvalidField("optimizer.final_lr_fraction",
                        absl::StrCat("is ", optimizer->final_lr_fraction(), "; give 0 to 1"));
  }
  TESSERA_RETURN_IF_ERROR(CheckAtLeastZero("optimizer.clip_norm", optimizer->clip_norm()));
  TESSERA_RETURN_IF_ERROR(NormTypeOf(*optimizer).status());
  return ParameterGroups::Create(*optimizer).status();
}

// The program of a job whose model is built says what its units are.
absl::Status ResolveBuilt(v1::JobSpec* spec) {
  if (spec->workload() != "attached") {
    return InvalidField("workload", absl::StrCat("is ", spec->workload(),
                                                 ", and model.built is for programs of your own; "
                                                 "give attached"));
  }
  v1::WrapSpec said = spec->wrap();
  said.clear_policy();
  said.clear_root_unit();
  said.clear_ties();
  said.clear_mixed_dtypes();
  said.clear_param_align_bytes();
  said.clear_shard_align_bytes();
  TESSERA_DEFAULT(spec->mutable_wrap(), policy, "annotated");
  if (spec->wrap().policy() == "annotated" && said.ByteSizeLong() == 0) return absl::OkStatus();
  return InvalidField(
      "wrap",
      "says which modules are units, and with model.built the program says so "
      "(AutoWrap takes a policy); give root_unit, ties, mixed_dtypes and the alignments alone");
}

absl::Status ResolveCheckpoint(v1::CheckpointSpec* checkpoint) {
  TESSERA_DEFAULT(checkpoint, dir, "");
  TESSERA_DEFAULT(checkpoint, every, 0);
  TESSERA_DEFAULT(checkpoint, keep, 2);
  TESSERA_DEFAULT(checkpoint, export_, true);
  TESSERA_DEFAULT(checkpoint, resume, "none");
  TESSERA_DEFAULT(checkpoint, import, "");
  TESSERA_DEFAULT(checkpoint, save, true);
  TESSERA_RETURN_IF_ERROR(CheckRange("checkpoint.every", checkpoint->every(), 0));
  TESSERA_RETURN_IF_ERROR(CheckRange("checkpoint.keep", checkpoint->keep(), 1));
  TESSERA_RETURN_IF_ERROR(
      NameRules::Create("checkpoint.import_names", checkpoint->import_names()).status());
  TESSERA_RETURN_IF_ERROR(
      NameRules::Create("checkpoint.export_names", checkpoint->export_names()).status());
  if (!checkpoint->resume().empty()) return absl::OkStatus();
  return InvalidField("checkpoint.resume", "is \"\"; give none, auto or the path of a checkpoint");
}

absl::Status ResolveTimeout(absl::string_view field, bool given, int64_t default_seconds,
                            google::protobuf::Duration* timeout) {
  if (!given) timeout->set_seconds(default_seconds);
  constexpr int64_t kWeekSeconds = 7 * 24 * 3'600;
  const int64_t seconds = timeout->seconds();
  const int32_t nanos = timeout->nanos();
  if (seconds >= 0 && nanos >= 0 && nanos < 1'000'000'000 && seconds < kWeekSeconds &&
      (seconds > 0 || nanos >= 1'000'000)) {
    return absl::OkStatus();
  }
  return InvalidField(field, "is out of range; give at least 0.001s and less than a week");
}

absl::Status ResolveTimeouts(v1::TimeoutSpec* timeouts) {
  const v1::TimeoutSpec given = *timeouts;
  TESSERA_RETURN_IF_ERROR(ResolveTimeout("timeouts.heartbeat", given.has_heartbeat(), 1,
                                         timeouts->mutable_heartbeat()));
  TESSERA_RETURN_IF_ERROR(
      ResolveTimeout("timeouts.lease", given.has_lease(), 5, timeouts->mutable_lease()));
  TESSERA_RETURN_IF_ERROR(ResolveTimeout("timeouts.collective", given.has_collective(), 30,
                                         timeouts->mutable_collective()));
  TESSERA_RETURN_IF_ERROR(
      ResolveTimeout("timeouts.form", given.has_form(), 60, timeouts->mutable_form()));
  TESSERA_RETURN_IF_ERROR(ResolveTimeout("timeouts.replacement", given.has_replacement(), 30,
                                         timeouts->mutable_replacement()));
  const auto order = [](const google::protobuf::Duration& d) {
    return std::pair(d.seconds(), d.nanos());
  };
  if (order(timeouts->heartbeat()) < order(timeouts->lease())) return absl::OkStatus();
  return InvalidField("timeouts.lease",
                      "is not longer than timeouts.heartbeat; every worker would be lost");
}

// Only a job of that workload has the message.
absl::Status ResolveReplay(v1::JobSpec* spec) {
  if (spec->workload() != "replay") {
    return spec->has_replay() ? InvalidField("replay", "is for the workload replay; drop it")
                              : absl::OkStatus();
  }
  v1::ReplaySpec* replay = spec->mutable_replay();
  TESSERA_DEFAULT(replay, compute_us, 0);
  TESSERA_DEFAULT(replay, uses, 1);
  TESSERA_RETURN_IF_ERROR(CheckRange("replay.compute_us", replay->compute_us(), 0, 1'000'000));
  return CheckRange("replay.uses", replay->uses(), 1, 16);
}

absl::Status CheckBatch(const v1::JobSpec& spec) {
  TESSERA_RETURN_IF_ERROR(CheckRange("global_batch", spec.global_batch(), 1));
  TESSERA_RETURN_IF_ERROR(CheckRange("micro_batches", spec.micro_batches(), 1));
  const auto check = [&](int64_t workers, absl::string_view field) {
    if (spec.global_batch() % spec.micro_batches() == 0 &&
        spec.global_batch() / spec.micro_batches() % workers == 0) {
      return absl::OkStatus();
    }
    return InvalidField("global_batch",
                        absl::StrCat("is ", spec.global_batch(), ", which ", field, " ", workers,
                                     " x micro_batches ", spec.micro_batches(),
                                     " does not divide; give a multiple of their product"));
  };
  TESSERA_RETURN_IF_ERROR(check(spec.mesh().min_workers(), "mesh.min_workers"));
  return check(spec.mesh().max_workers(), "mesh.max_workers");
}

}  // namespace

absl::StatusOr<v1::JobSpec> ResolveJobSpec(v1::JobSpec spec) {
  TESSERA_RETURN_IF_ERROR(ResolveName(spec));
  TESSERA_DEFAULT(&spec, workload, "gpt");
  TESSERA_DEFAULT(&spec, data, "");
  TESSERA_DEFAULT(&spec, seed, 1);
  TESSERA_DEFAULT(&spec, steps, 600);
  TESSERA_DEFAULT(&spec, global_batch, 24);
  TESSERA_DEFAULT(&spec, micro_batches, 1);
  TESSERA_DEFAULT(&spec, eval_every, 100);
  TESSERA_DEFAULT(&spec, max_recoveries, 10);
  TESSERA_DEFAULT(&spec, threads_per_worker, 1);
  TESSERA_DEFAULT(&spec, device, "auto");
  TESSERA_RETURN_IF_ERROR(ResolveModel(spec.mutable_model()));
  TESSERA_RETURN_IF_ERROR(CheckOneOf("workload", spec.workload(), {"gpt", "replay", "attached"}));
  TESSERA_RETURN_IF_ERROR(CheckRange("steps", spec.steps(), 1));
  TESSERA_RETURN_IF_ERROR(CheckRange("eval_every", spec.eval_every(), 0));
  TESSERA_RETURN_IF_ERROR(CheckRange("max_recoveries", spec.max_recoveries(), 0));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("threads_per_worker", spec.threads_per_worker(), 1, kMaxThreadsPerWorker));
  TESSERA_RETURN_IF_ERROR(CheckOneOf("device", spec.device(), {"auto", "cpu", "cuda"}));
  TESSERA_RETURN_IF_ERROR(ResolveOptimizer(spec.mutable_optimizer()));
  if (spec.model().built()) TESSERA_RETURN_IF_ERROR(ResolveBuilt(&spec));
  TESSERA_RETURN_IF_ERROR(ResolveWrap(spec.model().has_builtin(), spec.mutable_wrap()));
  TESSERA_RETURN_IF_ERROR(ResolveMixedPrecision(spec.mutable_mixed_precision()));
  TESSERA_RETURN_IF_ERROR(ResolveMesh(spec.mutable_mesh()));
  TESSERA_RETURN_IF_ERROR(ResolveMemory(spec.mutable_memory()));
  TESSERA_RETURN_IF_ERROR(
      ResolveActivations(spec.model().has_builtin(), spec.mutable_activations()));
  TESSERA_RETURN_IF_ERROR(ResolveCheckpoint(spec.mutable_checkpoint()));
  TESSERA_RETURN_IF_ERROR(ResolveTimeouts(spec.mutable_timeouts()));
  TESSERA_RETURN_IF_ERROR(ResolveReplay(&spec));
  TESSERA_RETURN_IF_ERROR(CheckBatch(spec));
  return spec;
}

}  // namespace tessera
