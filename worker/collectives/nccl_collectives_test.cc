#include "worker/collectives/nccl_collectives.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/control_file.h"
#include "common/float_bits.h"
#include "common/simulated_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/blame.h"
#include "worker/collectives/shm_collectives.h"
#include "worker/device/fake_cuda_api.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kShard = 5;  // odd, so that slices begin anywhere

float ShardValue(int rank, int64_t i) { return static_cast<float>(10 * rank + i - 3); }
float GradientValue(int rank, int64_t i) { return static_cast<float>((rank + 1) * (i % 7)); }

// What the ranks of a host share beside NCCL.
using Control = std::vector<uint64_t>;
std::shared_ptr<Control> MakeControl(int ranks) {
  return std::make_shared<Control>(ControlFileBytes(ranks, 0, 0) / 8);
}
std::unique_ptr<ShmCollectives> MakeHost(int rank, int ranks, std::shared_ptr<Control> control) {
  ShmCollectives::Options options;
  for (int r = 0; r < ranks; ++r) options.group.ranks.push_back(r);
  options.group.index = rank;
  options.sync.control = control->data();
  options.sync.local_world_size = ranks;
  options.sync.local_rank = rank;
  options.memory = control;
  return std::make_unique<ShmCollectives>(std::move(options));
}

// One rank and what its program owns. Its "device memory" is vectors.
struct Rank {
  std::vector<float> shard = std::vector<float>(kShard);
  std::vector<float> gradient_shard = std::vector<float>(kShard);
  std::unique_ptr<ShmCollectives> host = nullptr;
  std::unique_ptr<CudaStream> compute = nullptr;
  std::unique_ptr<NcclCollectives> collectives = nullptr;
};

v1::Layout LayoutFor(int ranks, int64_t bytes = 4) {
  v1::Layout layout;
  for (int slot = 0; slot < 2; ++slot) {
    for (v1::Slot* made : {layout.add_unsharded_slots(), layout.add_gradient_slots()}) {
      made->set_offset_bytes(slot * 256);
      made->set_bytes(ranks * kShard * bytes);
    }
  }
  layout.set_staging_bytes(ranks * kShard * 4);
  return layout;
}

NcclCollectives::Options OptionsFor(const FakeCuda& fake, int rank, int ranks,
                                    const std::vector<std::string>& ids, CudaStream* compute,
                                    Collectives* host) {
  NcclCollectives::Options options;
  for (int r = 0; r < ranks; ++r) options.group.ranks.push_back(r);
  options.group.index = rank;
  options.api = fake.api();
  options.device = rank;
  options.unshard_id = ids[0];
  options.reduce_id = ids[1];
  options.layout = LayoutFor(ranks);
  options.unit_names = {"h.0", "h.1"};
  options.compute = compute;
  options.host = host;
  options.wait.pause = [] { std::this_thread::yield(); };
  return options;
}

absl::Status Join(const FakeCuda& fake, int rank, int ranks, const std::vector<std::string>& ids,
                  std::shared_ptr<Control> control, Rank* joined) {
  joined->host = MakeHost(rank, ranks, std::move(control));
  absl::StatusOr<std::unique_ptr<CudaStream>> compute =
      CudaStream::Create({.api = fake.api(), .device = rank, .name = "compute"});
  if (!compute.ok()) return compute.status();
  joined->compute = *std::move(compute);
  absl::StatusOr<std::unique_ptr<NcclCollectives>> collectives = NcclCollectives::Create(
      OptionsFor(fake, rank, ranks, ids, joined->compute.get(), joined->host.get()));
  if (!collectives.ok()) return collectives.status();
  joined->collectives = *std::move(collectives);
  for (int64_t i = 0; i < kShard; ++i) joined->shard[i] = ShardValue(rank, i);
  return absl::OkStatus();
}

std::vector<std::string> NewIds(const FakeCuda& fake) {
  return {*NcclCollectives::NewId(*fake.api(), 0), *NcclCollectives::NewId(*fake.api(), 0)};
}

