#include "coordinator/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/job_planner.h"
#include "coordinator/planning_test_util.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

JobPlan Planned(const std::string& more, int world_size) {
  auto planned = PlanJob(TestJob(more), world_size);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planned.ok() ? *std::move(planned) : JobPlan();
}

// Null: there is none.
const v1::Remedy* Remedy(const JobPlan& planned, const std::string& field) {
  for (const v1::Remedy& remedy : planned.forecast.fit().remedies()) {
    if (remedy.field() == field) return &remedy;
  }
  return nullptr;
}

std::string Memory(int64_t bytes, const std::string& more = "") {
  return absl::StrCat(R"("memory":{"device_memory":")", bytes, "\"", more, "}");
}

// One host maps 6,856,704 bytes, and each of two ranks 6,201,344 and 34,658,304 of activations.
constexpr int64_t kDefaultJob = 88'576'000;

TEST(FitTest, AHostHoldsAllItsRanks) {
  const JobPlan planned = Planned(Memory(kDefaultJob), 2);
  EXPECT_TRUE(planned.forecast.fits());
  EXPECT_EQ(planned.forecast.fit().needed_bytes(), kDefaultJob);
  EXPECT_EQ(planned.forecast.fit().device_memory_bytes(), kDefaultJob);
  EXPECT_EQ(planned.forecast.fit().device(), "a host of 2 ranks");
  EXPECT_THAT(planned.forecast.fit().remedies(), SizeIs(0));
  const JobPlan tight = Planned(Memory(kDefaultJob - 1), 2);
  ASSERT_TRUE(tight.forecast.has_fits());
  EXPECT_FALSE(tight.forecast.fits());
  EXPECT_FALSE(Planned("", 2).forecast.has_fit());
}

TEST(FitTest, RemediesHaveTheFiguresOfTheJobsTheyName) {
  const int64_t memory = 60'000'000;
  const JobPlan planned = Planned(Memory(memory), 2);
  const v1::Remedy* batches = Remedy(planned, "micro_batches");
  ASSERT_NE(batches, nullptr);
  EXPECT_EQ(batches->value(), "2");
  EXPECT_TRUE(batches->fits());
  const JobPlan with_batches = Planned(absl::StrCat(Memory(memory), R"(,"micro_batches":2)"), 2);
  EXPECT_EQ(batches->needed_bytes(), with_batches.forecast.fit().needed_bytes());
  EXPECT_TRUE(with_batches.forecast.fits());
  const v1::Remedy* precision = Remedy(planned, "mixed_precision.param_dtype");
  // Stand-ins cost gpt more than half of its slots saves.
  EXPECT_EQ(precision, nullptr);
  const v1::Remedy* again = Remedy(planned, "activations.recompute");
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->value(), "unit");
  EXPECT_EQ(again->needed_bytes(),
            Planned(absl::StrCat(Memory(memory), R"(,"activations":{"recompute":"unit"})"), 2)
                .forecast.fit()
                .needed_bytes());
}

TEST(FitTest, NotesSayItInWords) {
  const JobPlan fits = Planned(Memory(kDefaultJob), 2);
  ASSERT_EQ(fits.layout.notes_size(), 2);
  EXPECT_EQ(fits.layout.notes(1),
            "memory.device_memory: a host of 2 ranks needs 84.5 MiB of 84.5 MiB, which fits.");
  const JobPlan planned = Planned(Memory(60'000'000), 2);
  std::string all;
  for (const std::string& note : planned.layout.notes()) absl::StrAppend(&all, note, "\n");
  EXPECT_THAT(all, HasSubstr("a host of 2 ranks needs 84.5 MiB of 57.2 MiB, which does not fit."));
  EXPECT_THAT(all, HasSubstr("micro_batches 2: 6 sequences a rank and micro-batch; "));
  EXPECT_THAT(all, HasSubstr(" MiB, which would fit."));
}

