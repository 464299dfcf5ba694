#include "common/job_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/model_spec.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLinear[] =
    R"({"name":"m","root":{"class_name":"Linear","parameters":[{"name":"w","shape":[4],"dtype":"bf16"}]}})";

absl::StatusOr<v1::JobSpec> Resolve(const std::string& json) {
  auto spec = ParseJobSpec(json, "job.json");
  if (!spec.ok()) return spec.status();
  return ResolveJobSpec(*std::move(spec));
}

TEST(JobSpecTest, FillsEveryDefault) {
  const auto spec = Resolve(R"({"name":"first"})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto want = ParseJobSpec(R"({
     "name": "first", "model": {"builtin": "gpt", "layers": 4, "width": 128, "heads": 4, "context": 64, "vocab": 256, "attention": true},
     "workload": "gpt", "data": "", "seed": 1, "steps": 600, "global_batch": 24, "micro_batches": 1, "eval_every": 100,
     "optimizer": {"name": "adamw", "lr": 0.001, "betas": [0.9, 0.95], "eps": 1e-8, "momentum": 0, "weight_decay": 0.1,
                   "warmup_steps": 50, "schedule": "cosine", "final_lr_fraction": 0.1, "clip_norm": 0, "clip_norm_type": "2"},
     "wrap": {"policy": "class", "wrap_classes": ["Block"], "root_unit": "always", "param_align_bytes": 16, "shard_align_bytes": 128,
              "ties": "lift", "mixed_dtypes": "refuse"},
     "mixed_precision": {"param_dtype": "", "reduce_dtype": "", "buffer_dtype": "", "keep_grads_in_reduce_dtype": false,
                         "unsynced_grad_dtype": "compute", "loss_scale": "none", "divide_factor": 0,
                         "ignored_classes": ["_BatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"],
                         "cast_forward_inputs": false, "cast_root_forward_inputs": true,
                         "full_precision_eval": false},
     "mesh": {"strategy": "full_shard", "min_workers": 2, "max_workers": 2, "replicas": 1,
              "local_world_size": 0, "reshard_group": 0},
     "memory": {"unshard": "auto", "prefetch": 1, "max_live_units": 0, "accumulate_unsynchronized": false, "device_memory": "",
                "reshard_root": false, "backward_prefetch": "pre"},
     "activations": {"recompute": "none"},
     "checkpoint": {"dir": "", "every": 0, "keep": 2, "export": true, "resume": "none", "import": "", "save": true},
     "timeouts": {"heartbeat": "1s", "lease": "5s", "collective": "30s", "form": "60s", "replacement": "30s"},
     "max_recoveries": 10, "threads_per_worker": 1, "device": "auto"})",
                                 "want");
  ASSERT_TRUE(want.ok()) << want.status();
  EXPECT_EQ(spec->DebugString(), want->DebugString());
  const auto again = ResolveJobSpec(*spec);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->DebugString(), spec->DebugString());
}

TEST(JobSpecTest, ZeroAndFalseMeanWhatTheySay) {
  const auto spec = Resolve(
      R"({"name":"a","seed":0,"eval_every":0,"model":{"attention":false},"optimizer":{"lr":0,"weight_decay":0,"warmup_steps":0,
          "final_lr_fraction":0},"memory":{"prefetch":0},"checkpoint":{"export":false},"max_recoveries":0,
          "wrap":{"param_align_bytes":0,"shard_align_bytes":0}})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->seed(), 0);
  EXPECT_EQ(spec->eval_every(), 0);
  EXPECT_FALSE(spec->model().attention());
  EXPECT_EQ(spec->optimizer().lr(), 0);
  EXPECT_EQ(spec->optimizer().warmup_steps(), 0);
  EXPECT_EQ(spec->memory().prefetch(), 0);
  EXPECT_FALSE(spec->checkpoint().export_());
  EXPECT_EQ(spec->max_recoveries(), 0);
  EXPECT_EQ(spec->wrap().shard_align_bytes(), 0);
}

TEST(JobSpecTest, DefaultsThatDependOnOtherFields) {
  const auto three = Resolve(R"({"name":"a","mesh":{"min_workers":3}})");
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_EQ(three->mesh().max_workers(), 3);
  const auto one = Resolve(R"({"name":"a","mesh":{"min_workers":1}})");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->mesh().max_workers(), 2);
  const auto classes = Resolve(absl::StrCat(R"({"name":"a","model":{"spec":)", kLinear,
                                            R"(},"wrap":{"wrap_classes":["Linear"]}})"));
  ASSERT_TRUE(classes.ok()) << classes.status();
  EXPECT_EQ(classes->wrap().policy(), "class");
  const auto dtypes =
      Resolve(R"({"name":"a","mixed_precision":{"param_dtype":"bf16","reduce_dtype":"fp32"}})");
  ASSERT_TRUE(dtypes.ok());
  EXPECT_EQ(dtypes->mixed_precision().param_dtype(), "bfloat16");
  EXPECT_EQ(dtypes->mixed_precision().reduce_dtype(), "float32");
}

