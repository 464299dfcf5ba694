// The planner's layout for CUDA, the rendezvous over real gRPC and NcclCollectives over a CUDA and
// an NCCL in host memory, under the executor, the shards and the session that CPUs have: what
// training gives is held bit for bit against plain loops.
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/session/gpu_ranks.h"
#include "worker/blame.h"
#include "worker/data_path.h"
#include "worker/device/cuda_device.h"
#include "worker/device/fake_cuda_api.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<GpuRanks> MakeRanks(FakeCuda& fake, int world_size,
                                    const v1::JobSpec& job = GpuJob("float32", "float32")) {
  fake.RequireDeviceMemory();
  auto gpus = GpuRanks::Create(fake.api(), world_size, job);
  EXPECT_TRUE(gpus.ok()) << gpus.status();
  return *std::move(gpus);
}

// Ranks, param_dtype, reduce_dtype.
class GpuSessionTest : public ::testing::TestWithParam<std::tuple<int, std::string, std::string>> {
};

TEST_P(GpuSessionTest, TrainsToTheBitsOfPlainLoops) {
  constexpr int64_t kSteps = 3;
  const auto& [world_size, param_dtype, reduce_dtype] = GetParam();
  FakeCuda fake;
  const auto gpus = MakeRanks(fake, world_size, GpuJob(param_dtype, reduce_dtype));
  std::vector<ToyValues> start(world_size), end(world_size);
  const std::vector<absl::Status> statuses = gpus->Run([&](Session& session) -> absl::Status {
    EXPECT_EQ(fake.allocated_bytes(),
              session.world_size() * gpus->plan().forecast.ranks(0).gpu().allocated_bytes());
    TESSERA_ASSIGN_OR_RETURN(start[session.rank()], ToySummonAll(session));
    for (int64_t step = 0; step < kSteps; ++step)
      TESSERA_RETURN_IF_ERROR(GpuStep(*fake.api(), session));
    TESSERA_ASSIGN_OR_RETURN(end[session.rank()], ToySummonAll(session));
    return session.Finish();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  const v1::Unit& unit = gpus->plan().plan.units(0);
  const ToyValues expected =
      GpuExpected(start[0], world_size, kSteps, unit.param_dtype(), unit.reduce_dtype());
  EXPECT_NE(expected, start[0]);
  for (const ToyValues& rank : end) EXPECT_EQ(rank, expected);
  EXPECT_EQ(gpus->plan().layout.staging_bytes() > 0, param_dtype != reduce_dtype);
  EXPECT_THAT(fake.violations(), IsEmpty());
  EXPECT_EQ(fake.live(), 0);
}

INSTANTIATE_TEST_SUITE_P(DTypes, GpuSessionTest,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values("float32", "bfloat16"),
                                            ::testing::Values("float32", "bfloat16")),
                         [](const auto& info) {
                           return absl::StrCat(std::get<1>(info.param), "_",
                                               std::get<2>(info.param), "_",
                                               std::get<0>(info.param));
                         });

// Computing through the views themselves, which only the fake's memory allows.
TEST(GpuSessionTest, TrainsWithAdamWToTheBitsOfTheCpu) {
  std::vector<ToyValues> gpu(3), cpu(3);
  const auto body = [](std::vector<ToyValues>* values) {
    return [values](Session& session) -> absl::Status {
      for (int step = 0; step < 3; ++step) TESSERA_RETURN_IF_ERROR(ToyStep(session, 0.01).status());
      TESSERA_ASSIGN_OR_RETURN((*values)[session.rank()], ToySummonAll(session));
      return session.Finish();
    };
  };
  v1::JobSpec job = ToyJob("auto");
  job.set_device("cuda");
  FakeCuda fake;
  for (const absl::Status& status : MakeRanks(fake, 3, job)->Run(body(&gpu)))
    EXPECT_TRUE(status.ok()) << status;
  const auto ranks = *ThreadRanks::Create(ToyJob("slots"), 3, {});
  for (const absl::Status& status : ranks->Run(body(&cpu))) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(gpu, cpu);
  EXPECT_THAT(fake.violations(), IsEmpty());
}

TEST(GpuSessionTest, AUnitThatIsOnlyGatheredAheadIsDroppedWithTheStep) {
  FakeCuda fake;
  const auto statuses = MakeRanks(fake, 2)->Run([&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(session.BeginStep({.learning_rate = 0.5}).status());
    TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
    for (int unit = 0; unit < session.plan().units_size(); ++unit)
      TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
    TESSERA_RETURN_IF_ERROR(session.Prefetch(1));
    TESSERA_RETURN_IF_ERROR(session.EndStep({}).status());
    return session.Finish();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(fake.violations(), IsEmpty());
  EXPECT_EQ(fake.live(), 0);
}

TEST(GpuSessionTest, OtherStreamsAndOtherMemoryAreRefused) {
  FakeCuda fake;
  const auto statuses = MakeRanks(fake, 1)->Run([&](Session& session) -> absl::Status {
    const auto other = *CudaStream::Create({.api = fake.api(), .name = "mine"});
    TESSERA_RETURN_IF_ERROR(session.BeginStep({}).status());
    TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
    EXPECT_EQ(session.Unshard(0, Phase::kForward, other.get()).status().message(),
              "a rank on a GPU computes on Session::stream alone; stream mine is another one");
    EXPECT_EQ(session.Reduce(0, other.get()).code(), absl::StatusCode::kUnimplemented);
    EXPECT_TRUE(session.Unshard(0, Phase::kForward, session.stream()).ok());
    return session.SubmitGradient(0, "h.0.w", TensorView(), Event());
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(fake.live(), 0);
}

TEST(GpuSessionTest, ARankThatFailsEndsItsPeersByName) {
  FakeCuda fake;
  const auto statuses = MakeRanks(fake, 3)->Run([&](Session& session) -> absl::Status {
    if (session.rank() == 1) return absl::InternalError("out of luck");
    return GpuStep(*fake.api(), session);
  });
  for (const int peer : {0, 2}) {
    EXPECT_EQ(statuses[peer].code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(statuses[peer].message()), HasSubstr("rank 1 ended: out of luck"));
    EXPECT_EQ(BlamedRank(statuses[peer]), 1);
  }
  EXPECT_EQ(fake.live(), 0);
}

// Two ranks, of which rank 0 does something else than to publish ids: what rank 1 is told. `done`
// is when it has been.
using Rank0 = std::function<absl::Status(RendezvousCluster& cluster, SessionParts& parts,
                                         const std::shared_future<void>& done)>;
absl::Status FetchWithout(const Rank0& rank_0) {
  RendezvousCluster cluster(2);
  FakeCuda fake;
  std::promise<void> done;
  const std::shared_future<void> is_done = done.get_future().share();
  ThreadRanks::Options options;
  options.prepare = [&](int rank, absl::Span<char> rank_file, SessionParts& parts) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(cluster.JoinRank(rank, parts));
    if (rank == 0) return rank_0(cluster, parts, is_done);
    const absl::Status status = TakeGpu(fake.api(), rank, rank_file, parts);
    done.set_value();
    return status;
  };
  const auto ranks = *ThreadRanks::Create(GpuJob("float32", "float32"), 2, std::move(options));
  const auto statuses = ranks->Run([](Session&) { return absl::OkStatus(); });
  EXPECT_EQ(fake.live(), 0);
  return statuses[1];
}

TEST(GpuSessionTest, ARankThatDoesNotPublishIsNamedAtTheDeadline) {
  const absl::Status status =
      FetchWithout([](RendezvousCluster& cluster, const auto&, const auto& done) {
        const std::jthread ticks = cluster.Tick();
        done.wait();
        return absl::InternalError("never published");
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("after 30s rank 0 had not published the communicator ids of group 0"));
  EXPECT_EQ(BlamedRank(status), 0);
}

TEST(GpuSessionTest, AFetchEndsWithTheGeneration) {
  // More time passes than the verdict's grace and less than any deadline or lease.
  const absl::Status status =
      FetchWithout([](RendezvousCluster& cluster, SessionParts& parts, const auto&) {
        const absl::Status lost = absl::FailedPreconditionError("no GPU here");
        parts.membership->Leave(lost, std::nullopt, absl::Seconds(60));
        cluster.Pass(absl::Seconds(1));
        return lost;
      });
  // A fetch that waits is told why (coordinator_rendezvous_test has that for certain), and so is a
  // rank by its own stream; a fetch that comes after the end, that it is over.
  if (Reason(status) == "STALE_GENERATION") return;
  EXPECT_THAT(Reason(status), testing::AnyOf("GENERATION_ENDED", "JOB_ENDED"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no GPU here"));
}

}  // namespace
}  // namespace tessera
