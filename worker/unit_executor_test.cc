// What the executor decides, seen through Collectives that record and never wait.
#include "worker/unit_executor.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kShard = 4;
constexpr int kRoot = 4;  // units 0 to 3 are blocks

class RecordingCollectives final : public Collectives {
 public:
  const Group& group() const override { return group_; }
  void* Unsharded(int slot) override { return memory_[slot]; }
  void* Gradient(int gradient_slot) override { return gradients_[gradient_slot]; }
  absl::StatusOr<Event> AllGather(const AllGatherOp& op, Stream*, OpTiming*) override {
    calls.push_back(absl::StrCat("gather ", op.unit, " in ", op.slot));
    if (op.reshard_slot >= 0) absl::StrAppend(&calls.back(), " from ", op.reshard_slot);
    return Event();
  }
  void ReleaseUnsharded(int slot) override { calls.push_back(absl::StrCat("release ", slot)); }
  void PublishShard(int unit) override { calls.push_back(absl::StrCat("publish ", unit)); }
  absl::StatusOr<Event> SumReplicas(int unit, int gradient_slot, const ShardSpan&,
                                    Stream*) override {
    calls.push_back(absl::StrCat("sum ", unit, " through ", gradient_slot));
    return Event();
  }
  void Reshard(int slot, int reshard_slot, int group, int64_t bytes) override {
    calls.push_back(absl::StrCat("keep 1/", group, " of ", bytes, " bytes in slot ", slot, " in ",
                                 reshard_slot));
  }
  absl::Status GatherShards(int unit, int gradient_slot, const ShardSpan&, char*) override {
    calls.push_back(absl::StrCat("shards of ", unit, " through ", gradient_slot));
    return absl::OkStatus();
  }
  absl::StatusOr<Event> AcquireGradient(int unit, int gradient_slot, Stream*) override {
    calls.push_back(absl::StrCat("acquire ", gradient_slot, " for ", unit));
    return Event();
  }
  absl::Status ZeroGradient(int gradient_slot, int64_t offset_bytes, int64_t bytes,
                            Stream*) override {
    std::memset(reinterpret_cast<char*>(gradients_[gradient_slot]) + offset_bytes, 0, bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<Event> ReduceScatter(const ReduceScatterOp& op, Stream*, OpTiming*) override {
    calls.push_back(
        absl::StrCat(op.accumulate ? "add " : "reduce ", op.unit, " from ", op.gradient_slot));
    if (!op.replicate) absl::StrAppend(&calls.back(), " in the group");
    return Event();
  }
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view payload,
                                                    absl::string_view) override {
    return std::vector<std::string>{std::string(payload)};
  }
  absl::Status Progress() override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override {}
  void Interrupt(const absl::Status&) override {}

  // The calls since the last one.
  std::vector<std::string> Take() { return std::exchange(calls, {}); }

  std::vector<std::string> calls;
  float gradients_[3][kShard] = {};

 private:
  const Group group_ = {.ranks = {0}, .index = 0, .hosts = {0}};
  float memory_[3][kShard] = {};
};

class UnitExecutorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Slot 0 is the root's, 1 the blocks', 2 a spare; the gradient slots alike.
    for (auto* slots : {layout_.mutable_unsharded_slots(), layout_.mutable_gradient_slots()}) {
      for (int slot = 0; slot < 3; ++slot) {
        v1::Slot* planned = slots->Add();
        planned->set_bytes(kShard * 4);
        if (slot < 2) planned->set_level(slot);
      }
    }
    layout_.set_prefetch(1);
    layout_.mutable_rank_file()->set_record_bytes(4096 + 64);
    layout_.mutable_rank_file()->set_optimizer_arrays(2);
    layout_.mutable_rank_file()->set_undo_bytes(3 * kShard * 4);
    layout_.mutable_rank_file()->set_undo_offset_bytes(8192);
    layout_.mutable_rank_file()->set_total_bytes(8192 + 3 * kShard * 4);
    for (int unit = 0; unit <= kRoot; ++unit) {
      v1::Unit& planned = units_.emplace_back();
      planned.set_fqn(unit == kRoot ? "" : absl::StrCat("h.", unit));
      planned.set_param_dtype(v1::FLOAT32);
      for (int p = 0; p < 2; ++p) {
        v1::UnitParameter* parameter = planned.add_parameters();
        parameter->set_fqn(absl::StrCat(planned.fqn(), ".p", p));
        parameter->add_shape(1);
        parameter->set_numel(1);
        parameter->set_requires_grad(true);
      }
      v1::UnitLayout& place = layouts_.emplace_back();
      place.set_padded_numel(kShard);
      place.set_shard_numel(kShard);
      place.set_level(unit == kRoot ? 0 : 1);
      place.add_parameters()->set_offset(0);
      place.add_parameters()->set_offset(2);
      place.set_parameter_offset_bytes(4608 + unit * 64);
      place.set_gradient_offset_bytes(5120 + unit * 64);
      place.set_optimizer_offset_bytes(5632 + unit * 64);
    }
    file_.resize(layout_.rank_file().total_bytes());
    ShardStore::Options options;
    options.file = absl::MakeSpan(file_);
    options.layout = layout_;
    options.units = units_;
    options.layouts = layouts_;
    auto store = ShardStore::Create(std::move(options));
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    stats_ = std::make_unique<StatsRecorder>(kRoot + 1);
    MakeExecutor();
  }

  // Anew, of the layout as it is now.
  void MakeExecutor() {
    executor_ = std::make_unique<UnitExecutor>(UnitExecutor::Options{.layout = layout_,
                                                                     .units = units_,
                                                                     .layouts = layouts_,
                                                                     .collectives = &collectives_,
                                                                     .store = store_.get(),
                                                                     .stats = stats_.get()});
  }

  void Use(int unit) {
    ASSERT_TRUE(executor_->Unshard(unit, true).ok());
    executor_->Release(unit);
  }

  void Step() {
    executor_->BeginStep();
    ASSERT_TRUE(executor_->Unshard(kRoot, true).ok());
    for (const int unit : {0, 1, 2, 3}) Use(unit);
    for (const int unit : {3, 2, 1, 0}) {
      Use(unit);
      ASSERT_TRUE(executor_->Reduce(unit).ok());
    }
    executor_->Release(kRoot);
    ASSERT_TRUE(executor_->Reduce(kRoot).ok());
    ASSERT_TRUE(executor_->FinishReductions().ok());
    executor_->Sweep();
  }

  v1::Layout layout_;
  std::vector<v1::Unit> units_;
  std::vector<v1::UnitLayout> layouts_;
  std::vector<char> file_;
  RecordingCollectives collectives_;
  std::unique_ptr<ShardStore> store_;
  std::unique_ptr<StatsRecorder> stats_;
  std::unique_ptr<UnitExecutor> executor_;
};

