// A job that is drained: whichever ranks hear of it, and when, all stop after the same step.
#include <atomic>
#include <filesystem>
#include <memory>
#include <vector>

#include "common/status_macros.h"
#include "gtest/gtest.h"
#include "tests/fakes/thread_ranks.h"
#include "tests/session/toy_model.h"

namespace tessera {
namespace {

// A coordinator that says nothing but Drain.
class DrainingClient final : public MembershipClient {
 public:
  explicit DrainingClient(const std::atomic<bool>* draining, bool resizing = false)
      : draining_(draining), resizing_(resizing) {}

  absl::Status JoinRank(const v1::JoinRank&, absl::Duration,
                        std::function<void(const absl::Status&)>) override {
    return absl::OkStatus();
  }
  absl::StatusOr<PlannedUnits> ListUnits(const std::string&, int64_t, absl::Duration) override {
    return PlannedUnits();
  }
  absl::Status PublishCommunicatorIds(const v1::PublishCommunicatorIdsRequest&,
                                      absl::Duration) override {
    return absl::OkStatus();
  }
  absl::StatusOr<v1::CommunicatorIds> FetchCommunicatorIds(const v1::FetchCommunicatorIdsRequest&,
                                                           absl::Duration) override {
    return v1::CommunicatorIds();
  }
  absl::Status AwaitStart(int64_t, int64_t, absl::Duration) override { return absl::OkStatus(); }
  bool Draining() const override { return *draining_; }
  bool Resizing() const override { return resizing_; }
  void Interrupt(const absl::Status&) override {}
  void ReportStats(v1::ReportStatsRequest) override {}
  void Leave(const absl::Status&, std::optional<int>, absl::Duration) override {}

 private:
  const std::atomic<bool>* const draining_;
  const bool resizing_;
};

// Mode, ranks, the rank that hears of it.
class DrainTest : public ::testing::TestWithParam<std::tuple<std::string, int, int>> {};

TEST_P(DrainTest, OneRankThatHearsOfItStopsAllAfterTheSameStep) {
  const auto& [unshard, world_size, told] = GetParam();
  std::vector<std::atomic<bool>> draining(world_size);
  ThreadRanks::Options options;
  options.membership = [&](int rank) { return std::make_unique<DrainingClient>(&draining[rank]); };
  const auto ranks = ThreadRanks::Create(ToyJob(unshard), world_size, options);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  std::vector<int64_t> stopped(world_size);
  const auto statuses = (*ranks)->Run([&](Session& session) -> absl::Status {
    for (bool drain = false; !drain;) {
      // Between its votes for steps 4 and 5.
      if (session.rank() == told && stopped[told] == 4) draining[told] = true;
      TESSERA_ASSIGN_OR_RETURN(const StepResult result, ToyStep(session, 0.01));
      stopped[session.rank()] = result.step;
      drain = result.drain;
    }
    // The session is whole: what is to be saved can be.
    TESSERA_RETURN_IF_ERROR(ToySummonAll(session).status());
    return session.Finish();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(stopped, std::vector<int64_t>(world_size, 5));
}

INSTANTIATE_TEST_SUITE_P(Ranks, DrainTest,
                         ::testing::Values(std::tuple("slots", 1, 0), std::tuple("slots", 4, 2),
                                           std::tuple("resident", 3, 0),
                                           std::tuple("resident", 4, 3)));

// Whether there are a checkpoint and an export after a drain of which rank 0 hears that it is to
// resize, and rank 1 what `plain` says.
std::pair<bool, bool> LeftByDrain(bool plain) {
  namespace fs = std::filesystem;
  v1::JobSpec job = ToyJob("slots");
  const std::string dir = testing::TempDir() + "/drain_to_resize";
  fs::remove_all(dir);
  fs::create_directories(dir + "/export");  // as PrepareDirectory makes it
  job.mutable_checkpoint()->set_dir(dir);
  job.mutable_checkpoint()->set_save(false);
  std::atomic<bool> draining{true};
  ThreadRanks::Options options;
  options.membership = [&](int rank) {
    return std::make_unique<DrainingClient>(&draining, /*resizing=*/rank == 0 || !plain);
  };
  const auto ranks = ThreadRanks::Create(job, 2, options);
  EXPECT_TRUE(ranks.ok()) << ranks.status();
  const auto statuses = (*ranks)->Run([&](Session& session) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const StepResult result, ToyStep(session, 0.01));
    EXPECT_TRUE(result.drain);
    return session.Finish();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  return {fs::exists(dir + "/step-1/index.json"), fs::exists(dir + "/export/model.safetensors")};
}

TEST(DrainToResizeTest, SavesACheckpointInAnyCaseAndExportsNothing) {
  EXPECT_EQ(LeftByDrain(/*plain=*/false), std::make_pair(true, false));
}

TEST(DrainToResizeTest, ADrainForGoodThatAnyRankHasHeardOfWins) {
  EXPECT_EQ(LeftByDrain(/*plain=*/true), std::make_pair(false, true));
}

}  // namespace
}  // namespace tessera
