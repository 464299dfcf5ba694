// What the default job learns: held-out loss, in nats per byte, with ranks as threads.
#include <cstdio>
#include <vector>

#include "common/status_macros.h"
#include "gtest/gtest.h"
#include "tests/fakes/thread_ranks.h"
#include "worker/workloads/gpt.h"

namespace tessera {
namespace {

std::vector<v1::Progress> Train(const v1::JobSpec& job) {
  std::vector<v1::Progress> lines;
  auto ranks = ThreadRanks::Create(job, /*world_size=*/2, {});
  EXPECT_TRUE(ranks.ok()) << ranks.status();
  if (!ranks.ok()) return lines;
  const std::vector<absl::Status> statuses = (*ranks)->Run([&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(RunGpt(session, [&](const v1::Progress& progress) {
      lines.push_back(progress);
      if (progress.has_val_loss()) {
        std::printf("step %d loss %.4f val %.4f tokens/s %.0f\n", static_cast<int>(progress.step()),
                    progress.loss(), progress.val_loss(), progress.tokens_per_second());
      }
    }));
    return session.Finish();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  return lines;
}

v1::JobSpec DefaultJob() {
  v1::JobSpec job;
  job.set_name("learning");
  return job;
}

// Of the default job, which two tests need.
const std::vector<v1::Progress>& DefaultLines() {
  static const auto& lines = *new std::vector<v1::Progress>(Train(DefaultJob()));
  return lines;
}

// The bigram entropy of the default text is 2.44: below it a model must look further back than one
// byte.
TEST(GptLearningTest, DefaultJobBeatsBigrams) {
  const std::vector<v1::Progress>& lines = DefaultLines();
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.back().step(), 600);
  EXPECT_LT(lines.back().val_loss(), 2.2);
}

// bfloat16 parameters with float32 reduction: the final losses differ by less than 1%.
TEST(GptLearningTest, BFloat16ParametersLearnAsWell) {
  v1::JobSpec job = DefaultJob();
  job.mutable_mixed_precision()->set_param_dtype("bfloat16");
  job.mutable_mixed_precision()->set_reduce_dtype("float32");
  const std::vector<v1::Progress> low = Train(job), full = DefaultLines();
  ASSERT_FALSE(low.empty() || full.empty());
  EXPECT_NEAR(low.back().val_loss(), full.back().val_loss(), 0.01 * full.back().val_loss());
}

TEST(GptLearningTest, WithoutAttentionItCannot) {
  v1::JobSpec job = DefaultJob();
  job.mutable_model()->set_attention(false);
  const std::vector<v1::Progress> lines = Train(job);
  ASSERT_FALSE(lines.empty());
  EXPECT_GT(lines.back().val_loss(), 2.4);
}

}  // namespace
}  // namespace tessera