// A batch of 2^40 sequences has many numbers of micro-batches to try.
TEST(FitTest, LargeBatchesTakeNoLongTime) {
  const JobPlan planned =
      Planned(absl::StrCat(R"("global_batch":1099511627776,)", Memory(1'000'000'000)), 2);
  const v1::Remedy* batches = Remedy(planned, "micro_batches");
  ASSERT_NE(batches, nullptr);
  EXPECT_TRUE(batches->fits());
  EXPECT_LE(batches->needed_bytes(), 1'000'000'000);
}

TEST(FitTest, TheSmallestNumberOfWorkersThatFits) {
  const auto needed = [](int workers) {
    return Planned(absl::StrCat(Memory(1), R"(,"mesh":{"local_world_size":1})"), workers)
        .forecast.fit()
        .needed_bytes();
  };
  const int64_t memory = needed(6);
  ASSERT_LT(memory, needed(5));
  const JobPlan planned =
      Planned(absl::StrCat(Memory(memory), R"(,"mesh":{"local_world_size":1})"), 2);
  const v1::Remedy* workers = Remedy(planned, "mesh.max_workers");
  ASSERT_NE(workers, nullptr);
  EXPECT_EQ(workers->value(), "6");
  EXPECT_EQ(workers->needed_bytes(), memory);
  EXPECT_TRUE(workers->fits());
}

TEST(FitTest, MoreWorkersOfOneHostGoToMoreHosts) {
  const JobPlan planned = Planned(Memory(kDefaultJob - 1), 2);
  const v1::Remedy* workers = Remedy(planned, "mesh.max_workers");
  ASSERT_NE(workers, nullptr);
  EXPECT_EQ(workers->value(), "4");
  EXPECT_THAT(workers->text(), HasSubstr("on hosts of 2"));
}

constexpr char kCuda[] = R"("workload":"attached","device":"cuda",)";

TEST(FitTest, AGpuHoldsWhatItsRankAllocates) {
  const JobPlan planned = Planned(absl::StrCat(kCuda, Memory(int64_t{1} << 40)), 2);
  EXPECT_TRUE(planned.forecast.fits());
  EXPECT_EQ(planned.forecast.fit().device(), "a GPU");
  EXPECT_EQ(
      planned.forecast.fit().needed_bytes(),
      planned.forecast.ranks(0).gpu().allocated_bytes() + planned.forecast.activation_bytes());
}

TEST(FitTest, EveryFieldThatHelpsAGpu) {
  const JobPlan planned = Planned(
      absl::StrCat(
          kCuda, R"("mesh":{"strategy":"shard_grad_op"},"activations":{"batch":4,"sequence":64},)",
          Memory(1, R"(,"accumulate_unsynchronized":true)")),
      2);
  EXPECT_FALSE(planned.forecast.fits());
  for (const char* field : {"mesh.strategy", "activations.recompute", "activations.batch",
                            "mixed_precision.param_dtype", "memory.accumulate_unsynchronized"}) {
    ASSERT_NE(Remedy(planned, field), nullptr) << field;
    EXPECT_LT(Remedy(planned, field)->needed_bytes(), planned.forecast.fit().needed_bytes());
    EXPECT_FALSE(Remedy(planned, field)->fits());
  }
  EXPECT_EQ(Remedy(planned, "mesh.strategy")->value(), "full_shard");
  EXPECT_EQ(Remedy(planned, "activations.batch")->value(), "1");
  // Nothing suffices by itself: what all of it comes to is the last word.
  const v1::Remedy& last = *planned.forecast.fit().remedies().rbegin();
  EXPECT_THAT(last.text(), HasSubstr("together: "));
  EXPECT_THAT(last.text(), HasSubstr("mesh.strategy full_shard"));
  for (const v1::Remedy& remedy : planned.forecast.fit().remedies())
    EXPECT_LE(last.needed_bytes(), remedy.needed_bytes()) << remedy.field();
}

TEST(FitTest, ShardingMoreThanTheJobDoes) {
  const auto values = [](const std::string& strategy) {
    std::vector<std::string> found;
    const JobPlan planned =
        Planned(absl::StrCat(R"("mesh":{"local_world_size":2,"strategy":")", strategy, "\"},",
                             Memory(1, R"(,"unshard":"slots")")),
                4);
    for (const v1::Remedy& remedy : planned.forecast.fit().remedies()) {
      if (remedy.field() == "mesh.strategy") found.push_back(remedy.value());
    }
    return found;
  };
  EXPECT_EQ(values("hybrid_shard_zero2"), (std::vector<std::string>{"hybrid_shard", "full_shard"}));
  EXPECT_EQ(values("hybrid_shard"), (std::vector<std::string>{"full_shard"}));
  EXPECT_EQ(values("no_shard"), (std::vector<std::string>{"full_shard"}));
  EXPECT_EQ(values("full_shard"), (std::vector<std::string>{}));
}

// A job file that only plans another model names no workload.
TEST(FitTest, AnotherModelCanComputeAgain) {
  const auto linear = [](int name, int in, int out) {
    return absl::StrCat(R"({"name":")", name, R"(","class_name":"Linear","parameters":[)",
                        R"({"name":"weight","shape":[)", out, ",", in, R"(],"dtype":"float32"}]})");
  };
  const auto unit = [&](int name) {
    return absl::StrCat(R"({"name":")", name, R"(","class_name":"Sequential","children":[)",
                        linear(0, 64, 256), ",", linear(1, 256, 64), "]}");
  };
  const JobPlan planned =
      Planned(absl::StrCat(R"("wrap":{"policy":"class","wrap_classes":["Sequential"]},)",
                           R"("activations":{"batch":64,"sequence":64},"model":{"spec":{"root":)",
                           R"({"class_name":"Sequential","children":[)", unit(0), ",", unit(1),
                           "]}}},", Memory(1)),
              2);
  ASSERT_NE(Remedy(planned, "activations.recompute"), nullptr);
  EXPECT_EQ(Remedy(planned, "activations.recompute")->value(), "unit");
}

TEST(FitTest, UnknownActivationsAreNotCounted) {
  const std::string model =
      R"("workload":"attached","wrap":{"policy":"none"},"model":{"spec":{"root":{"class_name":"M",
         "parameters":[{"name":"w","shape":[64],"dtype":"float32"}]}}},)";
  const JobPlan planned = Planned(absl::StrCat(model, Memory(1'000'000)), 2);
  EXPECT_EQ(planned.forecast.activation_certainty(), v1::Forecast::UNKNOWN);
  EXPECT_TRUE(planned.forecast.fits());
  const auto& notes = planned.layout.notes();
  ASSERT_FALSE(notes.empty());
  EXPECT_THAT(*notes.rbegin(),
              HasSubstr(absl::StrCat(", which fits; activations that are not known are not "
                                     "counted, and ",
                                     1'000'000 - planned.forecast.fit().needed_bytes(),
                                     " bytes are left for them.")));
}

