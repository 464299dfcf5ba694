// Shared memory within hosts and links between them, all in one process: what a mesh gives on
// several hosts is what it gives on one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/control_file.h"
#include "worker/blame.h"
#include "worker/collectives/shm_collectives.h"

namespace tessera {
namespace {

constexpr int kShardCount = 2;
constexpr int kLocal = 2;      // ranks of a host where there are two hosts
constexpr int kSlots = 3;      // gradient slots
constexpr int64_t kShard = 5;  // elements of a rank's shard
constexpr int64_t kSlotBytes = 128;
constexpr absl::Duration kLong = absl::Seconds(60);

struct Op {
  DType reduce_dtype = v1::FLOAT32;
  bool accumulate = false;
  bool replicate = true;
};

// Four ranks in two shard groups of two, on one host or on two, each with its collectives.
class World {
 public:
  explicit World(int hosts, absl::Duration timeout = kLong) : hosts_(hosts), local_(4 / hosts) {
    layout_.set_gradient_stride_bytes(kSlots * kSlotBytes);
    for (int slot = 0; slot < kSlots; ++slot) {
      layout_.add_gradient_slots()->set_offset_bytes(slot * kSlotBytes);
      layout_.mutable_gradient_slots(slot)->set_bytes(kSlotBytes);
    }
    for (int host = 0; host < hosts; ++host) {
      control_.emplace_back(ControlFileBytes(local_, 0, kSlots) / 8);
      gradients_.emplace_back(local_ * kSlots * kSlotBytes);
    }
    staging_.resize(4);
    std::vector<std::unique_ptr<HostLinks>> links = hosts > 1 ? Link(timeout) : NoLinks();
    for (int rank = 0; rank < 4; ++rank) ranks_.push_back(Make(rank, timeout, links[rank]));
  }

  ShmCollectives& rank(int rank) { return *ranks_[rank]; }

  // Runs on all ranks at once, or on those given.
  std::vector<absl::Status> Run(const std::function<absl::Status(int, ShmCollectives&)>& body,
                                const std::vector<int>& on = {0, 1, 2, 3}) {
    std::vector<absl::Status> statuses(4);
    std::vector<std::jthread> threads;
    for (const int rank : on)
      threads.emplace_back([&, rank] { statuses[rank] = body(rank, *ranks_[rank]); });
    threads.clear();
    return statuses;
  }

 private:
  static std::vector<std::unique_ptr<HostLinks>> NoLinks() {
    return std::vector<std::unique_ptr<HostLinks>>(4);
  }

  std::vector<std::unique_ptr<HostLinks>> Link(absl::Duration timeout) {
    std::vector<std::unique_ptr<GlooHostListener>> listeners;
    std::vector<std::string> addresses;
    for (int rank = 0; rank < 4; ++rank) {
      staging_[rank].resize(HostLinks::StagingBytes(2) + kShard * 4);
      HostLinks::Options options;
      options.host_names = {"a", "b"};
      options.host = rank / kLocal;
      options.ranks = {rank % kLocal, kLocal + rank % kLocal};
      options.gather_bytes = kLocal * kExchangeBytes;
      options.staging = absl::MakeSpan(staging_[rank]).first(HostLinks::StagingBytes(2));
      options.timeout = timeout;
      listeners.push_back(*GlooHostListener::Listen(options));
      addresses.push_back(listeners.back()->addresses());
    }
    std::vector<std::unique_ptr<HostLinks>> links(4);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 4; ++rank) {
      threads.emplace_back([&, rank] {
        const int local = rank % kLocal;
        auto made = GlooHostListener::Connect(std::move(listeners[rank]),
                                              {addresses[local], addresses[kLocal + local]});
        EXPECT_TRUE(made.ok()) << made.status();
        if (made.ok()) links[rank] = *std::move(made);
      });
    }
    threads.clear();
    return links;
  }

