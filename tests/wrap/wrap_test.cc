#include "worker/wrap.h"

#include <numeric>
#include <stdexcept>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/mutex.h"
#include "coordinator/draft.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/draft_rank.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::JobSpec Job() {
  v1::JobSpec spec;
  spec.set_name("built");
  spec.set_workload("attached");
  spec.mutable_model()->set_built(true);
  spec.set_global_batch(4);
  // Flat parameters without padding between parameters, and shards of ceil(numel / ranks).
  spec.mutable_wrap()->set_param_align_bytes(0);
  spec.mutable_wrap()->set_shard_align_bytes(0);
  const auto resolved = ResolveJobSpec(spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return resolved.value_or(v1::JobSpec());
}

// Builders of all ranks over one draft, as the coordinator keeps it.
class World {
 public:
  explicit World(int world_size, v1::JobSpec spec = Job()) : draft_(spec, world_size) {
    for (int rank = 0; rank < world_size; ++rank) {
      WrapBuilder::World world;
      world.rank = rank;
      world.world_size = world_size;
      world.spec = spec;
      world.announce = [this, rank](const v1::ModuleAnnouncement& announcement)
          -> absl::StatusOr<v1::AnnounceModuleResponse> {
        MutexLock lock(mutex_);
        announced_.push_back(announcement);
        if (lost_requests_ > 0 && --lost_requests_ >= 0)
          return absl::UnavailableError("request lost");
        auto answer = draft_.Announce(rank, announcement);
        if (lost_answers_ > 0 && --lost_answers_ >= 0) return absl::AbortedError("answer lost");
        return answer;
      };
      world.change_dtype = [this, rank](int number, const std::string& dtype) {
        MutexLock lock(mutex_);
        const absl::Status status = draft_.ChangeDType(rank, number, dtype);
        if (lost_answers_ > 0 && --lost_answers_ >= 0) return absl::AbortedError("answer lost");
        return status;
      };
      builders_.push_back(std::make_unique<WrapBuilder>(std::move(world)));
    }
  }

  WrapBuilder* rank(int rank) { return builders_[rank].get(); }
  Draft& draft() { return draft_; }
  const std::vector<v1::ModuleAnnouncement>& announced() const { return announced_; }
  void LoseAnswers(int count) { lost_answers_ = count; }
  void LoseRequests(int count) { lost_requests_ = count; }

  // What a rank kept of a unit of one parameter.
  std::vector<float> Kept(int rank, const std::string& unit, int64_t shard_numel, int world_size) {
    v1::Unit of;
    of.set_fqn(unit);
    v1::UnitLayout layout;
    layout.set_shard_numel(shard_numel);
    layout.set_padded_numel(shard_numel * world_size);
    std::vector<float> shard(shard_numel, -1);
    const absl::Status moved =
        BuiltRank::Kept(*builders_[rank])
            .MoveTo(of, layout, rank % world_size, FloatShard(absl::MakeSpan(shard)));
    EXPECT_TRUE(moved.ok()) << moved;
    return shard;
  }

 private:
  Mutex mutex_;
  Draft draft_;
  std::vector<v1::ModuleAnnouncement> announced_;
  int lost_answers_ = 0, lost_requests_ = 0;
  std::vector<std::unique_ptr<WrapBuilder>> builders_;
};

WrapParameter Parameter(const std::string& name, int64_t numel, float first) {
  WrapParameter parameter;
  parameter.name = name;
  parameter.shape = {numel};
  parameter.values.resize(numel);
  std::iota(parameter.values.begin(), parameter.values.end(), first);
  return parameter;
}

WrapModule Module(const std::string& name, int64_t numel, float first = 0) {
  WrapModule module;
  module.name = name;
  module.class_name = "Linear";
  module.parameters.push_back(Parameter("w", numel, first));
  return module;
}

