#include "coordinator/gpt_slots.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "coordinator/job_planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

absl::Status Check(const std::string& more) {
  auto spec = ParseJobSpec(absl::StrCat(R"({"name":"j",)", more, "}"), "job.json");
  EXPECT_TRUE(spec.ok()) << spec.status();
  const auto resolved = ResolveJobSpec(*std::move(spec));
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  const auto planned = PlanJob(*resolved, 2);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return CheckRunnable(*resolved, *planned);
}

TEST(GptSlotsTest, OneUnitABlockIsEnough) {
  for (const char* unshard : {"slots", "resident"}) {
    const std::string memory = absl::StrCat(R"("memory":{"unshard":")", unshard, R"("})");
    EXPECT_TRUE(Check(memory).ok());
    EXPECT_TRUE(Check(absl::StrCat(memory, R"(,"wrap":{"policy":"none"})")).ok());
    // What is left of a block is the root's.
    EXPECT_TRUE(
        Check(absl::StrCat(memory, R"(,"wrap":{"policy":"class","wrap_classes":["MLP"]})")).ok());
  }
}

// A block in four units of one level, all used at once: two levels, and three of the four in
// spares.
TEST(GptSlotsTest, NamesTheSlotsThatSmallerUnitsNeed) {
  const std::string wrap = R"("wrap":{"policy":"class","wrap_classes":["Conv1D"]})";
  const absl::Status slots = Check(absl::StrCat(wrap, R"(,"memory":{"unshard":"slots"})"));
  EXPECT_EQ(Field(slots), "memory.max_live_units");
  EXPECT_THAT(std::string(slots.message()), HasSubstr("uses 5 units at once"));
  EXPECT_THAT(std::string(slots.message()), HasSubstr("give 5,"));

  const absl::Status gradients = Check(absl::StrCat(wrap, R"(,"memory":{"unshard":"resident"})"));
  EXPECT_EQ(Field(gradients), "memory.accumulate_unsynchronized");
  EXPECT_THAT(std::string(gradients.message()), HasSubstr("give true"));

  EXPECT_TRUE(Check(absl::StrCat(wrap, R"(,"memory":{"unshard":"slots","max_live_units":5,)",
                                 R"("accumulate_unsynchronized":true})"))
                  .ok());
  EXPECT_FALSE(Check(absl::StrCat(wrap, R"(,"memory":{"unshard":"slots","max_live_units":4,)",
                                  R"("prefetch":0,"accumulate_unsynchronized":true})"))
                   .ok());
}

TEST(GptSlotsTest, AProgramOfOnesOwnIsItsOwnAffair) {
  EXPECT_TRUE(Check(R"("workload":"attached","wrap":{"policy":"always"})").ok());
}

}  // namespace
}  // namespace tessera
