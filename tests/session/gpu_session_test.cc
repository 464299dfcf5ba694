// Whole jobs on GPUs, with ranks as threads: the planner's layout for CUDA, a coordinator over real
// gRPC that passes the communicators' ids on, NcclCollectives over a CUDA and an NCCL in host
// memory, and the executor, the shards and the session that CPUs have. What training gives is held
// bit for bit against plain loops.
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/float_bits.h"
#include "common/grpc_server.h"
#include "common/simulated_clock.h"
#include "common/status_macros.h"
#include "coordinator/coordinator.h"
#include "coordinator/membership_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/thread_ranks.h"
#include "tests/session/toy_model.h"
#include "worker/attend_client.h"
#include "worker/blame.h"
#include "worker/data_path.h"
#include "worker/device/fake_cuda_api.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr double kLearningRate = 0.25;

v1::JobSpec GpuJob(const std::string& param_dtype = "", const std::string& reduce_dtype = "") {
  v1::JobSpec job = ToyJob("auto");
  job.set_device("cuda");
  job.mutable_mixed_precision()->set_param_dtype(param_dtype);
  job.mutable_mixed_precision()->set_reduce_dtype(reduce_dtype);
  return job;
}

// A coordinator with a job "toy" of so many ranks, whose agent has joined. The job's own plan is of
// no interest here: membership and rendezvous are.
class Cluster {
 public:
  explicit Cluster(int world_size) {
    server_ = *GrpcServer::Start({}, {{v1::MembershipService::service_full_name(), &membership_}});
    v1::CreateJobRequest request;
    v1::JobSpec& spec = *request.mutable_spec();
    spec.set_name("toy");
    spec.mutable_model()->set_layers(kToyBlocks);
    spec.mutable_mesh()->set_min_workers(world_size);
    spec.set_global_batch(12);
    spec.mutable_timeouts()->mutable_lease()->set_seconds(100'000);
    spec.mutable_timeouts()->mutable_form()->set_seconds(100'000);
    EXPECT_TRUE(coordinator_.CreateJob(request).ok());
    v1::AttendRequest join;
    join.mutable_join_host()->set_host_name("node-a");
    join.mutable_join_host()->set_incarnation("agent");
    join.mutable_join_host()->set_local_workers(world_size);
    join.mutable_join_host()->set_job("toy");
    std::promise<void> formed;
    agent_ = AttendClient::Start({.coordinator = server_->address()}, join,
                                 {.on_response =
                                      [&](const v1::AttendResponse& response) {
                                        if (response.has_form_host()) formed.set_value();
                                      },
                                  .on_done = [](const absl::Status&) {}});
    formed.get_future().wait();
  }

  // Time passes as long as this lives.
  std::jthread Tick() {
    return std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        clock_.Advance(absl::Milliseconds(100));
        coordinator_.Tick();
        std::this_thread::yield();
      }
    });
  }

  // Joins as `rank`, as Session::Join does.
  absl::Status JoinRank(int rank, SessionParts& parts) {
    parts.incarnation = absl::StrCat("incarnation ", rank);
    parts.membership = CreateMembershipClient(server_->address());
    v1::JoinRank join;
    join.set_job("toy");
    join.set_generation(1);
    join.set_rank(rank);
    join.set_incarnation(parts.incarnation);
    Collectives* const collectives = parts.collectives.get();
    return parts.membership->JoinRank(join, kPatience, [collectives](const absl::Status& status) {
      collectives->Interrupt(status);
    });
  }

 private:
  SimulatedClock clock_;
  Coordinator coordinator_{{.clock = &clock_}};
  MembershipService membership_{&coordinator_};
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<AttendClient> agent_;
};

// A job whose ranks have all taken their GPUs.
class Gpus {
 public:
  explicit Gpus(int world_size, const v1::JobSpec& job) : cluster_(world_size) {
    fake_.RequireDeviceMemory();
    ThreadRanks::Options options;
    options.prepare = [this](int rank, absl::Span<char> rank_file, SessionParts& parts) {
      return Prepare(rank, rank_file, parts);
    };
    ranks_ = *ThreadRanks::Create(job, world_size, std::move(options));
  }

  std::vector<absl::Status> Run(const std::function<absl::Status(Session&)>& body) {
    return ranks_->Run(body);
  }

  FakeCuda& fake() { return fake_; }
  const JobPlan& plan() const { return ranks_->plan(); }

 private:
  absl::Status Prepare(int rank, absl::Span<char> rank_file, SessionParts& parts) {
    TESSERA_RETURN_IF_ERROR(cluster_.JoinRank(rank, parts));
    TESSERA_RETURN_IF_ERROR(TakeGpu(fake_.api(), rank, rank_file, parts));
    return parts.membership->AwaitStart(0, kPatience);
  }

  FakeCuda fake_;
  Cluster cluster_;
  std::unique_ptr<ThreadRanks> ranks_;
};