TEST(JobSpecTest, RefusesBadFieldsByName) {
  // What stands beside the name, the field to blame, and what the message says.
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {R"("model":{"builtin":"bert"})", "model.builtin", "\"bert\" is unknown; use gpt"},
      {R"("model":{"builtin":"gpt","file":"m.json"})", "model", "several of"},
      {R"("model":{"file":"m.json","layers":2})", "model", "sizes of a builtin"},
      {R"("model":{"file":""})", "model.file", "path"},
      {R"("model":{"layers":0})", "model.layers", "is 0; give 1 to"},
      {R"("model":{"width":-4})", "model.width", "is -4"},
      {R"("model":{"heads":0})", "model.heads", "is 0"},
      {R"("model":{"heads":3})", "model.heads", "does not divide model.width 128"},
      {R"("model":{"context":0})", "model.context", "is 0"},
      {R"("model":{"vocab":255})", "model.vocab", "is 255; give 256"},
      {R"("device":"tpu")", "device", "\"tpu\" is unknown; use auto or cpu or cuda"},
      {R"("workload":"bert")", "workload", "\"bert\" is unknown; use gpt or replay or attached"},
      {R"("replay":{"uses":2})", "replay", "is for the workload replay; drop it"},
      {R"("workload":"replay","replay":{"uses":0})", "replay.uses", "is 0; give 1 to 16"},
      {R"("workload":"replay","replay":{"compute_us":-1})", "replay.compute_us", "is -1"},
      {R"("steps":0)", "steps", "is 0"},
      {R"("steps":-1)", "steps", "is -1"},
      {R"("global_batch":0)", "global_batch", "is 0"},
      {R"("global_batch":25)", "global_batch",
       "mesh.min_workers 2 x micro_batches 1 does not divide"},
      {R"("mesh":{"max_workers":5})", "global_batch", "mesh.max_workers 5"},
      {R"("micro_batches":0)", "micro_batches", "is 0"},
      {R"("micro_batches":7)", "global_batch", "micro_batches 7"},
      {R"("eval_every":-1)", "eval_every", "is -1"},
      {R"("max_recoveries":-1)", "max_recoveries", "is -1"},
      {R"("threads_per_worker":0)", "threads_per_worker", "is 0"},
      {R"("threads_per_worker":257)", "threads_per_worker", "is 257; give 1 to 256"},
      {R"("optimizer":{"name":"lion"})", "optimizer.name", "unknown; use adamw"},
      {R"("optimizer":{"name":"sgd","momentum":1})", "optimizer.momentum", "less than 1"},
      {R"("optimizer":{"lr":-0.1})", "optimizer.lr", "-0.1"},
      {R"("optimizer":{"lr":"NaN"})", "optimizer.lr", "finite"},
      {R"("optimizer":{"lr":"Infinity"})", "optimizer.lr", "finite"},
      {R"("optimizer":{"betas":[0.9]})", "optimizer.betas", "two numbers"},
      {R"("optimizer":{"betas":[0.9,1]})", "optimizer.betas", "[0.9, 1]"},
      {R"("optimizer":{"betas":[0.9,"NaN"]})", "optimizer.betas", "two numbers"},
      {R"("optimizer":{"eps":0})", "optimizer.eps", "above 0"},
      {R"("optimizer":{"momentum":0.9})", "optimizer.momentum", "sgd"},
      {R"("optimizer":{"weight_decay":-1})", "optimizer.weight_decay", "-1"},
      {R"("optimizer":{"warmup_steps":-1})", "optimizer.warmup_steps", "-1"},
      {R"("optimizer":{"schedule":"linear"})", "optimizer.schedule", "use constant or cosine"},
      {R"("optimizer":{"final_lr_fraction":1.5})", "optimizer.final_lr_fraction", "give 0 to 1"},
      {R"("optimizer":{"clip_norm":"-Infinity"})", "optimizer.clip_norm", "finite"},
      {R"("optimizer":{"clip_norm_type":"0.5"})", "optimizer.clip_norm_type", "1 or more"},
      {R"("optimizer":{"clip_norm_type":"max"})", "optimizer.clip_norm_type", "give inf or"},
      {R"("optimizer":{"groups":[{}]})", "optimizer.groups[0].pattern", "is absent"},
      {R"("optimizer":{"groups":[{"pattern":"a..b"}]})", "optimizer.groups[0].pattern", "segment"},
      {R"("optimizer":{"groups":[{"pattern":"a"},{"pattern":"b","lr":-1}]})",
       "optimizer.groups[1].lr", "-1"},
      {R"("optimizer":{"groups":[{"pattern":"a","lr":1,"lr_scale":2}]})",
       "optimizer.groups[0].lr_scale", "drop one"},
      {R"("optimizer":{"lr":0,"groups":[{"pattern":"a","lr":1}]})", "optimizer.groups[0].lr",
       "optimizer.lr is 0"},
      {R"("optimizer":{"groups":[{"pattern":"a","weight_decay":"NaN"}]})",
       "optimizer.groups[0].weight_decay", "finite"},
      {R"("memory":{"backward_prefetch":"both"})", "memory.backward_prefetch", "pre or post"},
      {R"("wrap":{"policy":"best"})", "wrap.policy", "unknown"},
      {R"("wrap":{"param_align_bytes":-16})", "wrap.param_align_bytes", "-16"},
      {R"("wrap":{"shard_align_bytes":1048577})", "wrap.shard_align_bytes", "1048577"},
      {absl::StrCat(R"("wrap":{"policy":"class"},"model":{"spec":)", kLinear, "}"),
       "wrap.wrap_classes", "is empty"},
      {R"("mixed_precision":{"param_dtype":"float31"})", "mixed_precision.param_dtype",
       "unknown dtype \"float31\""},
      {R"("mixed_precision":{"reduce_dtype":"int32"})", "mixed_precision.reduce_dtype",
       "cannot be trained"},
      {R"("mesh":{"strategy":"full"})", "mesh.strategy", "unknown"},
      {R"("mesh":{"local_world_size":-1})", "mesh.local_world_size", "-1"},
      {R"("mesh":{"reshard_group":-1})", "mesh.reshard_group", "-1"},
      {R"("mesh":{"strategy":"shard_grad_op","reshard_group":2})", "mesh.reshard_group",
       "is for mesh.strategy full_shard or hybrid_shard"},
      {R"("memory":{"device_memory":"80 Gigs"})", "memory.device_memory", "is not a number of"},
      {R"("memory":{"device_memory":"0"})", "memory.device_memory", "is 0"},
      {R"("activations":{"batch":0})", "activations.batch", "is 0; give 1"},
      {R"("activations":{"sequence":-1})", "activations.sequence", "-1"},
      {R"("activations":{"recompute":"all"})", "activations.recompute", "use none or unit"},
      {R"("mesh":{"min_workers":0})", "mesh.min_workers", "is 0"},
      {R"("mesh":{"min_workers":4,"max_workers":3})", "mesh.max_workers",
       "is 3, less than mesh.min_workers 4"},
      {R"("mesh":{"max_workers":100000})", "mesh.max_workers", "100000"},
      {R"("mesh":{"replicas":0})", "mesh.replicas", "is 0"},
      {R"("memory":{"unshard":"both"})", "memory.unshard", "use auto or resident or slots"},
      {R"("memory":{"prefetch":-1})", "memory.prefetch", "-1"},
      {R"("memory":{"max_live_units":-1})", "memory.max_live_units", "-1"},
      {R"("checkpoint":{"every":-1})", "checkpoint.every", "-1"},
      {R"("checkpoint":{"keep":0})", "checkpoint.keep", "is 0"},
      {R"("checkpoint":{"resume":""})", "checkpoint.resume", "none, auto"},
      {R"("checkpoint":{"import_names":[{"from":"a"},{"from":"("}]})",
       "checkpoint.import_names[1].from", "no regular expression"},
      {R"("checkpoint":{"export_names":[{"from":"a","to":"\\1"}]})",
       "checkpoint.export_names[0].to", "does not fit"},
      {R"("timeouts":{"collective":"0s"})", "timeouts.collective", "at least 0.001s"},
      {R"("timeouts":{"form":"-5s"})", "timeouts.form", "out of range"},
      {R"("timeouts":{"heartbeat":"5s"})", "timeouts.lease", "not longer than timeouts.heartbeat"},
      {R"("timeouts":{"lease":"5"})", "timeouts.lease", "not a duration such as"},
      {R"("stepps":5)", "stepps", "unknown key"},
      {R"("mesh":{"min_worker":5})", "mesh.min_worker", "unknown key"},
      {R"("steps":"many")", "steps", "\"many\" is not an integer"},
      {R"("steps":1.5)", "steps", "1.5 is not an integer"},
      {R"("data":5)", "data", "5 is not a string"},
      {R"("checkpoint":{"export":1})", "checkpoint.export", "1 is not true or false"},
      {R"("model":5)", "model", "5 is not an object"},
  };
  for (const auto& [content, field, because] : cases) {
    const absl::Status status = Resolve(absl::StrCat(R"({"name":"a",)", content, "}")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << content;
    EXPECT_EQ(Field(status), field) << content << "\n" << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(because)) << content;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n"))) << content;
  }
}