EnableWrap Enter(WrapBuilder* builder, EnableWrap::Defaults defaults = {}) {
  auto scope = EnableWrap::Enter(builder, std::move(defaults));
  EXPECT_TRUE(scope.ok()) << scope.status();
  return *std::move(scope);
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// FairScale's test_wrap (F1).
TEST(WrapTest, EachRankKeepsItsSliceAndDropsTheRest) {
  World world(2);
  for (const int rank : {0, 1}) {
    const EnableWrap scope = Enter(world.rank(rank));
    WrapModule linear = Module("fc", 5, 10);
    const absl::Status status = Wrap(world.rank(rank), linear);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(linear.wrapped);
    EXPECT_THAT(linear.parameters[0].values, IsEmpty());
    EXPECT_EQ(linear.parameters[0].values.capacity(), 0u);
    EXPECT_EQ(world.rank(rank)->kept_bytes(), 3 * 4);
  }
  // 5 elements over 2 ranks: 3 each, and a 0 at the end.
  EXPECT_THAT(world.Kept(0, "fc", 3, 2), ElementsAre(10, 11, 12));
  EXPECT_THAT(world.Kept(1, "fc", 3, 2), ElementsAre(13, 14, 0));
  EXPECT_EQ(world.rank(0)->kept_bytes(), 0);
}

// FairScale's test_wrap_disabled_outside_context (F2), and PyTorch's P14.
TEST(WrapTest, OutsideAScopeAModuleStaysAsItIs) {
  World world(1);
  WrapModule linear = Module("fc", 5);
  EXPECT_TRUE(Wrap(world.rank(0), linear).ok());
  EXPECT_TRUE(AutoWrap(world.rank(0), linear).ok());
  EXPECT_TRUE(Wrap(nullptr, linear).ok());
  EXPECT_TRUE(AutoWrap(nullptr, linear).ok());
  { const EnableWrap scope = Enter(world.rank(0)); }
  const EnableWrap of_nobody = Enter(nullptr);
  EXPECT_TRUE(Wrap(world.rank(0), linear).ok());
  EXPECT_FALSE(linear.wrapped);
  EXPECT_EQ(linear.parameters[0].values.size(), 5u);
  EXPECT_THAT(world.announced(), IsEmpty());
}

TEST(WrapTest, ScopesDoNotNestAndTheOuterSurvives) {
  World world(1);
  const EnableWrap outer = Enter(world.rank(0));
  const auto inner = EnableWrap::Enter(world.rank(0), {});
  EXPECT_EQ(inner.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(inner.status()), HasSubstr("do not nest"));
  WrapModule linear = Module("fc", 5);
  ASSERT_TRUE(Wrap(world.rank(0), linear).ok());
  EXPECT_TRUE(linear.wrapped);
}

TEST(WrapTest, AScopeEndsOnAnException) {
  World world(1);
  try {
    const EnableWrap scope = Enter(world.rank(0));
    throw std::runtime_error("in the middle of a model");
  } catch (const std::runtime_error&) {
  }
  WrapModule linear = Module("fc", 5);
  EXPECT_TRUE(Wrap(world.rank(0), linear).ok());
  EXPECT_FALSE(linear.wrapped);
  const EnableWrap again = Enter(world.rank(0));
}

// FairScale sets its flag before it checks, and stays "in context" for ever.
TEST(WrapTest, AScopeThatCannotBeginLeavesNothingBehind) {
  World world(1);
  EnableWrap::Defaults bad;
  bad.config.set_param_dtype("float33");
  const auto scope = EnableWrap::Enter(world.rank(0), bad);
  EXPECT_EQ(Field(scope.status()), "config.param_dtype") << scope.status();
  WrapModule linear = Module("fc", 5);
  EXPECT_TRUE(Wrap(world.rank(0), linear).ok());
  EXPECT_FALSE(linear.wrapped);
  const EnableWrap good = Enter(world.rank(0));
}

TEST(WrapTest, BuildersHaveScopesOfTheirOwn) {
  World world(2);
  const EnableWrap scope = Enter(world.rank(0));
  WrapModule linear = Module("fc", 5);
  EXPECT_TRUE(Wrap(world.rank(1), linear).ok());
  EXPECT_FALSE(linear.wrapped);
  const EnableWrap other = Enter(world.rank(1));
}

// FairScale's test_wrap_override_defaults (F3), with the module's own between the two.
TEST(WrapTest, TheCallWinsOverTheModuleAndThatOverTheScope) {
  World world(1);
  EnableWrap::Defaults defaults;
  defaults.config.set_param_dtype("float16");
  defaults.config.set_reduce_dtype("float16");
  defaults.config.set_buffer_dtype("float16");
  const EnableWrap scope = Enter(world.rank(0), defaults);
  WrapModule root = Module("", 5);
  root.wrap_config.emplace().set_param_dtype("bfloat16");
  root.wrap_config->set_reduce_dtype("bfloat16");
  v1::WrapConfig overrides;
  overrides.set_reduce_dtype("float32");
  ASSERT_TRUE(Wrap(world.rank(0), root, overrides).ok());
  const auto sealed = world.draft().Seal();
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  const v1::WrapConfig& config = sealed->model().spec().root().wrap_config();
  EXPECT_EQ(config.param_dtype(), "bfloat16");
  EXPECT_EQ(config.reduce_dtype(), "float32");
  EXPECT_EQ(config.buffer_dtype(), "float16");
}

TEST(WrapTest, TheCallsPolicyWinsOverTheScopesAndThatOverSize) {
  World world(1);
  v1::WrapSpec of_scope, of_call;
  of_scope.set_policy("none");
  of_call.set_policy("class");
  of_call.add_wrap_classes("Linear");
  WrapModule module;
  module.name = "m";
  module.children.push_back(Module("fc", 5));
  {
    const EnableWrap scope = Enter(world.rank(0));
    AutoWrap(world.rank(0), module).IgnoreError();
  }
  EnableWrap::Defaults defaults;
  defaults.policy = of_scope;
  const EnableWrap scope = Enter(world.rank(0), defaults);
  ASSERT_TRUE(AutoWrap(world.rank(0), module).ok());
  EXPECT_FALSE(module.children[0].wrapped);
  EXPECT_EQ(module.children[0].parameters[0].values.size(), 5u);
  ASSERT_TRUE(AutoWrap(world.rank(0), module, of_call).ok());
  EXPECT_TRUE(module.children[0].wrapped);
  EXPECT_EQ(module.children[0].name, "m.fc");
  EXPECT_FALSE(module.wrapped);
  EXPECT_EQ(world.announced()[0].policy().policy(), "size");
  EXPECT_EQ(world.announced()[1].policy().policy(), "none");
  EXPECT_EQ(world.announced()[2].policy().policy(), "class");
}

TEST(WrapTest, WhatAutoWrapLeavesIsTheEnclosingUnits) {
  World world(1);
  v1::WrapSpec blocks;
  blocks.set_policy("class");
  blocks.add_wrap_classes("Linear");
  const EnableWrap scope = Enter(world.rank(0));
  WrapModule list;
  list.name = "h";
  list.class_name = "ModuleList";
  list.parameters.push_back(Parameter("scale", 2, 50));
  list.children.push_back(Module("0", 3, 1));
  list.children.push_back(Module("1", 3, 4));
  ASSERT_TRUE(AutoWrap(world.rank(0), list, blocks).ok());
  EXPECT_EQ(list.parameters[0].values.size(), 2u);
  WrapModule root = Module("", 1, 99);
  root.children.push_back(std::move(list));
  const absl::Status status = Wrap(world.rank(0), root);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(world.rank(0)->complete());
  EXPECT_THAT(world.Kept(0, "h.0", 3, 1), ElementsAre(1, 2, 3));
  EXPECT_THAT(world.Kept(0, "h.1", 3, 1), ElementsAre(4, 5, 6));
  EXPECT_THAT(world.Kept(0, "", 3, 1), ElementsAre(99, 50, 51));
}

TEST(WrapTest, ALostAnswerAndALostRequestAreRepeated) {
  World world(1);
  const EnableWrap scope = Enter(world.rank(0));
  WrapModule linear = Module("fc", 3, 7);
  world.LoseRequests(1);
  EXPECT_EQ(Wrap(world.rank(0), linear).code(), absl::StatusCode::kUnavailable);
  world.LoseAnswers(1);
  EXPECT_EQ(Wrap(world.rank(0), linear).code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(linear.wrapped);
  EXPECT_EQ(linear.parameters[0].values.size(), 3u);
  ASSERT_TRUE(Wrap(world.rank(0), linear).ok());
  EXPECT_TRUE(linear.wrapped);
  WrapModule root = Module("", 2, 0);
  root.children.push_back(std::move(linear));
  world.LoseAnswers(1);
  EXPECT_EQ(Wrap(world.rank(0), root).code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(world.rank(0)->complete());
  ASSERT_TRUE(Wrap(world.rank(0), root).ok());
  EXPECT_TRUE(world.rank(0)->complete());
  EXPECT_THAT(world.Kept(0, "fc", 3, 1), ElementsAre(7, 8, 9));
}

TEST(WrapTest, NothingIsWrappedAfterTheRoot) {
  World world(1);
  const EnableWrap scope = Enter(world.rank(0));
  WrapModule root = Module("", 5), late = Module("late", 5);
  ASSERT_TRUE(Wrap(world.rank(0), root).ok());
  EXPECT_EQ(Reason(Wrap(world.rank(0), late)), "PLAN_SEALED");
  EXPECT_EQ(Reason(AutoWrap(world.rank(0), late)), "PLAN_SEALED");
  EXPECT_EQ(Reason(world.rank(0)->ChangeDType(v1::BFLOAT16)), "PLAN_SEALED");
  EXPECT_EQ(late.parameters[0].values.size(), 5u);
}

// fairscale #648.
TEST(WrapTest, AModuleIsWrappedOnce) {
  World world(1);
  const EnableWrap scope = Enter(world.rank(0));
  WrapModule linear = Module("fc", 5);
  ASSERT_TRUE(Wrap(world.rank(0), linear).ok());
  const absl::Status again = Wrap(world.rank(0), linear);
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(again), HasSubstr("\"fc\""));
}

TEST(WrapTest, ATieToASealedUnitNamesBothAndKeepsTheValues) {
  World world(1);
  const EnableWrap scope = Enter(world.rank(0));
  WrapModule embed = Module("embed", 4), head;
  head.name = "head";
  head.parameters.emplace_back().name = "w";
  head.parameters[0].shape = {4};
  head.parameters[0].tied_to = "embed.w";
  head.parameters.push_back(Parameter("bias", 2, 1));
  ASSERT_TRUE(Wrap(world.rank(0), embed).ok());
  const absl::Status status = Wrap(world.rank(0), head);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("head.w"), HasSubstr("embed.w")));
  EXPECT_EQ(head.parameters[1].values.size(), 2u);
}

