#include "client/plan_flags.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/job_input.h"
#include "client/model_input.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

enum class Kind { kValue, kList, kSwitch };

struct FieldFlag {
  const char* flag;
  const char* field;
  Kind kind;
  const char* help;
};

constexpr FieldFlag kFieldFlags[] = {
    {"--wrap", "wrap.policy", Kind::kValue,
     "which modules are units: size, class, always, none or annotated [size]"},
    {"--min_params", "wrap.min_params", Kind::kValue,
     "size: elements of a unit outside the units below it [100000000]"},
    {"--wrap_classes", "wrap.wrap_classes", Kind::kList, "class: A,B: classes that are units"},
    {"--exclude_classes", "wrap.exclude_classes", Kind::kList,
     "size: never units themselves [ModuleList,ModuleDict]"},
    {"--force_leaf_classes", "wrap.force_leaf_classes", Kind::kList,
     "size: nor is what is below them [MultiheadAttention]"},
    {"--ignore", "wrap.ignore", Kind::kList, "FQN,FQN: modules and parameters left alone"},
    {"--root_unit", "wrap.root_unit", Kind::kValue, "always or by_policy [always]"},
    {"--ties", "wrap.ties", Kind::kValue, "tied parameters: lift or reject [lift]"},
    {"--mixed_dtypes", "wrap.mixed_dtypes", Kind::kValue,
     "several dtypes in a unit: refuse or split [refuse]"},
    {"--param_align_bytes", "wrap.param_align_bytes", Kind::kValue,
     "of each parameter's start; 0: none [16]"},
    {"--shard_align_bytes", "wrap.shard_align_bytes", Kind::kValue,
     "of each shard's start; 0: none, as FSDP [128]"},
    {"--strategy", "mesh.strategy", Kind::kValue,
     "full_shard, shard_grad_op, no_shard, hybrid_shard or hybrid_shard_zero2 [full_shard]"},
    {"--replicas", "mesh.replicas", Kind::kValue, "copies of the whole model [1]"},
    {"--local_world_size", "mesh.local_world_size", Kind::kValue, "ranks of a host [all]"},
    {"--reshard_group", "mesh.reshard_group", Kind::kValue,
     "ranks that a unit is sharded over after its forward; 0: all [0]"},
    {"--param_dtype", "mixed_precision.param_dtype", Kind::kValue,
     "dtype that units compute in [the model's]"},
    {"--reduce_dtype", "mixed_precision.reduce_dtype", Kind::kValue,
     "dtype of reduced gradients [param_dtype]"},
    {"--buffer_dtype", "mixed_precision.buffer_dtype", Kind::kValue,
     "dtype of floating-point buffers [each its own]"},
    {"--keep_grads_in_reduce_dtype", "mixed_precision.keep_grads_in_reduce_dtype", Kind::kSwitch,
     "reduced gradients stay in reduce_dtype [false]"},
    {"--keep_low_precision_grads", "mixed_precision.keep_low_precision_grads", Kind::kSwitch,
     "the same under FSDP's name"},
    {"--unsynced_grad_dtype", "mixed_precision.unsynced_grad_dtype", Kind::kValue,
     "of gradients not yet reduced: compute or reduce [compute]"},
    {"--loss_scale", "mixed_precision.loss_scale", Kind::kValue,
     "none, dynamic or a number [none]"},
    {"--full_precision_eval", "mixed_precision.full_precision_eval", Kind::kSwitch,
     "units in the model's dtype in evaluation"},
    {"--divide_factor", "mixed_precision.divide_factor", Kind::kValue,
     "what summed gradients are divided by [the ranks that hold them]"},
    {"--unshard", "memory.unshard", Kind::kValue, "auto, resident or slots [auto]"},
    {"--reshard_root", "memory.reshard_root", Kind::kSwitch,
     "let go of the root after its forward"},
    {"--prefetch", "memory.prefetch", Kind::kValue, "units gathered ahead [1]"},
    {"--max_live_units", "memory.max_live_units", Kind::kValue,
     "units whole at once; 0: as the tree asks [0]"},
    {"--accumulate_unsynchronized", "memory.accumulate_unsynchronized", Kind::kSwitch,
     "a gradient buffer for each unit [false]"},
    {"--device_memory", "memory.device_memory", Kind::kValue,
     "of a device, e.g. 80GiB: does it fit?"},
    {"--optimizer", "optimizer.name", Kind::kValue, "adamw, adam or sgd [adamw]"},
    {"--batch", "activations.batch", Kind::kValue, "sequences of a rank in one micro-batch"},
    {"--sequence", "activations.sequence", Kind::kValue, "tokens of a sequence"},
    {"--recompute", "activations.recompute", Kind::kValue,
     "activations computed again in backward: none or unit [none]"},
};