TEST(JobSpecTest, ChecksNames) {
  for (const std::string& good :
       {std::string("a"), std::string("A-1_b.c"), std::string("9"), std::string(63, 'x')}) {
    EXPECT_TRUE(Resolve(absl::StrCat(R"({"name":")", good, "\"}")).ok()) << good;
  }
  for (const std::string& bad :
       {std::string(""), std::string("-a"), std::string(".."), std::string("a/b"),
        std::string("a b"), std::string("\xc3\xa4"), std::string(64, 'x')}) {
    EXPECT_EQ(Field(Resolve(absl::StrCat(R"({"name":")", bad, "\"}")).status()), "name") << bad;
  }
  EXPECT_EQ(Field(Resolve("{}").status()), "name");
}

TEST(JobSpecTest, NamesTheFileOfABadText) {
  for (const char* text : {"", "{", "[1]", "true", "{\"name\":\"a\"} {}", "// comment\n{}",
                           "{\"name\":\"a\",\"name\":\"b\"}"}) {
    const absl::Status status = ParseJobSpec(text, "dir/job.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_TRUE(absl::StartsWith(status.message(), "dir/job.json: ")) << status;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n"))) << text;
  }
}

TEST(JobSpecTest, LargeNumbersDoNotOverflow) {
  EXPECT_FALSE(Resolve(R"({"name":"a","global_batch":"9223372036854775807"})").ok());
  EXPECT_FALSE(Resolve(R"({"name":"a","micro_batches":"9223372036854775807"})").ok());
  EXPECT_TRUE(Resolve(R"({"name":"a","seed":"-9223372036854775808"})").ok());
}