TEST(WrapTest, AModuleInTheWrongPlaceIsNamed) {
  World world(1);
  const EnableWrap scope = Enter(world.rank(0));
  WrapModule linear = Module("fc", 5);
  ASSERT_TRUE(Wrap(world.rank(0), linear).ok());
  WrapModule outer;
  outer.name = "outer";
  outer.children.push_back(std::move(linear));
  const absl::Status status = Wrap(world.rank(0), outer);
  EXPECT_EQ(Field(status), "fc") << status;
  EXPECT_THAT(Message(status), HasSubstr("\"outer.fc\""));
}

TEST(WrapTest, ValuesThatDoNotMakeTheShapeAreNamed) {
  World world(1);
  const EnableWrap scope = Enter(world.rank(0));
  WrapModule linear = Module("fc", 5);
  linear.parameters[0].shape = {2, 3};
  const absl::Status status = Wrap(world.rank(0), linear);
  EXPECT_EQ(Field(status), "fc.w") << status;
  EXPECT_THAT(Message(status), HasSubstr("5 values, which do not make the shape [2, 3]"));
  EXPECT_THAT(world.announced(), IsEmpty());
}

TEST(WrapTest, AParameterWithoutValuesGetsThoseOfItsRule) {
  World world(1);
  const EnableWrap scope = Enter(world.rank(0));
  WrapModule linear = Module("fc", 3);
  linear.parameters[0].values.clear();
  linear.parameters[0].init.emplace().set_kind("ones");
  ASSERT_TRUE(Wrap(world.rank(0), linear).ok());
  EXPECT_THAT(world.Kept(0, "fc", 3, 1), Each(1.0f));
}

