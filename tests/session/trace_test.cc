// What a training rank says of itself beside its results: where it is, and how long its program
// computes on each unit.
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/status_macros.h"
#include "tests/session/run_ranks.h"

namespace tessera {
namespace {

constexpr int64_t kSteps = 3;

// The newest sample of each unit and operation, by rank.
class Samples {
 public:
  using Place = std::pair<int, v1::Operation>;

  void Add(int rank, const v1::ReportStatsRequest& report) {
    MutexLock lock(mutex_);
    for (const v1::OperationSample& sample : report.samples())
      samples_[rank][{sample.unit(), sample.operation()}] = sample;
  }
  v1::OperationSample Of(int rank, int unit, v1::Operation operation) {
    MutexLock lock(mutex_);
    return samples_[rank][{unit, operation}];
  }

 private:
  Mutex mutex_;
  std::map<int, std::map<Place, v1::OperationSample>> samples_ ABSL_GUARDED_BY(mutex_);
};

// A coordinator that keeps reports.
class ReportingClient final : public MembershipClient {
 public:
  ReportingClient(int rank, Samples* samples) : rank_(rank), samples_(samples) {}

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
  void Interrupt(const absl::Status&) override {}
  void ReportStats(v1::ReportStatsRequest report) override { samples_->Add(rank_, report); }
  void Leave(const absl::Status&, std::optional<int>, absl::Duration) override {}

 private:
  const int rank_;
  Samples* const samples_;
};

TEST(TraceTest, ReportsForwardAndBackwardOfEachUnit) {
  Samples samples;
  ThreadRanks::Options options;
  options.membership = [&](int rank) { return std::make_unique<ReportingClient>(rank, &samples); };
  int units = 0;
  ExpectOk(RunRanks(
      ToyJob("slots"), 2,
      [&](Session& session) -> absl::Status {
        if (session.rank() == 0) units = session.plan().units_size();
        for (int64_t step = 1; step <= kSteps; ++step)
          TESSERA_RETURN_IF_ERROR(ToyStep(session, 0.01).status());
        return session.Finish();
      },
      options));
  ASSERT_EQ(units, kToyBlocks + 1);
  for (const int rank : {0, 1}) {
    for (int unit = 0; unit < kToyBlocks; ++unit) {
      const v1::OperationSample forward = samples.Of(rank, unit, v1::FORWARD);
      EXPECT_GE(forward.count(), kSteps) << unit;
      EXPECT_GT(forward.total_us(), 0) << unit;
      const v1::OperationSample backward = samples.Of(rank, unit, v1::BACKWARD);
      EXPECT_GE(backward.count(), kSteps) << unit;
      EXPECT_GT(backward.total_us(), 0) << unit;
    }
  }
}

// Read from outside of the rank's thread, between its calls.
TEST(TraceTest, ARanksPositionFollowsItsCalls) {
  std::vector<std::shared_ptr<PositionPublisher>> positions(2);
  ThreadRanks::Options options;
  options.prepare = [&](int rank, absl::Span<char>, SessionParts& parts) {
    positions[rank] = parts.position = std::make_shared<PositionPublisher>();
    return absl::OkStatus();
  };
  ExpectOk(RunRanks(
      ToyJob("slots"), 2,
      [&](Session& session) -> absl::Status {
        const PositionPublisher& position = *positions[session.rank()];
        EXPECT_EQ(position.Read().step(), 0);
        TESSERA_RETURN_IF_ERROR(ToyStep(session, 0.01).status());
        EXPECT_EQ(position.Read().step(), 1);
        EXPECT_EQ(position.Read().activity(), v1::COMPUTING);
        EXPECT_EQ(position.Read().unit(), -1);
        {
          TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(1, Phase::kEval));
          EXPECT_EQ(position.Read().activity(), v1::COMPUTING);
          EXPECT_EQ(position.Read().unit(), 1);
          EXPECT_EQ(position.Read().operation(), v1::FORWARD);
        }
        TESSERA_RETURN_IF_ERROR(session.Barrier("the end of the test"));
        EXPECT_EQ(position.Read().unit(), -1);
        return session.Finish();
      },
      options));
}

}  // namespace
}  // namespace tessera