TEST(SetFieldTest, SetsFieldsOfEveryType) {
  v1::JobSpec spec;
  const std::vector<std::pair<std::string, std::string>> settings = {
      {"name", "50"},
      {"steps", "50"},
      {"model.layers", "2"},
      {"mesh.strategy", "full_shard"},
      {"optimizer.lr", "3e-4"},
      {"data", "\"a b\""},
      {"optimizer.betas", "[0.8, 0.99]"},
      {"timeouts.collective", "5s"},
      {"timeouts.lease", "\"0.5s\""},
      {"model.attention", "false"},
      {"wrap.wrap_classes", "[\"A\",\"B\"]"},
      {"checkpoint.dir", "/tmp/x=\"y\"\\"},
      {"checkpoint.resume", "null"},
      {"checkpoint.import", "a\tb\n\x7f\xc3\xa4"}};
  for (const auto& [path, value] : settings) {
    EXPECT_TRUE(SetField(&spec, path, value).ok()) << path << " " << SetField(&spec, path, value);
  }
  EXPECT_EQ(spec.name(), "50");
  EXPECT_EQ(spec.steps(), 50);
  EXPECT_EQ(spec.model().layers(), 2);
  EXPECT_EQ(spec.mesh().strategy(), "full_shard");
  EXPECT_EQ(spec.optimizer().lr(), 3e-4);
  EXPECT_EQ(spec.data(), "a b");
  EXPECT_EQ(spec.optimizer().betas_size(), 2);
  EXPECT_EQ(spec.optimizer().betas(1), 0.99);
  EXPECT_EQ(spec.timeouts().collective().seconds(), 5);
  EXPECT_EQ(spec.timeouts().lease().nanos(), 500'000'000);
  EXPECT_TRUE(spec.model().has_attention());
  EXPECT_FALSE(spec.model().attention());
  EXPECT_EQ(spec.wrap().wrap_classes_size(), 2);
  EXPECT_EQ(spec.checkpoint().dir(), "/tmp/x=\"y\"\\");
  EXPECT_EQ(spec.checkpoint().resume(), "null");
  EXPECT_EQ(spec.checkpoint().import(), "a\tb\n\x7f\xc3\xa4");
}