TEST_F(UnitExecutorTest, KnownOrderIsGatheredOneAheadAndTheTurnIsKept) {
  Step();
  collectives_.Take();
  executor_->BeginStep();
  ASSERT_TRUE(executor_->Unshard(kRoot, true).ok());
  EXPECT_THAT(collectives_.Take(), ElementsAre("gather 4 in 0", "gather 0 in 1"));
  Use(0);
  EXPECT_THAT(collectives_.Take(), ElementsAre("gather 1 in 2", "release 1"));
  Use(1);
  EXPECT_THAT(collectives_.Take(), ElementsAre("gather 2 in 1", "release 2"));
  Use(2);
  EXPECT_THAT(collectives_.Take(), ElementsAre("gather 3 in 2", "release 1"));
  Use(3);  // comes again at once: stays
  EXPECT_THAT(collectives_.Take(), ElementsAre());
  Use(3);
  EXPECT_THAT(collectives_.Take(), ElementsAre("gather 2 in 1", "release 2"));
}

TEST_F(UnitExecutorTest, DeclaredOrderIsGatheredAheadFromTheFirstStep) {
  ASSERT_TRUE(executor_->SetOrder({kRoot, 0, 1}).ok());
  executor_->BeginStep();
  ASSERT_TRUE(executor_->Unshard(kRoot, true).ok());
  EXPECT_THAT(collectives_.Take(), ElementsAre("gather 4 in 0", "gather 0 in 1"));
}