std::vector<Rank> JoinAll(const FakeCuda& fake, int ranks) {
  const std::vector<std::string> ids = NewIds(fake);
  const auto control = MakeControl(ranks);
  std::vector<Rank> all(ranks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const absl::Status status = Join(fake, rank, ranks, ids, control, &all[rank]);
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  return threads.clear(), std::move(all);
}

float Load(const void* memory, int64_t i, DType dtype) {
  if (dtype == v1::FLOAT32) return static_cast<const float*>(memory)[i];
  const uint16_t bits = static_cast<const uint16_t*>(memory)[i];
  return dtype == v1::BFLOAT16 ? FloatFromBFloat16(bits) : FloatFromFloat16(bits);
}
void Store(void* memory, int64_t i, DType dtype, float value) {
  if (dtype == v1::FLOAT32) {
    static_cast<float*>(memory)[i] = value;
  } else {
    static_cast<uint16_t*>(memory)[i] =
        dtype == v1::BFLOAT16 ? BFloat16FromFloat(value) : Float16FromFloat(value);
  }
}

Event Gather(Rank& rank, int slot, DType dtype = v1::FLOAT32, OpTiming* timing = nullptr) {
  return *rank.collectives->AllGather({.unit = 0,
                                       .slot = slot,
                                       .shard = FloatShard(absl::MakeSpan(rank.shard)),
                                       .param_dtype = dtype},
                                      nullptr, timing);
}
Event Reduce(Rank& rank, DType gradient = v1::FLOAT32, DType reduce = v1::FLOAT32,
             bool accumulate = false) {
  return *rank.collectives->ReduceScatter({.unit = 1,
                                           .gradient_slot = 1,
                                           .shard = FloatShard(absl::MakeSpan(rank.gradient_shard)),
                                           .gradient_dtype = gradient,
                                           .reduce_dtype = reduce,
                                           .accumulate = accumulate},
                                          nullptr, nullptr);
}

TEST(NcclCollectivesTest, GathersEveryRanksShardInItsDtype) {
  for (const DType dtype : {v1::FLOAT32, v1::BFLOAT16, v1::FLOAT16}) {
    FakeCuda fake;
    std::vector<Rank> ranks = JoinAll(fake, 3);
    std::vector<Event> events;
    for (Rank& rank : ranks) events.push_back(Gather(rank, 1, dtype));
    for (int r = 0; r < 3; ++r) {
      ASSERT_TRUE(events[r].Wait().ok()) << events[r].Wait();
      for (int64_t i = 0; i < 3 * kShard; ++i) {
        EXPECT_EQ(Load(ranks[r].collectives->Unsharded(1), i, dtype),
                  ShardValue(static_cast<int>(i / kShard), i % kShard));
      }
    }
    EXPECT_THAT(fake.violations(), IsEmpty());
  }
}

// (1 + 2 + 3) / 3 times the pattern, twice where it accumulates: exact in every dtype.
TEST(NcclCollectivesTest, AveragesGradientsInEveryPairOfDtypes) {
  for (const DType gradient : {v1::FLOAT32, v1::BFLOAT16, v1::FLOAT16}) {
    for (const DType reduce : {v1::FLOAT32, v1::BFLOAT16, v1::FLOAT16}) {
      FakeCuda fake;
      std::vector<Rank> ranks = JoinAll(fake, 3);
      for (const bool accumulate : {false, true}) {
        std::vector<Event> events;
        for (int r = 0; r < 3; ++r) {
          ASSERT_TRUE(ranks[r].collectives->AcquireGradient(1, 1, nullptr)->Wait().ok());
          for (int64_t i = 0; i < 3 * kShard; ++i)
            Store(ranks[r].collectives->Gradient(1), i, gradient, GradientValue(r, i));
        }
        for (Rank& rank : ranks) events.push_back(Reduce(rank, gradient, reduce, accumulate));
        for (int r = 0; r < 3; ++r) {
          ASSERT_TRUE(events[r].Wait().ok()) << events[r].Wait();
          for (int64_t i = 0; i < kShard; ++i) {
            const float once = static_cast<float>(2 * ((r * kShard + i) % 7));
            EXPECT_EQ(ranks[r].gradient_shard[i], accumulate ? 2 * once : once);
          }
        }
      }
      EXPECT_THAT(fake.violations(), IsEmpty());
    }
  }
}

TEST(NcclCollectivesTest, GathersMasterShardsThroughASlotThatIsTooNarrow) {
  FakeCuda fake;
  const std::vector<std::string> ids = NewIds(fake);
  std::vector<Rank> ranks(2);
  std::vector<float> whole(2 * kShard);
  const auto control = MakeControl(2);
  auto run = [&](int rank) {
    ranks[rank].host = MakeHost(rank, 2, control);
    ranks[rank].compute =
        *CudaStream::Create({.api = fake.api(), .device = rank, .name = "compute"});
    NcclCollectives::Options options =
        OptionsFor(fake, rank, 2, ids, ranks[rank].compute.get(), ranks[rank].host.get());
    options.layout = LayoutFor(2, /*bytes=*/2);  // two floats of each rank at a time
    ranks[rank].collectives = *NcclCollectives::Create(std::move(options));
    for (int64_t i = 0; i < kShard; ++i) ranks[rank].shard[i] = ShardValue(rank, i);
    return ranks[rank].collectives->GatherShards(
        1, 0, FloatShard(absl::MakeSpan(ranks[rank].shard)),
        rank == 0 ? reinterpret_cast<char*>(whole.data()) : nullptr);
  };
  std::jthread other([&] { EXPECT_TRUE(run(1).ok()); });
  EXPECT_TRUE(run(0).ok());
  other.join();
  for (int64_t i = 0; i < 2 * kShard; ++i)
    EXPECT_EQ(whole[i], ShardValue(static_cast<int>(i / kShard), i % kShard));
  EXPECT_THAT(fake.violations(), IsEmpty());
}

// Puts a read of the slot's tenant on the compute stream.
void Compute(FakeCuda& fake, Rank& rank, int slot) {
  fake.Touch(rank.compute->handle(), rank.collectives->Unsharded(slot), kShard * 4, false,
             "compute");
}

TEST(NcclCollectivesTest, NextTenantWaitsOnTheGpuForTheReleaseOfTheLast) {
  FakeCuda fake;
  std::vector<Rank> ranks = JoinAll(fake, 1);
  ASSERT_TRUE(Gather(ranks[0], 0).Wait().ok());
  Compute(fake, ranks[0], 0);
  ranks[0].collectives->ReleaseUnsharded(0);
  ASSERT_TRUE(Gather(ranks[0], 0).Wait().ok());
  EXPECT_THAT(fake.violations(), IsEmpty());
}

TEST(NcclCollectivesTest, FakeFindsAUseThatOutlivesItsLease) {
  FakeCuda fake;
  std::vector<Rank> ranks = JoinAll(fake, 1);
  ASSERT_TRUE(Gather(ranks[0], 0).Wait().ok());
  ranks[0].collectives->ReleaseUnsharded(0);
  Compute(fake, ranks[0], 0);
  ASSERT_TRUE(Gather(ranks[0], 0).Wait().ok());
  EXPECT_THAT(fake.violations(), Not(IsEmpty()));
}

TEST(NcclCollectivesTest, FakeFindsAUseThatDidNotWaitForItsGather) {
  FakeCuda fake;
  std::vector<Rank> ranks = JoinAll(fake, 1);
  const Event whole = Gather(ranks[0], 0);
  Compute(fake, ranks[0], 0);
  ASSERT_TRUE(whole.Wait().ok());
  EXPECT_THAT(fake.violations(), Not(IsEmpty()));
}

TEST(NcclCollectivesTest, GatherBesideComputeOfAnotherSlotIsNoFault) {
  FakeCuda fake;
  std::vector<Rank> ranks = JoinAll(fake, 1);
  ASSERT_TRUE(Gather(ranks[0], 0).Wait().ok());
  const Event ahead = Gather(ranks[0], 1);
  Compute(fake, ranks[0], 0);
  ASSERT_TRUE(ahead.Wait().ok());
  EXPECT_THAT(fake.violations(), IsEmpty());
}

TEST(NcclCollectivesTest, GatherWaitsForTheShardThatWasPublished) {
  for (const bool publish : {true, false}) {
    FakeCuda fake;
    std::vector<Rank> ranks = JoinAll(fake, 1);
    fake.Touch(ranks[0].compute->handle(), ranks[0].shard.data(), kShard * 4, true, "optimizer");
    if (publish) ranks[0].collectives->PublishShard(0);
    ASSERT_TRUE(Gather(ranks[0], 0).Wait().ok());
    EXPECT_EQ(fake.violations().empty(), publish);
  }
}

// As a step's end does with a unit that was gathered ahead and not used.
TEST(NcclCollectivesTest, HostMayWriteShardsOnceTheVotesAreThere) {
  for (const bool vote : {true, false}) {
    FakeCuda fake;
    std::vector<Rank> ranks = JoinAll(fake, 1);
    Gather(ranks[0], 0);
    ranks[0].collectives->ReleaseUnsharded(0);
    if (vote) {
      ASSERT_TRUE(ranks[0].collectives->Exchange("vote", "commit").ok());
    }
    fake.TouchByHost(0, ranks[0].shard.data(), kShard * 4, true, "optimizer");
    ASSERT_TRUE(Gather(ranks[0], 0).Wait().ok());
    EXPECT_EQ(fake.violations().empty(), vote);
  }
}

TEST(NcclCollectivesTest, ZeroesPartsOfAGradientBeforeItIsReduced) {
  FakeCuda fake;
  std::vector<Rank> ranks = JoinAll(fake, 1);
  for (int64_t i = 0; i < kShard; ++i) Store(ranks[0].collectives->Gradient(1), i, v1::FLOAT32, 7);
  ASSERT_TRUE(ranks[0].collectives->ZeroGradient(1, 4, 8, nullptr).ok());
  ASSERT_TRUE(Reduce(ranks[0]).Wait().ok());
  EXPECT_EQ(ranks[0].gradient_shard, (std::vector<float>{7, 0, 0, 7, 7}));
  EXPECT_THAT(fake.violations(), IsEmpty());
}

TEST(NcclCollectivesTest, AllocatesWhatTheLayoutSays) {
  FakeCuda fake;
  std::vector<Rank> ranks = JoinAll(fake, 3);
  // Two slots of 60 bytes at 0 and 256 in a page, twice, and 60 bytes of staging.
  EXPECT_EQ(fake.allocated_bytes(), 3 * 3 * 4096);
}

TEST(NcclCollectivesTest, BackwardWaitsUntilTheLastGradientsAreRead) {
  for (const bool acquire : {true, false}) {
    FakeCuda fake;
    std::vector<Rank> ranks = JoinAll(fake, 1);
    for (int step = 0; step < 2; ++step) {
      // On the GPU: the host does not wait.
      if (acquire) {
        ASSERT_TRUE(ranks[0].collectives->AcquireGradient(1, 1, nullptr).ok());
      }
      fake.Touch(ranks[0].compute->handle(), ranks[0].collectives->Gradient(1), kShard * 4, true,
                 "backward");
      if (step == 0) Reduce(ranks[0]);
    }
    ASSERT_TRUE(Reduce(ranks[0]).Wait().ok());
    EXPECT_EQ(fake.violations().empty(), acquire);
  }
}

TEST(NcclCollectivesTest, TellsItsOwnWorkWithoutTheWaitForOthers) {
  FakeCuda fake;
  std::vector<Rank> ranks = JoinAll(fake, 1);
  OpTiming timing;
  ASSERT_TRUE(Gather(ranks[0], 0, v1::FLOAT32, &timing).Wait().ok());
  EXPECT_EQ(timing.work_us, 250);  // one kernel, a quarter of a millisecond on the fake
}

// Everything once, as far as it goes.
absl::Status UseEverything(FakeCuda& fake) {
  absl::StatusOr<std::string> unshard_id = NcclCollectives::NewId(*fake.api(), 0);
  if (!unshard_id.ok()) return unshard_id.status();
  absl::StatusOr<std::string> reduce_id = NcclCollectives::NewId(*fake.api(), 0);
  if (!reduce_id.ok()) return reduce_id.status();
  std::vector<float> whole(kShard);
  Rank rank;
  if (absl::Status status = Join(fake, 0, 1, {*unshard_id, *reduce_id}, MakeControl(1), &rank);
      !status.ok())
    return status;
  NcclCollectives& collectives = *rank.collectives;
  auto use = [&]() -> absl::Status {
    collectives.PublishShard(0);
    for (int round = 0; round < 2; ++round) {
      OpTiming timing;
      absl::StatusOr<Event> event = collectives.AllGather(
          {.unit = 0, .slot = 0, .shard = FloatShard(absl::MakeSpan(rank.shard))}, nullptr,
          &timing);
      if (!event.ok()) return event.status();
      if (absl::Status status = event->Wait(); !status.ok()) return status;
      collectives.ReleaseUnsharded(0);
      event = collectives.AcquireGradient(0, 0, nullptr);
      if (!event.ok()) return event.status();
      if (absl::Status status = event->Wait(); !status.ok()) return status;
      if (absl::Status status = collectives.ZeroGradient(0, 4, 8, nullptr); !status.ok())
        return status;
      event = collectives.ReduceScatter({.unit = 0,
                                         .gradient_slot = 0,
                                         .shard = FloatShard(absl::MakeSpan(rank.gradient_shard)),
                                         .reduce_dtype = v1::BFLOAT16},
                                        nullptr, &timing);
      if (!event.ok()) return event.status();
      if (absl::Status status = event->Wait(); !status.ok()) return status;
    }
    if (absl::Status status = collectives.Exchange("vote", "commit").status(); !status.ok())
      return status;
    return collectives.GatherShards(0, 0, FloatShard(absl::MakeSpan(rank.shard)),
                                    reinterpret_cast<char*>(whole.data()));
  };
  absl::Status status = use();
  if (status.ok()) status = collectives.Progress();
  if (!status.ok()) collectives.Abort(status);
  return status;
}

TEST(NcclCollectivesTest, EveryCallThatFailsIsNamedAndNothingLeaks) {
  int calls = 0;
  {
    FakeCuda fake;
    ASSERT_TRUE(UseEverything(fake).ok());
    EXPECT_EQ(fake.live(), 0);
    calls = static_cast<int>(fake.calls().size());
  }
  int named = 0;
  for (int number = 0; number < calls; ++number) {
    FakeCuda fake;
    fake.FailCall(number);
    const absl::Status status = UseEverything(fake);
    const std::string call = fake.calls()[number];
    SCOPED_TRACE(absl::StrCat(call, ", call ", number, ": ", status.ToString()));
    // What frees, and everything once the end has begun, has nobody to tell.
    const std::vector<std::string> all = fake.calls();
    const auto ends = std::find_if(all.begin(), all.end(), [](const std::string& name) {
      return name == "ncclCommDeregister" || name == "ncclGroupStart";
    });
    const bool frees = call.find("Destroy") != std::string::npos || number >= ends - all.begin();
    EXPECT_EQ(status.ok(), frees);
    if (!frees) {
      ++named;
      EXPECT_THAT(std::string(status.message()), HasSubstr(call));
      EXPECT_THAT(std::string(status.message()), HasSubstr("on GPU 0"));
    }
    EXPECT_THAT(fake.violations(), IsEmpty());
    EXPECT_EQ(fake.live(), 0);
    EXPECT_LE(fake.Count("ncclCommAbort"), 2);
    EXPECT_LE(fake.Count("ncclGroupStart"), 1);
  }
  EXPECT_GT(named, 50);
}

TEST(NcclCollectivesTest, AbortOfAnotherThreadEndsAWaitAndHappensOnce) {
  FakeCuda fake;
  std::vector<Rank> ranks = JoinAll(fake, 2);
  const Event whole = Gather(ranks[0], 0);  // rank 1 never comes
  ASSERT_FALSE(*whole.Poll());
  const absl::Status lost = absl::UnavailableError("rank 1 is lost");
  std::jthread([&] { ranks[0].collectives->Abort(lost); }).join();
  ranks[0].collectives->Abort(absl::InternalError("later"));
  EXPECT_EQ(whole.Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(whole.Wait().message(), "unshard of unit h.0: rank 1 is lost");
  EXPECT_FALSE(ranks[0].collectives->Exchange("vote", "commit").ok());
  EXPECT_EQ(fake.Count("ncclCommAbort"), 2);
  EXPECT_EQ(fake.Count("ncclGroupStart"), 1);
  EXPECT_THAT(fake.violations(), IsEmpty());
}

TEST(NcclCollectivesTest, AbortTellsThePeersWhoEndedAndWhy) {
  FakeCuda fake;
  std::vector<Rank> ranks = JoinAll(fake, 2);
  const Event whole = Gather(ranks[1], 0);
  ranks[0].collectives->Abort(absl::InternalError("out of luck"));
  for (const absl::Status& status : {whole.Wait(), ranks[1].collectives->Progress(),
                                     ranks[1].collectives->Exchange("vote", "commit").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 ended: out of luck"));
    EXPECT_EQ(BlamedRank(status), 0);
  }
}

TEST(NcclCollectivesTest, APeerThatEndsEndsTheSettingUpByName) {
  FakeCuda fake;
  const auto control = MakeControl(2);
  MakeHost(1, 2, control)->Abort(absl::InternalError("no memory"));
  Rank rank;
  const absl::Status status = Join(fake, 0, 2, NewIds(fake), control, &rank);
  EXPECT_EQ(status.message(), "rank 1 ended: no memory");
  EXPECT_EQ(BlamedRank(status), 1);
}

TEST(NcclCollectivesTest, InterruptEndsAWaitAndLeavesTheCommunicators) {
  FakeCuda fake;
  std::vector<Rank> ranks = JoinAll(fake, 2);
  const Event whole = Gather(ranks[0], 0);
  ranks[0].collectives->Interrupt(absl::AbortedError("the generation ended"));
  EXPECT_EQ(whole.Wait().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(fake.Count("ncclCommAbort"), 0);
}

TEST(NcclCollectivesTest, LostPeerEndsAWait) {
  FakeCuda fake;
  std::vector<Rank> ranks = JoinAll(fake, 2);
  const Event whole = Gather(ranks[0], 0);
  fake.SetAsyncError(kNcclRemoteError);
  const absl::Status status = whole.Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(),
            "unshard of unit h.0: ncclCommGetAsyncError on GPU 0: a fake failure (ncclResult 6); "
            "NCCL's last error: what NCCL remembers");
}

TEST(NcclCollectivesTest, RanksThatDoNotComeEndTheSettingUpAtTheDeadline) {
  FakeCuda fake;
  SimulatedClock clock;
  const std::vector<std::string> ids = NewIds(fake);
  {
    std::unique_ptr<CudaStream> compute = *CudaStream::Create({.api = fake.api()});
    const auto host = MakeHost(0, 2, MakeControl(2));
    NcclCollectives::Options options = OptionsFor(fake, 0, 2, ids, compute.get(), host.get());
    options.wait = {.timeout = absl::Seconds(30), .clock = &clock, .pause = [&] {
                      clock.Advance(absl::Seconds(1));
                    }};
    const absl::Status status = NcclCollectives::Create(std::move(options)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(status.message(), "waited 30s for the communicator for unshard of 2 ranks");
  }
  EXPECT_EQ(fake.live(), 0);
  EXPECT_THAT(fake.violations(), IsEmpty());
}

TEST(NcclCollectivesTest, RefusesWhatCannotWork) {
  FakeCuda fake;
  std::unique_ptr<CudaStream> compute = *CudaStream::Create({.api = fake.api()});
  const auto host = MakeHost(0, 1, MakeControl(1));
  NcclCollectives::Options options =
      OptionsFor(fake, 0, 1, NewIds(fake), compute.get(), host.get());
  options.layout.set_unshard_mode(v1::RESIDENT);
  EXPECT_EQ(NcclCollectives::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.layout.set_unshard_mode(v1::SLOTS);
  options.unshard_id = "short";
  EXPECT_EQ(NcclCollectives::Create(options).status().code(), absl::StatusCode::kInvalidArgument);

  Rank rank;
  ASSERT_TRUE(Join(fake, 0, 1, NewIds(fake), MakeControl(1), &rank).ok());
  const absl::Status status =
      rank.collectives
          ->AllGather(
              {.slot = 0, .shard = {reinterpret_cast<char*>(rank.shard.data()), kShard + 1}},
              nullptr, nullptr)
          .status();
  EXPECT_EQ(status.message(), "unshard of unit h.0 needs 24 bytes, but its buffer has 20");
}

}  // namespace
}  // namespace tessera