  std::unique_ptr<ShmCollectives> Make(int rank, absl::Duration timeout,
                                       std::unique_ptr<HostLinks>& links) {
    const int host = rank / local_;
    ShmCollectives::Options options;
    const int first = rank / kShardCount * kShardCount;
    options.group.ranks = {first, first + 1};
    options.group.index = rank % kShardCount;
    options.group.hosts = {host, host};
    options.group.replicas = 2;
    options.sync.control = control_[host].data();
    options.sync.local_world_size = local_;
    options.sync.local_rank = rank % local_;
    options.sync.first_rank = host * local_;
    options.sync.gradient_slots = kSlots;
    options.sync.timeout = timeout;
    options.gradients = gradients_[host].data();
    options.layout = layout_;
    options.unit_names = {"h.0", "h.1", "h.2"};
    if (links != nullptr) {
      options.hosts = std::make_shared<HostTurns>(
          std::move(links), absl::MakeSpan(staging_[rank]).subspan(HostLinks::StagingBytes(2)));
    }
    return std::make_unique<ShmCollectives>(std::move(options));
  }

  const int hosts_;
  const int local_;
  v1::Layout layout_;
  std::vector<std::vector<uint64_t>> control_;
  std::vector<std::vector<char>> gradients_;
  std::vector<std::vector<char>> staging_;
  std::vector<std::unique_ptr<ShmCollectives>> ranks_;
};

// Not exact: a sum's last bits depend on the order.
float Value(int rank, int unit, int64_t i) {
  return static_cast<float>(std::sin(1.7 * rank + 0.3 * unit + 0.1 * static_cast<double>(i))) *
         (rank == 1 ? 3e3f : 1.0f);
}

using Shards = std::vector<std::vector<float>>;  // by rank

// Every rank reduces units 0, 1 and 2, and waits for the last first.
Shards Reduce(World& world, const Op& op) {
  Shards shards(4, std::vector<float>(kSlots * kShard, 0.5f));
  const std::vector<absl::Status> statuses =
      world.Run([&](int rank, ShmCollectives& collectives) -> absl::Status {
        std::vector<Event> reduced;
        for (int unit = 0; unit < kSlots; ++unit) {
          const auto acquired = collectives.AcquireGradient(unit, unit, nullptr);
          if (absl::Status status = acquired->Wait(); !status.ok()) return status;
          auto* gradients = static_cast<float*>(collectives.Gradient(unit));
          for (int64_t i = 0; i < kShardCount * kShard; ++i) gradients[i] = Value(rank, unit, i);
          ReduceScatterOp reduce;
          reduce.unit = unit;
          reduce.gradient_slot = unit;
          reduce.shard = FloatShard(absl::MakeSpan(shards[rank]).subspan(unit * kShard, kShard));
          reduce.reduce_dtype = op.reduce_dtype;
          reduce.accumulate = op.accumulate;
          reduce.replicate = op.replicate;
          reduced.push_back(*collectives.ReduceScatter(reduce, nullptr, nullptr));
        }
        for (int unit = kSlots - 1; unit >= 0; --unit) {
          if (absl::Status status = reduced[unit].Wait(); !status.ok()) return status;
        }
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  return shards;
}

TEST(ShmHostsTest, ReducesOverTwoHostsAsOverOne) {
  World one(1), two(2);
  for (const DType dtype : {v1::FLOAT32, v1::BFLOAT16, v1::FLOAT16}) {
    for (const bool accumulate : {false, true}) {
      const Op op = {.reduce_dtype = dtype, .accumulate = accumulate, .replicate = true};
      EXPECT_EQ(Reduce(two, op), Reduce(one, op));
    }
  }
  // And one element by hand: what the rule says.
  const float sum = (Value(0, 1, 0) + Value(1, 1, 0)) + (Value(2, 1, 0) + Value(3, 1, 0));
  const Shards shards = Reduce(two, {});
  EXPECT_EQ(shards[0][kShard], sum / 4);
  EXPECT_EQ(shards[2][kShard], sum / 4);
}

TEST(ShmHostsTest, SumsOfMicroBatchesMeetOnceAtTheEnd) {
  World one(1), two(2);
  const Op part = {.reduce_dtype = v1::FLOAT32, .accumulate = true, .replicate = false};
  Shards on_one = Reduce(one, part), on_two = Reduce(two, part);
  EXPECT_EQ(on_one, on_two);
  EXPECT_NE(on_two[0], on_two[2]);
  for (auto [world, shards] : {std::pair(&one, &on_one), std::pair(&two, &on_two)}) {
    for (const absl::Status& status : world->Run([&](int rank, ShmCollectives&collectives) {
           const ShardSpan shard = FloatShard(absl::MakeSpan((*shards)[rank]).first(kShard));
           return collectives.SumReplicas(0, 0, shard, nullptr)->Wait();
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
  EXPECT_EQ(on_one, on_two);
  EXPECT_EQ(std::vector<float>(on_two[0].begin(), on_two[0].begin() + kShard),
            std::vector<float>(on_two[2].begin(), on_two[2].begin() + kShard));
}

TEST(ShmHostsTest, AnExchangeGivesEveryRankEveryRanksPayloadInWorldOrder) {
  World two(2);
  for (int round = 0; round < 3; ++round) {
    for (const absl::Status& status : two.Run([&](int rank, ShmCollectives&collectives) {
           const auto payloads = collectives.Exchange(absl::StrCat(round, "/", rank), "a vote");
           if (!payloads.ok()) return payloads.status();
           std::vector<std::string> expected;
           for (int other = 0; other < 4; ++other)
             expected.push_back(absl::StrCat(round, "/", other));
           EXPECT_EQ(*payloads, expected);
           return absl::OkStatus();
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

TEST(ShmHostsTest, AHostThatDoesNotComeIsNamedByEveryRank) {
  World two(2, absl::Milliseconds(200));
  const std::vector<absl::Status> statuses = two.Run(
      [&](int, ShmCollectives& collectives) {
        return collectives.Exchange("", "the commit of step 3").status();
      },
      {0, 1});
  for (const int rank : {0, 1}) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(statuses[rank].message(),
              absl::StrCat("waited 200ms for the commit of step 3; missing: host b (rank ",
                           2 + rank, ")"));
    EXPECT_EQ(BlamedRank(statuses[rank]), 2 + rank);
  }
}

TEST(ShmHostsTest, ARankThatAbortsEndsTheWaitsOnItsHostAndOnTheOthers) {
  World two(2);
  const std::vector<absl::Status> statuses =
      two.Run([&](int rank, ShmCollectives& collectives) -> absl::Status {
        const absl::Status status = rank == 3 ? absl::InternalError("out of its mind")
                                              : collectives.Exchange("", "a vote").status();
        collectives.Abort(status);  // as a session does
        return status;
      });
  EXPECT_EQ(statuses[2].message(), "rank 3 ended: out of its mind");
  EXPECT_EQ(BlamedRank(statuses[2]), 3);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(absl::StrContains(statuses[rank].message(), "on host b is gone, in a vote: "))
        << statuses[rank];
    EXPECT_GE(BlamedRank(statuses[rank]), 2);
  }
}

TEST(ShmHostsTest, AnInterruptionEndsTheRanksWaitBetweenHosts) {
  World two(2);
  std::jthread interrupts([&] { two.rank(0).Interrupt(absl::AbortedError("the job is over")); });
  const std::vector<absl::Status> statuses = two.Run(
      [&](int, ShmCollectives& collectives) { return collectives.Exchange("", "a vote").status(); },
      {0});
  EXPECT_EQ(statuses[0], absl::AbortedError("the job is over"));
}

}  // namespace
}  // namespace tessera