// Sixteen blocks in bfloat16: resident units are there beside their masters.
constexpr char kManyBlocks[] = R"("model":{"layers":16},"mixed_precision":{"param_dtype":"bf16"},)";

TEST(AutoUnshardTest, TakesSlotsWhereResidentDoesNotFit) {
  const auto needed = [](const std::string& unshard) {
    return Planned(
               absl::StrCat(kManyBlocks, Memory(1, absl::StrCat(R"(,"unshard":")", unshard, "\""))),
               2)
        .forecast.fit()
        .needed_bytes();
  };
  const int64_t resident = needed("resident");
  const int64_t slots = needed("slots");
  ASSERT_LT(slots, resident);
  const JobPlan fits = Planned(absl::StrCat(kManyBlocks, Memory(resident)), 2);
  EXPECT_EQ(fits.layout.unshard_mode(), v1::RESIDENT);
  const JobPlan tight = Planned(absl::StrCat(kManyBlocks, Memory(resident - 1)), 2);
  EXPECT_EQ(tight.layout.unshard_mode(), v1::SLOTS);
  EXPECT_TRUE(tight.forecast.fits());
  EXPECT_EQ(tight.forecast.fit().needed_bytes(), slots);
  ASSERT_EQ(tight.layout.notes_size(), 2);
  EXPECT_THAT(tight.layout.notes(0),
              HasSubstr(absl::StrCat("auto took slots, since a host would need ", resident,
                                     " bytes with resident, more than memory.device_memory ",
                                     resident - 1, "; with slots it needs ", slots)));
}

TEST(AutoUnshardTest, StaysResidentWhereSlotsNeedMore) {
  // In float32 a resident slice is the master itself.
  const JobPlan planned = Planned(Memory(1), 2);
  EXPECT_EQ(planned.layout.unshard_mode(), v1::RESIDENT);
  EXPECT_EQ(Remedy(planned, "memory.unshard"), nullptr);
}

// Blocks of 198,272 elements of which the largest part, "mlp.c_fc" with "mlp.c_proj", is 131,712.
TEST(FitTest, UnitsInsideTheLargest) {
  const std::string job = absl::StrCat(kCuda, Memory(1'000'000'000'000));
  v1::JobSpec spec = TestJob(job);
  const int64_t before = PlanJob(spec, 2)->forecast.fit().needed_bytes();
  spec.mutable_memory()->set_device_memory(absl::StrCat(before - 1));
  const JobPlan planned = *PlanJob(spec, 2);
  const v1::Remedy* split = Remedy(planned, "wrap.wrap_patterns");
  ASSERT_NE(split, nullptr);
  EXPECT_EQ(split->value(), "[\"h.*.*\"]");
  EXPECT_THAT(split->text(), HasSubstr("the modules inside \"h.0\" of 774.5 KiB"));
  spec.mutable_wrap()->add_wrap_patterns("h.*.*");
  EXPECT_EQ(split->needed_bytes(), PlanJob(spec, 2)->forecast.fit().needed_bytes());
}

}  // namespace
}  // namespace tessera