TEST_F(UnitExecutorTest, OrderHashDependsOnTheOrder) {
  executor_->BeginStep();
  Use(0);
  Use(1);
  const uint64_t forth = executor_->order_hash();
  UnitExecutor other({.layout = layout_,
                      .units = units_,
                      .layouts = layouts_,
                      .collectives = &collectives_,
                      .store = store_.get(),
                      .stats = stats_.get()});
  other.BeginStep();
  for (const int unit : {1, 0}) {
    ASSERT_TRUE(other.Unshard(unit, true).ok());
    other.Release(unit);
  }
  EXPECT_NE(other.order_hash(), forth);
}

TEST_F(UnitExecutorTest, UsesAreCounted) {
  ASSERT_TRUE(executor_->Unshard(0, false).ok());
  ASSERT_TRUE(executor_->Unshard(0, false).ok());
  executor_->Release(0);
  EXPECT_NE(executor_->Unsharded(0), nullptr);
  executor_->Release(0);
  EXPECT_EQ(executor_->Unsharded(0), nullptr);
  EXPECT_THAT(collectives_.Take(), ElementsAre("gather 0 in 1", "release 1"));
}

TEST_F(UnitExecutorTest, TheRootStaysWholeFromItsForwardToTheEndOfTheStep) {
  executor_->BeginStep();
  for (const int unit : {kRoot, 0, kRoot}) Use(unit);
  EXPECT_THAT(collectives_.Take(), ElementsAre("gather 4 in 0", "gather 0 in 1", "release 1"));
  executor_->Sweep();
  EXPECT_THAT(collectives_.Take(), ElementsAre("release 0"));
  layout_.set_reshard_root(true);
  MakeExecutor();
  executor_->BeginStep();
  for (int use = 0; use < 2; ++use) Use(kRoot);
  EXPECT_THAT(collectives_.Take(),
              ElementsAre("gather 4 in 0", "release 0", "gather 4 in 0", "release 0"));
}

// As SHARD_GRAD_OP has it: gathered once a step, and no part of what is gathered ahead.
TEST_F(UnitExecutorTest, UnitWithASlotOfItsOwnStaysWholeUntilTheSweep) {
  layout_.mutable_unsharded_slots(2)->set_unit(3);
  MakeExecutor();
  executor_->BeginStep();
  for (const int unit : {3, 0, 3}) Use(unit);
  ASSERT_TRUE(executor_->Prefetch(1).ok());
  EXPECT_THAT(collectives_.Take(),
              ElementsAre("gather 3 in 2", "gather 0 in 1", "release 1", "gather 1 in 1"));
  executor_->Sweep();
  EXPECT_THAT(collectives_.Take(), ElementsAre("release 1", "release 2"));
  executor_->BeginStep();
  Use(3);
  EXPECT_THAT(collectives_.Take(), ElementsAre("gather 3 in 2"));
}

TEST_F(UnitExecutorTest, ReshardedUnitIsGatheredFromItsPartsForTheRestOfTheStep) {
  layout_.set_reshard_group(2);
  layout_.add_reshard_slots()->set_unit(3);
  MakeExecutor();
  ASSERT_TRUE(executor_->Unshard(3, false).ok());
  executor_->Release(3);  // outside a step nothing is kept
  EXPECT_THAT(collectives_.Take(), ElementsAre("gather 3 in 1", "release 1"));
  executor_->BeginStep();
  for (int use = 0; use < 3; ++use) Use(3);
  EXPECT_THAT(
      collectives_.Take(),
      ElementsAre("gather 3 in 2", "keep 1/2 of 16 bytes in slot 2 in 0", "release 2",
                  "gather 3 in 1 from 0", "release 1", "gather 3 in 2 from 0", "release 2"));
  executor_->Sweep();  // the parameters change
  executor_->BeginStep();
  ASSERT_TRUE(executor_->Unshard(3, false).ok());
  EXPECT_THAT(collectives_.Take(), ElementsAre("gather 3 in 1"));
}