// "A,B" as ["A", "B"]. Quoted by hand: whatever the text is, SetField then says what is wrong.
std::string JsonList(absl::string_view values) {
  return absl::StrCat("[",
                      absl::StrJoin(absl::StrSplit(values, ','), ", ",
                                    [](std::string* out, absl::string_view value) {
                                      out->push_back('"');
                                      for (const char c : value) {
                                        if (absl::ascii_iscntrl(c)) {
                                          absl::StrAppend(out, "\\u00",
                                                          absl::Hex(static_cast<unsigned char>(c),
                                                                    absl::kZeroPad2));
                                          continue;
                                        }
                                        if (c == '"' || c == '\\') out->push_back('\\');
                                        out->push_back(c);
                                      }
                                      out->push_back('"');
                                    }),
                      "]");
}

absl::Status ApplyField(const FieldFlag& flag, const std::string& value, v1::JobSpec* spec) {
  std::string json = value;
  if (flag.kind == Kind::kList) {
    json = JsonList(value);
  } else if (flag.kind == Kind::kSwitch && value != "true" && value != "false") {
    return InvalidField(flag.flag, absl::StrCat("\"", value, "\" is neither true nor false"));
  }
  TESSERA_RETURN_IF_ERROR(Annotate(SetField(spec, flag.field, json), flag.flag));
  if (flag.field != absl::string_view("wrap.policy")) return absl::OkStatus();
  spec->mutable_wrap()->clear_any_of();
  if (value != "class") spec->mutable_wrap()->clear_wrap_classes();
  return absl::OkStatus();
}

}  // namespace

void AddPlanFlags(CLI::App& command, const std::shared_ptr<PlanFlags>& flags) {
  command.add_option("--model", flags->model, "ModelSpec as JSON");
  command.add_option("--hf_config", flags->hf_config, "config.json of transformers, or its folder");
  command.add_option("--safetensors", flags->safetensors,
                     "file, index or folder; headers are read");
  command.add_option("--job", flags->job, "job file");
  command.add_option("--world_size", flags->world_size, "ranks [mesh.max_workers]");
  for (const FieldFlag& flag : kFieldFlags) {
    const auto keep = [flags, name = flag.flag](const std::string& value) {
      flags->fields.emplace_back(name, value);
    };
    CLI::Option* option =
        command.add_option_function<std::string>(flag.flag, keep, std::string(flag.help));
    if (flag.kind == Kind::kSwitch) option->expected(0, 1)->default_str("true");
  }
}

absl::Status ApplyPlanFlags(const PlanFlags& flags, v1::JobSpec* spec) {
  // In the order of the table, so that --wrap does not take away what --wrap_classes gave.
  for (const FieldFlag& known : kFieldFlags) {
    for (const auto& [flag, value] : flags.fields) {
      if (flag == known.flag) TESSERA_RETURN_IF_ERROR(ApplyField(known, value, spec));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::JobSpec> LoadPlanSpec(const PlanFlags& flags) {
  int sources = 0;
  for (const std::string* path : {&flags.model, &flags.hf_config, &flags.safetensors, &flags.job}) {
    if (!path->empty()) ++sources;
  }
  if (sources != 1) {
    return InvalidField("--model, --hf_config, --safetensors, --job", "give exactly one of them");
  }
  v1::JobSpec spec;
  if (!flags.job.empty()) {
    TESSERA_ASSIGN_OR_RETURN(spec, LoadJob({.file = flags.job}));
  } else {
    spec.set_name("plan");
    TESSERA_ASSIGN_OR_RETURN(*spec.mutable_model()->mutable_spec(),
                             ReadModel({flags.model, flags.hf_config, flags.safetensors}));
  }
  TESSERA_RETURN_IF_ERROR(ApplyPlanFlags(flags, &spec));
  return spec;
}

PlanFileKind KindOfPlanFile(absl::string_view json) {
  bool plan = false;
  bool layout = false;
  bool root = false;
  // Only the outermost keys are looked at; what is below them is not kept.
  const auto look = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    if (event != nlohmann::json::parse_event_t::key) return depth == 0;
    if (depth > 1) return false;
    plan |= parsed == "plan";
    layout |= parsed == "layout";
    root |= parsed == "root";
    return false;
  };
  const nlohmann::json outermost =
      nlohmann::json::parse(json.begin(), json.end(), look, /*allow_exceptions=*/false);
  if (outermost.is_discarded()) return PlanFileKind::kJob;
  if (plan && layout) return PlanFileKind::kPlan;
  return root ? PlanFileKind::kModel : PlanFileKind::kJob;
}

bool ChangesPlan(const PlanFlags& flags) {
  return !flags.fields.empty() || flags.world_size.has_value();
}

absl::StatusOr<int> PlannedWorldSize(const PlanFlags& flags, const v1::JobSpec& resolved) {
  const int64_t size = flags.world_size.value_or(resolved.mesh().max_workers());
  if (size >= 1 && size <= kMaxWorkers) return static_cast<int>(size);
  return InvalidField("--world_size", absl::StrCat("is ", size, "; give 1 to ", kMaxWorkers));
}

}  // namespace tessera