TEST(SetFieldTest, ReplacesListsMessagesAndClears) {
  v1::JobSpec spec;
  ASSERT_TRUE(SetField(&spec, "optimizer.betas", "[0.1, 0.2]").ok());
  ASSERT_TRUE(SetField(&spec, "optimizer.betas", "[0.3, 0.4]").ok());
  EXPECT_EQ(spec.optimizer().betas_size(), 2);
  ASSERT_TRUE(SetField(&spec, "wrap", R"({"policy":"class","wrap_classes":["A"]})").ok());
  ASSERT_TRUE(SetField(&spec, "wrap", R"({"policy":"none"})").ok());
  EXPECT_EQ(spec.wrap().wrap_classes_size(), 0);
  EXPECT_EQ(spec.wrap().policy(), "none");
  ASSERT_TRUE(SetField(&spec, "steps", "5").ok());
  ASSERT_TRUE(SetField(&spec, "steps", "null").ok());
  EXPECT_FALSE(spec.has_steps());
  ASSERT_TRUE(SetField(&spec, "timeouts.lease", "9s").ok());
  ASSERT_TRUE(SetField(&spec, "timeouts.lease", "null").ok());
  EXPECT_FALSE(spec.timeouts().has_lease());
}

TEST(SetFieldTest, RefusesAndLeavesTheSpecAlone) {
  v1::JobSpec spec;
  spec.set_steps(7);
  spec.mutable_optimizer()->add_betas(0.5);
  const std::string before = spec.DebugString();
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"stepps", "5", "no such field; there are name, model"},
      {"mesh.min", "5", "there are strategy, min_workers"},
      {"", "5", "no such field"},
      {"steps.x", "5", "steps has no fields"},
      {"optimizer.betas.0", "5", "betas has no fields"},
      {"model.spec.root.children.0.name", "a", "children has no fields"},
      {"timeouts.lease.seconds", "5", "lease has no fields"},
      {"steps", "many", "\"many\" is not JSON"},
      {"steps", "1.5", "1.5 is not an integer"},
      {"steps", "", "not JSON"},
      {"steps", "1},\"seed\":{", "not JSON"},
      {"steps", "1,\"seed\":2", "not JSON"},
      {"steps", "[1]", ""},
      {"optimizer.betas", "0.9", "takes a list"},
      {"optimizer.betas", "[\"x\"]", "is not a number"},
      {"timeouts.lease", "5", "not a duration"},
      {"model", "gpt", "not JSON"},
      {"model.layerz", "1", "no such field"},
      {"wrap", R"({"polizy":"x"})", "unknown key"},
      {"data", "\xff", "UTF-8"},
  };
  for (const auto& [path, value, because] : cases) {
    const absl::Status status = SetField(&spec, path, value);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path << "=" << value;
    EXPECT_THAT(std::string(status.message()), HasSubstr(because)) << path << "=" << value;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n"))) << path << "=" << value;
    EXPECT_EQ(spec.DebugString(), before) << path << "=" << value;
  }
}

TEST(ModelOfTest, BuiltinInlineAndFile) {
  const auto gpt = Resolve(R"({"name":"a","model":{"layers":3}})");
  ASSERT_TRUE(gpt.ok());
  const auto model = ModelOf(*gpt);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->root().children(2).children_size(), 3);

  const auto inlined = Resolve(
      absl::StrCat(R"({"name":"a","wrap":{"policy":"none"},"model":{"spec":)", kLinear, "}}"));
  ASSERT_TRUE(inlined.ok()) << inlined.status();
  EXPECT_EQ(ModelOf(*inlined)->root().class_name(), "Linear");

  const auto file = Resolve(R"({"name":"a","wrap":{"policy":"none"},"model":{"file":"m.json"}})");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(Field(ModelOf(*file).status()), "model.file");

  const auto bad = Resolve(R"({"name":"a","wrap":{"policy":"none"},"model":{"spec":{"root":{}}}})");
  ASSERT_TRUE(bad.ok());
  EXPECT_THAT(std::string(ModelOf(*bad).status().message()),
              HasSubstr("model.spec: root: has no parameters"));

  const auto huge = Resolve(R"({"name":"a","model":{"layers":10000,"width":1048576,"heads":1}})");
  ASSERT_TRUE(huge.ok());
  EXPECT_THAT(std::string(ModelOf(*huge).status().message()), HasSubstr("larger than"));
}

}  // namespace
}  // namespace tessera