TEST_F(UnitExecutorTest, SumsOfTheShardGroupAreSummedOverTheReplicasOnce) {
  layout_.set_replica_count(2);
  MakeExecutor();
  executor_->BeginStep();
  ASSERT_TRUE(executor_->Reduce(0, /*all_reduce=*/false).ok());
  ASSERT_TRUE(executor_->Reduce(0, /*all_reduce=*/false).ok());
  ASSERT_TRUE(executor_->Reduce(0).ok());
  ASSERT_TRUE(executor_->Reduce(1).ok());
  EXPECT_THAT(
      collectives_.Take(),
      ElementsAre("acquire 1 for 0", "reduce 0 from 1 in the group", "acquire 1 for 0",
                  "add 0 from 1 in the group", "acquire 1 for 0", "add 0 from 1 in the group",
                  "sum 0 through 1", "acquire 2 for 1", "reduce 1 from 2"));
}

TEST_F(UnitExecutorTest, UnitGatheredAheadMakesWayForOneThatIsNeeded) {
  ASSERT_TRUE(executor_->Prefetch(3).ok());
  ASSERT_TRUE(executor_->Unshard(0, false).ok());
  ASSERT_TRUE(
      executor_->Prefetch(2).ok());  // one ahead is all the layout has: waits for its Unshard
  ASSERT_TRUE(executor_->Unshard(1, false).ok());
  EXPECT_THAT(collectives_.Take(),
              ElementsAre("gather 3 in 1", "gather 0 in 2", "release 1", "gather 1 in 1"));
}

TEST_F(UnitExecutorTest, NoSlotIsAnErrorThatNamesTheUnitsInThem) {
  ASSERT_TRUE(executor_->Unshard(0, false).ok());
  ASSERT_TRUE(executor_->Unshard(1, false).ok());
  const absl::Status status = executor_->Unshard(2, false);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no slot for unit h.2 while these are unsharded: h.0, h.1"));
}

TEST_F(UnitExecutorTest, GradientsTakeTurnsAndTheRootHasItsOwn) {
  executor_->BeginStep();
  ASSERT_TRUE(executor_->GradientOf(kRoot, 0).ok());
  for (const int unit : {3, 2, 1}) {
    ASSERT_TRUE(executor_->GradientOf(unit, 0).ok());
    ASSERT_TRUE(executor_->Reduce(unit).ok());
  }
  EXPECT_THAT(
      collectives_.Take(),
      ElementsAre("acquire 0 for 4", "acquire 2 for 3", "reduce 3 from 2", "acquire 1 for 2",
                  "reduce 2 from 1", "acquire 2 for 1", "reduce 1 from 2"));
}

TEST_F(UnitExecutorTest, FirstWriteOverwritesLaterOnesAddAndTheRestIsZero) {
  executor_->BeginStep();
  for (float& value : collectives_.gradients_[1]) value = 99;  // an older tenant's
  auto first = executor_->GradientOf(0, 1);
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(first->accumulate);
  float* data = reinterpret_cast<float*>(first->data);
  EXPECT_EQ(data, &collectives_.gradients_[1][2]);
  *data = 5;
  EXPECT_TRUE(executor_->GradientOf(0, 1)->accumulate);
  ASSERT_TRUE(executor_->Reduce(0).ok());
  EXPECT_THAT(collectives_.gradients_[1], ElementsAre(0, 0, 5, 0));
}

TEST_F(UnitExecutorTest, LaterMicroBatchesAddToTheShardAndTheNextStepStartsAnew) {
  executor_->BeginStep();
  ASSERT_TRUE(executor_->Reduce(0).ok());
  ASSERT_TRUE(executor_->Reduce(0).ok());
  executor_->BeginStep();
  ASSERT_TRUE(executor_->Reduce(0).ok());
  EXPECT_THAT(collectives_.Take(),
              ElementsAre("acquire 1 for 0", "reduce 0 from 1", "acquire 1 for 0", "add 0 from 1",
                          "acquire 1 for 0", "reduce 0 from 1"));
}