float Round(DType dtype, float value) {
  if (dtype == v1::BFLOAT16) return FloatFromBFloat16(BFloat16FromFloat(value));
  if (dtype == v1::FLOAT16) return FloatFromFloat16(Float16FromFloat(value));
  return value;
}
float Load(const TensorView& view, int64_t i) {
  if (view.dtype == v1::FLOAT32) return view.as<float>()[i];
  const uint16_t bits = view.as<uint16_t>()[i];
  return view.dtype == v1::BFLOAT16 ? FloatFromBFloat16(bits) : FloatFromFloat16(bits);
}
void Store(const TensorView& view, int64_t i, float value) {
  if (view.dtype == v1::FLOAT32) {
    view.as<float>()[i] = value;
  } else {
    view.as<uint16_t>()[i] =
        view.dtype == v1::BFLOAT16 ? BFloat16FromFloat(value) : Float16FromFloat(value);
  }
}

// Forward and backward over all units. Parameters .c never get a gradient.
absl::Status Step(Session& session) {
  TESSERA_ASSIGN_OR_RETURN(const StepInfo step,
                           session.BeginStep({.learning_rate = kLearningRate}));
  TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
  const int units = session.plan().units_size();
  for (int unit = 0; unit < units; ++unit)
    TESSERA_RETURN_IF_ERROR(session.Unshard(unit, Phase::kForward).status());
  for (int unit = units - 1; unit >= 0; --unit) {
    TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(unit, Phase::kBackward));
    for (const v1::UnitParameter& parameter : session.plan().units(unit).parameters()) {
      if (absl::EndsWith(parameter.fqn(), ".c")) continue;
      TESSERA_ASSIGN_OR_RETURN(const TensorView value, lease.Parameter(parameter.fqn()));
      TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot,
                               session.GradientView(unit, parameter.fqn()));
      for (int64_t i = 0; i < value.numel; ++i) {
        Store(slot.view, i, ToyGradient(Load(value, i), session.rank(), step.step, i));
      }
    }
    TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
  }
  return session.EndStep({.loss_sum = 1, .loss_count = 1}).status();
}

// What SGD steps make of `values`, one element after the other, with NCCL's rounding: each rank's
// gradient to reduce_dtype, the sum to reduce_dtype, the average to reduce_dtype.
ToyValues Expected(ToyValues values, int ranks, int64_t steps, DType param, DType reduce) {
  for (auto& [fqn, parameter] : values) {
    if (absl::EndsWith(fqn, ".c")) continue;
    for (size_t i = 0; i < parameter.size(); ++i) {
      for (int64_t step = 1; step <= steps; ++step) {
        const float seen = Round(param, parameter[i]);
        float sum = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const float gradient =
              Round(param, ToyGradient(seen, rank, step, static_cast<int64_t>(i)));
          sum += Round(reduce, gradient);
        }
        const float average = Round(reduce, Round(reduce, sum) / static_cast<float>(ranks));
        parameter[i] -= static_cast<float>(kLearningRate) * average;
      }
    }
  }
  return values;
}

// Ranks, param_dtype, reduce_dtype.
class GpuSessionTest : public ::testing::TestWithParam<std::tuple<int, std::string, std::string>> {
};

