// Jobs whose ranks build the model, through the coordinator.
#include "common/errors.h"
#include "coordinator/coordinator_test_fixture.h"
#include "gmock/gmock.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

class CoordinatorDraftTest : public CoordinatorFixture {
 protected:
  static v1::JobSpec Built() {
    v1::JobSpec spec;
    spec.set_name("built");
    spec.set_workload("attached");
    spec.mutable_model()->set_built(true);
    spec.set_global_batch(4);
    return spec;
  }

  // Two ranks that have joined.
  void StartBuilt() {
    ASSERT_TRUE(Create(Built()).ok());
    agent_ = JoinHost("node-a", 2, "built", nullptr, "/bin/trainer");
    for (int rank = 0; rank < 2; ++rank) ranks_.push_back(JoinRank("built", 1, rank));
  }

  static v1::ModuleAnnouncement Linear(const std::string& fqn, int64_t numel = 10) {
    v1::ModuleAnnouncement announcement;
    announcement.set_fqn(fqn);
    v1::Parameter* weight = announcement.mutable_module()->add_parameters();
    weight->set_name("w");
    weight->add_shape(numel);
    weight->set_dtype("float32");
    return announcement;
  }
  static v1::ModuleAnnouncement Root() {
    v1::ModuleAnnouncement root = Linear("", 3);
    root.mutable_module()->add_children()->set_name("a");
    root.add_sealed("a");
    return root;
  }

  absl::StatusOr<v1::AnnounceModuleResponse> Announce(int rank,
                                                      const v1::ModuleAnnouncement& announcement) {
    v1::AnnounceModuleRequest request;
    request.set_job("built");
    request.set_generation(1);
    request.set_rank(rank);
    request.set_incarnation(absl::StrCat("i", rank));
    *request.mutable_announcement() = announcement;
    return coordinator_.AnnounceModule(request);
  }
  absl::Status ChangeDType(int rank, int number, const std::string& dtype) {
    v1::ChangeModelDTypeRequest request;
    request.set_job("built");
    request.set_generation(1);
    request.set_rank(rank);
    request.set_incarnation(absl::StrCat("i", rank));
    request.set_number(number);
    request.set_dtype(dtype);
    return coordinator_.ChangeModelDType(request);
  }
  void BuildAll() {
    for (const int rank : {0, 1}) {
      for (const v1::ModuleAnnouncement& announcement : {Linear("a"), Root()}) {
        const auto answer = Announce(rank, announcement);
        ASSERT_TRUE(answer.ok()) << answer.status();
      }
    }
  }
};

TEST_F(CoordinatorDraftTest, TheRanksAreStartedBeforeThereIsAPlan) {
  const auto created = Create(Built());
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(created->state(), v1::DRAFT);
  EXPECT_EQ(Reason(coordinator_.GetPlan("built").status()), "PLAN_NOT_SEALED");
  v1::ListPlanUnitsRequest units;
  units.set_job("built");
  EXPECT_EQ(Reason(coordinator_.ListPlanUnits(units).status()), "PLAN_NOT_SEALED");
  EXPECT_TRUE(coordinator_.GetStats("built").ok());
  agent_ = JoinHost("node-a", 2, "built", nullptr, "/bin/trainer");
  ASSERT_TRUE(agent_.sink->form.has_value());
  EXPECT_TRUE(agent_.sink->form->draft());
  EXPECT_EQ(agent_.sink->form->assignments_size(), 2);
  EXPECT_EQ(agent_.sink->form->rank_forecasts_size(), 0);
  EXPECT_EQ(Get("built").state(), v1::DRAFT);
  JoinRank("built", 1, 0);
  EXPECT_TRUE(coordinator_.GetStats("built").ok());
}

