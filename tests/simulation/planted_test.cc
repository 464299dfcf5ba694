// The checker finds what it is there to find: a fault is planted for each invariant, between the
// coordinator and its members, in the members or on the disk, and exactly that invariant is said to
// be violated.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/simulation/history.h"

namespace tessera::simulation {
namespace {

// What the coordinator sends, changed on its way; more may be sent after it.
class ChangingSink final : public MemberSink {
 public:
  using Change = std::function<void(v1::AttendResponse, MemberSink&)>;
  ChangingSink(std::shared_ptr<MemberSink> to, Change change)
      : to_(std::move(to)), change_(std::move(change)) {}
  void Send(v1::AttendResponse message) override { change_(std::move(message), *to_); }
  void Close(const absl::Status& status) override { to_->Close(status); }

 private:
  std::shared_ptr<MemberSink> to_;
  Change change_;
};

class ChangingFacade : public Facade {
 public:
  ChangingFacade(Coordinator* coordinator, ChangingSink::Change change)
      : Facade(coordinator), change_(std::move(change)) {}
  absl::StatusOr<MemberId> Join(const v1::AttendRequest& first,
                                std::shared_ptr<MemberSink> sink) override {
    return Facade::Join(first, std::make_shared<ChangingSink>(std::move(sink), change_));
  }

 private:
  ChangingSink::Change change_;
};

std::function<std::unique_ptr<Facade>(Coordinator*)> Changing(ChangingSink::Change change) {
  return [change](Coordinator* coordinator) {
    return std::make_unique<ChangingFacade>(coordinator, change);
  };
}

template <typename FacadeType>
std::unique_ptr<Facade> Make(Coordinator* coordinator) {
  return std::make_unique<FacadeType>(coordinator);
}

// Jobs that recover, of which only ranks are killed.
HistoryOptions KilledRanks() {
  HistoryOptions options;
  options.plan.recovery = true;
  options.change = [](Plan& plan) {
    for (PlannedFault& fault : plan.faults) fault.kind = FaultKind::kKillRank;
    plan.lost_calls_percent = 0;
  };
  return options;
}

// The first violation of some hundred histories.
Violation FirstViolation(HistoryOptions options) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    options.seed = seed;
    const HistoryResult result = RunHistory(options);
    if (result.violation.has_value()) return *result.violation;
  }
  ADD_FAILURE() << "no violation in 500 histories";
  return {};
}

void ExpectFound(const HistoryOptions& options, Invariant invariant) {
  const Violation found = FirstViolation(options);
  EXPECT_EQ(Name(found.invariant), Name(invariant)) << found.what;
}

TEST(PlantedTest, ARankThatIsStartedTwiceHasTwoOwners) {
  HistoryOptions options = KilledRanks();
  options.starts_twice = true;
  ExpectFound(options, Invariant::kOneOwner);
}

TEST(PlantedTest, AGenerationNumberIsUsedAgain) {
  HistoryOptions options = KilledRanks();
  options.make_facade = Changing([](v1::AttendResponse message, MemberSink& to) {
    if (message.has_form_host()) message.mutable_form_host()->set_generation(1);
    to.Send(std::move(message));
  });
  ExpectFound(options, Invariant::kGenerationsGrow);
}

TEST(PlantedTest, TheStartIsNeverSaid) {
  HistoryOptions options;
  options.plan.faults = false;
  options.make_facade = Changing([](v1::AttendResponse message, MemberSink& to) {
    if (!message.has_start()) to.Send(std::move(message));
  });
  ExpectFound(options, Invariant::kEveryJobEnds);
}

TEST(PlantedTest, AJobStartsAnewThoughItsHostsHoldItsSteps) {
  HistoryOptions options = KilledRanks();
  options.make_facade = Changing([](v1::AttendResponse message, MemberSink& to) {
    if (message.has_form_host()) message.mutable_form_host()->set_recover(false);
    to.Send(std::move(message));
  });
  ExpectFound(options, Invariant::kNothingLost);
}

TEST(PlantedTest, AStepIsFinishedTwice) {
  HistoryOptions options = KilledRanks();
  options.forgets_tags = true;
  ExpectFound(options, Invariant::kNothingTwice);
}

TEST(PlantedTest, ARestartForgetsJobs) {
  HistoryOptions options;
  options.plan.restarts = true;
  options.forgets_on_restart = true;
  ExpectFound(options, Invariant::kRequestsKept);
}

class WithoutRequestIds final : public Facade {
 public:
  using Facade::Facade;
  absl::StatusOr<v1::Job> CreateJob(const v1::CreateJobRequest& request) override {
    v1::CreateJobRequest without = request;
    without.clear_request_id();
    return Facade::CreateJob(without);
  }
};

TEST(PlantedTest, ARepeatedRequestActsAgain) {
  HistoryOptions options;
  options.plan.faults = false;
  options.change = [](Plan& plan) {
    for (PlannedJobRequest& job : plan.jobs) {
      job.spec.set_steps(1);
      job.asks_twice = true;
    }
  };
  options.make_facade = Make<WithoutRequestIds>;
  ExpectFound(options, Invariant::kRequestsKept);
}

class BlamesTheNeighbour final : public Facade {
 public:
  using Facade::Facade;
  absl::Status Receive(MemberId member, const v1::AttendRequest& message) override {
    v1::AttendRequest changed = message;
    if (changed.has_worker_exited()) {
      changed.mutable_worker_exited()->set_rank(Other(message.worker_exited().rank()));
    } else if (changed.has_leave() && changed.leave().has_blamed_rank()) {
      changed.mutable_leave()->set_blamed_rank(Other(message.leave().blamed_rank()));
    }
    return Facade::Receive(member, changed);
  }

 private:
  static int Other(int rank) { return rank == 0 ? 1 : 0; }
};

TEST(PlantedTest, TheWrongRankIsBlamed) {
  HistoryOptions options = KilledRanks();
  options.plan.recovery = false;
  options.make_facade = Make<BlamesTheNeighbour>;
  ExpectFound(options, Invariant::kRealCulprit);
}

TEST(PlantedTest, AMemberIsSentSomethingAfterItsEnd) {
  HistoryOptions options = KilledRanks();
  options.make_facade = Changing([](v1::AttendResponse message, MemberSink& to) {
    const bool end = message.has_end();
    to.Send(std::move(message));
    v1::AttendResponse start;
    start.mutable_start();
    if (end) to.Send(std::move(start));
  });
  ExpectFound(options, Invariant::kEndIsLast);
}

class KeepsSinks final : public Facade {
 public:
  using Facade::Facade;
  absl::StatusOr<MemberId> Join(const v1::AttendRequest& first,
                                std::shared_ptr<MemberSink> sink) override {
    kept_.push_back(sink);
    return Facade::Join(first, std::move(sink));
  }

 private:
  std::vector<std::shared_ptr<MemberSink>> kept_;
};

TEST(PlantedTest, StreamsThatAreOverAreKept) {
  HistoryOptions options;
  options.make_facade = Make<KeepsSinks>;
  ExpectFound(options, Invariant::kNothingLeaks);
}

TEST(PlantedTest, TheSameSeedMakesTheSameHistory) {
  HistoryOptions options;
  options.plan.recovery = options.plan.restarts = true;
  options.trace = 100000;
  for (options.seed = 1; options.seed <= 20; ++options.seed) {
    const HistoryResult first = RunHistory(options);
    EXPECT_FALSE(first.trace.empty());
    EXPECT_EQ(first.trace, RunHistory(options).trace) << "seed " << options.seed;
  }
}

}  // namespace
}  // namespace tessera::simulation