TEST_F(UnitExecutorTest, GradientSlotsDoNotDependOnWhoAsksFirst) {
  executor_->BeginStep();
  ASSERT_TRUE(executor_->GradientOf(0, 0).ok());
  ASSERT_TRUE(executor_->GradientOf(1, 0).ok());
  ASSERT_TRUE(executor_->Reduce(0).ok());
  ASSERT_TRUE(executor_->Reduce(1).ok());
  EXPECT_THAT(collectives_.Take(), ElementsAre("acquire 1 for 0", "acquire 2 for 1",
                                               "reduce 0 from 1", "reduce 1 from 2"));
  // Another rank has nothing for unit 0.
  executor_->BeginStep();
  ASSERT_TRUE(executor_->GradientOf(1, 0).ok());
  ASSERT_TRUE(executor_->Reduce(0).ok());
  ASSERT_TRUE(executor_->Reduce(1).ok());
  EXPECT_THAT(collectives_.Take(), ElementsAre("acquire 2 for 1", "acquire 1 for 0",
                                               "reduce 0 from 1", "reduce 1 from 2"));
}

TEST_F(UnitExecutorTest, SlotThatHoldsAnotherUnitsGradientsIsAnErrorThatNamesIt) {
  executor_->BeginStep();
  ASSERT_TRUE(executor_->GradientOf(0, 0).ok());
  const absl::Status status = executor_->GradientOf(2, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no gradient buffer for unit h.2 while unit h.0 has gradients in it"));
}

TEST_F(UnitExecutorTest, KeptGradientsAreAddedToAndReducedOnce) {
  executor_->BeginStep();
  for (float& value : collectives_.gradients_[1]) value = 99;  // an older tenant's
  *reinterpret_cast<float*>(executor_->GradientOf(0, 0)->data) = 5;
  executor_->KeepGradient(0);
  EXPECT_THAT(collectives_.Take(), ElementsAre("acquire 1 for 0"));
  EXPECT_THAT(std::string(executor_->FinishReductions().message()),
              HasSubstr("unit h.0 ends the step with gradients of micro-batches that were not"));
  // The next micro-batch: the first parameter is added to, the second is new.
  EXPECT_TRUE(executor_->GradientOf(0, 0)->accumulate);
  auto second = executor_->GradientOf(0, 1);
  EXPECT_FALSE(second->accumulate);
  *reinterpret_cast<float*>(second->data) = 6;
  ASSERT_TRUE(executor_->Reduce(0).ok());
  EXPECT_THAT(collectives_.Take(), ElementsAre("reduce 0 from 1"));
  EXPECT_THAT(collectives_.gradients_[1], ElementsAre(5, 0, 6, 0));
  for (const int unit : {1, 2, 3, kRoot}) ASSERT_TRUE(executor_->Reduce(unit).ok());
  EXPECT_TRUE(executor_->FinishReductions().ok());
}

TEST_F(UnitExecutorTest, MasterIsGatheredThroughAGradientSlot) {
  executor_->PublishShard(0);
  ASSERT_TRUE(executor_->GatherMaster(0, nullptr).ok());
  ASSERT_TRUE(executor_->GatherMaster(kRoot, nullptr).ok());
  EXPECT_THAT(collectives_.Take(),
              ElementsAre("publish 0", "shards of 0 through 1", "shards of 4 through 0"));
}

TEST_F(UnitExecutorTest, UseThatOutlivesTheStepIsNamed) {
  executor_->BeginStep();
  ASSERT_TRUE(executor_->Unshard(2, true).ok());
  EXPECT_THAT(std::string(executor_->FinishReductions().message()),
              HasSubstr("h.0 was not reduced"));
  for (int unit = 0; unit <= kRoot; ++unit) ASSERT_TRUE(executor_->Reduce(unit).ok());
  EXPECT_THAT(std::string(executor_->FinishReductions().message()),
              HasSubstr("unit h.2 is still in use"));
}

TEST_F(UnitExecutorTest, StepShorterThanItsOrderIsAnError) {
  ASSERT_TRUE(executor_->SetOrder({0, 1}).ok());
  executor_->BeginStep();
  Use(0);
  for (int unit = 0; unit <= kRoot; ++unit) ASSERT_TRUE(executor_->Reduce(unit).ok());
  const absl::Status status = executor_->FinishReductions();
  EXPECT_EQ(Reason(status), "ORDER_MISMATCH");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("ended after 1 unshards; the order of the steps has 2, next unit h.1"));
}

}  // namespace
}  // namespace tessera