TEST_F(CoordinatorDraftTest, TheRootOfEveryRankSealsThePlanAndFormsTheJob) {
  StartBuilt();
  ASSERT_TRUE(Announce(0, Linear("a")).ok());
  ASSERT_TRUE(Announce(0, Root()).ok());
  EXPECT_EQ(Get("built").state(), v1::DRAFT);
  ASSERT_TRUE(Announce(1, Linear("a")).ok());
  ASSERT_TRUE(Announce(1, Root()).ok());
  EXPECT_EQ(Get("built").state(), v1::FORMING);
  ASSERT_TRUE(agent_.sink->form.has_value());
  EXPECT_FALSE(agent_.sink->form->draft());
  EXPECT_EQ(agent_.sink->form->generation(), 1);
  EXPECT_EQ(agent_.sink->form->rank_forecasts_size(), 2);
  const auto plan = coordinator_.GetPlan("built");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->unit_count(), 2);
  // The states that a watcher sees.
  const auto log = coordinator_.WatchJob("built");
  ASSERT_TRUE(log.ok());
  std::vector<v1::JobState> states;
  for (const v1::WatchJobResponse& event : (*log)->Read(0, 64).events) {
    if (states.empty() || states.back() != event.job().state())
      states.push_back(event.job().state());
  }
  EXPECT_THAT(states, ::testing::ElementsAre(v1::DRAFT, v1::SEALED, v1::FORMING));
  for (const Member& rank : ranks_) Ready(rank);
  EXPECT_EQ(Get("built").state(), v1::RUNNING);
  for (const Member& rank : ranks_) EXPECT_EQ(rank.sink->starts, 1);
}

TEST_F(CoordinatorDraftTest, AfterTheSealTheOldIsAnsweredAndTheNewRefused) {
  StartBuilt();
  BuildAll();
  const auto root = Announce(1, Root());
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ(root->units_size(), 1);
  EXPECT_EQ(Reason(Announce(1, Linear("b")).status()), "PLAN_SEALED");
  EXPECT_EQ(Reason(ChangeDType(1, 1, "bfloat16")), "PLAN_SEALED");
}