TEST_P(GpuSessionTest, TrainsToTheBitsOfPlainLoops) {
  constexpr int64_t kSteps = 3;
  const auto& [world_size, param_dtype, reduce_dtype] = GetParam();
  v1::JobSpec job = GpuJob(param_dtype, reduce_dtype);
  job.mutable_optimizer()->set_name("sgd");
  job.mutable_optimizer()->set_weight_decay(0);
  Gpus gpus(world_size, job);
  std::vector<ToyValues> start(world_size), end(world_size);
  const std::vector<absl::Status> statuses = gpus.Run([&](Session& session) -> absl::Status {
    // All ranks have what they allocate before any of them is here.
    EXPECT_EQ(gpus.fake().allocated_bytes(),
              session.world_size() * gpus.plan().forecast.ranks(0).gpu().allocated_bytes());
    EXPECT_NE(session.stream(), nullptr);
    TESSERA_ASSIGN_OR_RETURN(start[session.rank()], ToySummonAll(session));
    for (int64_t step = 0; step < kSteps; ++step) TESSERA_RETURN_IF_ERROR(Step(session));
    TESSERA_ASSIGN_OR_RETURN(end[session.rank()], ToySummonAll(session));
    return session.Finish();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  const v1::Unit& unit = gpus.plan().plan.units(0);
  const ToyValues expected =
      Expected(start[0], world_size, kSteps, unit.param_dtype(), unit.reduce_dtype());
  EXPECT_NE(expected, start[0]);
  for (const ToyValues& rank : end) EXPECT_EQ(rank, expected);
  EXPECT_EQ(gpus.plan().layout.staging_bytes() > 0, param_dtype != reduce_dtype);
  EXPECT_THAT(gpus.fake().violations(), IsEmpty());
  EXPECT_EQ(gpus.fake().live(), 0);
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

TEST(GpuSessionTest, TrainsWithAdamWToTheBitsOfTheCpu) {
  std::vector<ToyValues> gpu(3), cpu(3);
  const auto body = [](std::vector<ToyValues>* values) {
    return [values](Session& session) -> absl::Status {
      for (int step = 0; step < 3; ++step) TESSERA_RETURN_IF_ERROR(ToyStep(session, 0.01).status());
      TESSERA_ASSIGN_OR_RETURN((*values)[session.rank()], ToySummonAll(session));
      return session.Finish();
    };
  };
  Gpus gpus(3, GpuJob());
  for (const absl::Status& status : gpus.Run(body(&gpu))) EXPECT_TRUE(status.ok()) << status;
  const auto ranks = *ThreadRanks::Create(ToyJob("slots"), 3, {});
  for (const absl::Status& status : ranks->Run(body(&cpu))) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(gpu, cpu);
  EXPECT_THAT(gpus.fake().violations(), IsEmpty());
}

// A unit gathered ahead that nobody uses: the optimizer must not write what its gather still reads.
TEST(GpuSessionTest, AUnitThatIsOnlyPrefetchedDisturbsNobody) {
  Gpus gpus(2, GpuJob());
  const std::vector<absl::Status> statuses = gpus.Run([&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(session.BeginStep({.learning_rate = kLearningRate}).status());
    TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
    for (int unit = 0; unit < session.plan().units_size(); ++unit)
      TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
    TESSERA_RETURN_IF_ERROR(session.Prefetch(1));
    TESSERA_RETURN_IF_ERROR(session.EndStep({}).status());
    return session.Finish();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(gpus.fake().violations(), IsEmpty());
  EXPECT_EQ(gpus.fake().live(), 0);
}

TEST(GpuSessionTest, GradientsOfOthersAreRefusedByName) {
  Gpus gpus(1, GpuJob());
  const auto statuses = gpus.Run([](Session& session) -> absl::Status {
    return session.SubmitGradient(0, "h.0.w", TensorView(), Event());
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnimplemented);
}

TEST(GpuSessionTest, ARankThatFailsEndsItsPeersByName) {
  Gpus gpus(3, GpuJob());
  const auto statuses = gpus.Run([](Session& session) -> absl::Status {
    if (session.rank() == 1) return absl::InternalError("out of luck");
    return Step(session);
  });
  for (const int peer : {0, 2}) {
    EXPECT_EQ(statuses[peer].code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(statuses[peer].message()), HasSubstr("rank 1 ended: out of luck"));
    EXPECT_EQ(BlamedRank(statuses[peer]), 1);
  }
  EXPECT_EQ(gpus.fake().live(), 0);
}

// Two ranks, of which rank 0 does something else than to publish ids. What rank 1 is told.
absl::Status FetchWithout(
    const std::function<absl::Status(SessionParts& parts, std::shared_future<void> done)>& rank_0) {
  Cluster cluster(2);
  FakeCuda fake;
  std::promise<void> done;
  const std::shared_future<void> is_done = done.get_future().share();
  ThreadRanks::Options options;
  options.prepare = [&](int rank, absl::Span<char> rank_file, SessionParts& parts) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(cluster.JoinRank(rank, parts));
    if (rank == 0) return rank_0(parts, is_done);
    const absl::Status status = TakeGpu(fake.api(), rank, rank_file, parts);
    done.set_value();
    return status;
  };
  const auto ranks = *ThreadRanks::Create(GpuJob(), 2, std::move(options));
  const std::jthread ticks = cluster.Tick();
  const auto statuses = ranks->Run([](Session&) { return absl::OkStatus(); });
  EXPECT_EQ(fake.live(), 0);
  return statuses[1];
}

TEST(GpuSessionTest, ARankThatDoesNotPublishIsNamedAtTheDeadline) {
  const absl::Status status = FetchWithout([](SessionParts&, const std::shared_future<void>& done) {
    done.wait();
    return absl::InternalError("never published");
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("after 30s rank 0 had not published the communicator ids of group 0"));
  EXPECT_EQ(BlamedRank(status), 0);
}

TEST(GpuSessionTest, AFetchEndsWithTheGeneration) {
  const absl::Status status =
      FetchWithout([](SessionParts& parts, const std::shared_future<void>&) {
        const absl::Status lost = absl::FailedPreconditionError("no GPU here");
        parts.membership->Leave(lost, std::nullopt, kPatience);
        return lost;
      });
  EXPECT_EQ(Reason(status), "GENERATION_ENDED") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no GPU here"));
}

}  // namespace
}  // namespace tessera