TEST(WrapTest, ValuesAreRoundedToTheirDTypeAndAfterAChangeToThat) {
  World world(1);
  const EnableWrap scope = Enter(world.rank(0));
  WrapModule linear = Module("fc", 1);
  linear.parameters[0].values = {1.0f + 1.0f / 1024};  // float16 has 10 bits, bfloat16 7
  linear.parameters[0].dtype = v1::FLOAT16;
  ASSERT_TRUE(Wrap(world.rank(0), linear).ok());
  world.LoseAnswers(1);
  EXPECT_EQ(world.rank(0)->ChangeDType(v1::BFLOAT16).code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(world.rank(0)->ChangeDType(v1::BFLOAT16).ok());
  WrapModule other = Module("other", 1);
  other.parameters[0].values = {1.0f + 1.0f / 1024};
  other.parameters[0].dtype = v1::FLOAT16;
  ASSERT_TRUE(Wrap(world.rank(0), other).ok());
  EXPECT_THAT(world.Kept(0, "fc", 1, 1), ElementsAre(1.0f));
  EXPECT_THAT(world.Kept(0, "other", 1, 1), ElementsAre(1.0f + 1.0f / 1024));
}

TEST(WrapTest, ThreadsWrapModulesOfOneBuilder) {
  constexpr int kThreads = 8, kModules = 25;
  World world(2);
  for (const int rank : {0, 1}) {
    WrapBuilder* builder = world.rank(rank);
    const EnableWrap scope = Enter(builder);
    std::vector<WrapModule> lists(kThreads);
    std::vector<absl::Status> statuses(kThreads);
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
          lists[t].name = absl::StrCat("h", t);
          for (int i = 0; i < kModules && statuses[t].ok(); ++i) {
            WrapModule linear = Module(absl::StrCat("h", t, ".", i), 3, 100.0f * t + i);
            statuses[t] = Wrap(builder, linear);
            lists[t].children.push_back(std::move(linear));
          }
        });
      }
    }
    for (const absl::Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
    WrapModule root = Module("", 1);
    root.children = std::move(lists);
    const absl::Status status = Wrap(builder, root);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(builder->kept_bytes(), kThreads * kModules * 2 * 4 + 4);
  }
  EXPECT_TRUE(world.draft().complete());
  EXPECT_THAT(world.Kept(1, "h7.3", 2, 2), ElementsAre(705, 0));
}

TEST(WrapTest, ASessionNeedsTheRoot) {
  World world(1);
  const auto taken = BuiltRank::Take(*world.rank(0));
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(taken.status()), HasSubstr("the root is not wrapped"));
}

}  // namespace
}  // namespace tessera