TEST_F(CoordinatorDraftTest, OnlyTheRanksOfTheGenerationAnnounce) {
  StartBuilt();
  v1::AnnounceModuleRequest request;
  request.set_job("built");
  request.set_generation(1);
  request.set_incarnation("another");
  EXPECT_EQ(Reason(coordinator_.AnnounceModule(request).status()), "STALE_GENERATION");
  request.set_job("nobody");
  EXPECT_EQ(coordinator_.AnnounceModule(request).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CoordinatorDraftTest, AJobWithAGivenModelTakesNoAnnouncement) {
  StartGpt(1);
  v1::AnnounceModuleRequest request;
  request.set_job("gpt");
  request.set_generation(1);
  request.set_incarnation("i0");
  const absl::Status status = coordinator_.AnnounceModule(request).status();
  EXPECT_EQ(Reason(status), "PLAN_SEALED") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.built"));
}

TEST_F(CoordinatorDraftTest, ARankThatDiesWhileItBuildsIsNamed) {
  StartBuilt();
  ASSERT_TRUE(Announce(1, Linear("a")).ok());
  WorkerExited(agent_, 1, /*exit_code=*/0, /*signal=*/9);
  Pass(absl::Seconds(1), {agent_, ranks_[0]});
  const v1::Job job = Get("built");
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_EQ(job.failed_rank(), 1);
  EXPECT_TRUE(ranks_[0].sink->end.has_value());
  EXPECT_EQ(Reason(Announce(0, Linear("a")).status()), "STALE_GENERATION");
}

TEST_F(CoordinatorDraftTest, ARankThatLeavesBecauseItDisagreesIsNamedWithTheFqn) {
  StartBuilt();
  ASSERT_TRUE(Announce(0, Linear("a", 10)).ok());
  const auto other = Announce(1, Linear("a", 12));
  ASSERT_EQ(Reason(other.status()), "RANKS_DISAGREE");
  Leave(ranks_[1], other.status().code(), std::string(other.status().message()));
  Pass(absl::Seconds(1), {agent_, ranks_[0]});
  const v1::Job job = Get("built");
  EXPECT_EQ(job.failed_rank(), 1);
  EXPECT_THAT(job.reason(), HasSubstr("\"a.w\""));
}

TEST_F(CoordinatorDraftTest, ARankThatStopsBuildingIsNamedAfterTheDeadline) {
  StartBuilt();
  const std::vector<Member> all = {agent_, ranks_[0], ranks_[1]};
  Pass(absl::Seconds(40), all);
  // Rank 0 goes on and finishes; rank 1 announces once and then no more.
  for (const int rank : {0, 1}) ASSERT_TRUE(Announce(rank, Linear("a")).ok());
  ASSERT_TRUE(Announce(0, Root()).ok());
  Pass(absl::Seconds(55), all);
  EXPECT_EQ(Get("built").state(), v1::DRAFT);
  Pass(absl::Seconds(10), all);
  const v1::Job job = Get("built");
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_EQ(job.failed_rank(), 1);
  EXPECT_THAT(job.reason(), HasSubstr("rank 1 on host node-a has announced no module for 1m"));
}

TEST_F(CoordinatorDraftTest, ARankThatFinishesBeforeAnotherJoinsIsNotWaitedFor) {
  ASSERT_TRUE(Create(Built()).ok());
  agent_ = JoinHost("node-a", 2, "built", nullptr, "/bin/trainer");
  ranks_.push_back(JoinRank("built", 1, 0));
  ASSERT_TRUE(Announce(0, Linear("a")).ok());
  ASSERT_TRUE(Announce(0, Root()).ok());
  ranks_.push_back(JoinRank("built", 1, 1));
  const std::vector<Member> all = {agent_, ranks_[0], ranks_[1]};
  Pass(absl::Seconds(50), all);
  ASSERT_TRUE(Announce(1, Linear("a")).ok());
  Pass(absl::Seconds(50), all);
  EXPECT_EQ(Get("built").state(), v1::DRAFT) << Get("built").reason();
  ASSERT_TRUE(Announce(1, Root()).ok());
  EXPECT_EQ(Get("built").state(), v1::FORMING);
}

TEST_F(CoordinatorDraftTest, ADraftWithoutWorkersEndsAtTheDeadline) {
  ASSERT_TRUE(Create(Built()).ok());
  Pass(absl::Seconds(61));
  EXPECT_EQ(Get("built").state(), v1::FAILED);
  EXPECT_THAT(Get("built").reason(), HasSubstr("0 of 2 workers joined"));
}

TEST_F(CoordinatorDraftTest, AModelThatCannotBeTrainedFailsTheJobWhenItIsSealed) {
  v1::JobSpec spec = Built();
  spec.mutable_optimizer()->add_groups()->set_pattern("bias");
  ASSERT_TRUE(Create(spec).ok());
  agent_ = JoinHost("node-a", 2, "built", nullptr, "/bin/trainer");
  for (int rank = 0; rank < 2; ++rank) ranks_.push_back(JoinRank("built", 1, rank));
  for (const int rank : {0, 1}) ASSERT_TRUE(Announce(rank, Linear("")).ok());
  EXPECT_EQ(Get("built").state(), v1::FAILED);
  EXPECT_THAT(Get("built").reason(), HasSubstr("bias"));
}

// pytorch #90838: the model's dtype changes after modules were wrapped.
TEST_F(CoordinatorDraftTest, AChangeOfDTypeIsPartOfThePlan) {
  v1::JobSpec spec = Built();
  spec.mutable_wrap()->set_shard_align_bytes(0);
  spec.mutable_wrap()->set_param_align_bytes(0);
  ASSERT_TRUE(Create(spec).ok());
  agent_ = JoinHost("node-a", 2, "built", nullptr, "/bin/trainer");
  for (int rank = 0; rank < 2; ++rank) ranks_.push_back(JoinRank("built", 1, rank));
  for (const int rank : {0, 1}) {
    v1::ModuleAnnouncement half = Linear("a");
    half.mutable_module()->mutable_parameters(0)->set_dtype("bfloat16");
    ASSERT_TRUE(Announce(rank, half).ok());
    ASSERT_TRUE(ChangeDType(rank, 1, "float32").ok());
    v1::ModuleAnnouncement root = Root();
    root.set_dtype_changes(1);
    const auto answer = Announce(rank, root);
    ASSERT_TRUE(answer.ok()) << answer.status();
  }
  ASSERT_EQ(Get("built").state(), v1::FORMING) << Get("built").reason();
  v1::ListPlanUnitsRequest request;
  request.set_job("built");
  const auto units = coordinator_.ListPlanUnits(request);
  ASSERT_TRUE(units.ok());
  EXPECT_EQ(units->units(0).original_dtype(), v1::FLOAT32);
  EXPECT_EQ(units->units(0).param_dtype(), v1::FLOAT32);
}

TEST_F(CoordinatorDraftTest, ADraftCanBeCancelledAndDrained) {
  StartBuilt();
  ASSERT_TRUE(coordinator_.DrainJob("built").ok());
  EXPECT_EQ(Get("built").state(), v1::CANCELLED);
  EXPECT_TRUE(agent_.sink->end.has_value());
  ASSERT_TRUE(Create(Built()).ok());
  ASSERT_TRUE(coordinator_.CancelJob("built", "").ok());
  EXPECT_EQ(Get("built").state(), v1::CANCELLED);
}

}  // namespace
}  // namespace tessera
