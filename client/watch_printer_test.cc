#include "client/watch_printer.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class WatchPrinterTest : public ::testing::Test {
 protected:
  WatchPrinter Make(bool states) {
    return WatchPrinter({.states = states,
                         .out = [this](const std::string& line) { out_.push_back(line); },
                         .err = [this](const std::string& line) { err_.push_back(line); }});
  }
  static v1::WatchJobResponse State(v1::JobState state, const std::string& reason = "") {
    v1::WatchJobResponse event;
    event.mutable_job()->set_name("gpt");
    event.mutable_job()->set_state(state);
    event.mutable_job()->set_reason(reason);
    return event;
  }
  static v1::WatchJobResponse Step(int64_t step) {
    v1::WatchJobResponse event;
    event.mutable_progress()->set_step(step);
    event.mutable_progress()->set_steps(60);
    return event;
  }

  std::vector<std::string> out_, err_;
};

TEST_F(WatchPrinterTest, PrintsAStateOnceWhateverItsReasons) {
  WatchPrinter printer = Make(true);
  const WatchHandlers handlers = printer.Handlers();
  handlers.on_event(State(v1::FORMING, "waits for a host with at least 2 workers"));
  handlers.on_event(State(v1::FORMING, "host node-a starts 2 workers"));
  handlers.on_event(State(v1::RUNNING));
  handlers.on_event(Step(20));
  handlers.on_event(State(v1::SUCCEEDED));
  EXPECT_THAT(out_, ElementsAre("state FORMING", "state RUNNING", "step 20/60 loss 0.000",
                                "state SUCCEEDED"));
  EXPECT_THAT(err_, IsEmpty());
}

TEST_F(WatchPrinterTest, PrintsAnIncidentAsOneNote) {
  WatchPrinter printer = Make(false);
  v1::WatchJobResponse event;
  event.mutable_incident()->set_number(1);
  event.mutable_incident()->set_kind(v1::Incident::STRAGGLER);
  event.mutable_incident()->set_message("rank 1 is slower than the others");
  printer.Handlers().on_event(event);
  EXPECT_THAT(out_, IsEmpty());
  EXPECT_THAT(err_, ElementsAre("incident 1 STRAGGLER: rank 1 is slower than the others"));
}

TEST_F(WatchPrinterTest, AStateThatComesAgainIsPrintedAgain) {
  WatchPrinter printer = Make(true);
  const WatchHandlers handlers = printer.Handlers();
  for (const v1::JobState state : {v1::RUNNING, v1::RECOVERING, v1::RUNNING}) {
    handlers.on_event(State(state));
  }
  EXPECT_THAT(out_, ElementsAre("state RUNNING", "state RECOVERING", "state RUNNING"));
}

TEST_F(WatchPrinterTest, ARunPrintsProgressAlone) {
  WatchPrinter printer = Make(false);
  const WatchHandlers handlers = printer.Handlers();
  handlers.on_event(State(v1::RUNNING));
  handlers.on_event(Step(20));
  EXPECT_THAT(out_, ElementsAre("step 20/60 loss 0.000"));
}

TEST_F(WatchPrinterTest, SaysOnStderrWhatBecomesOfTheWatch) {
  WatchPrinter printer = Make(true);
  const WatchHandlers handlers = printer.Handlers();
  handlers.on_event(Step(20));
  handlers.on_broken(absl::UnavailableError("cannot reach it"), absl::Seconds(30));
  handlers.on_resumed();
  v1::WatchJobResponse later = Step(80);
  later.set_missed(2);
  handlers.on_event(later);
  EXPECT_THAT(err_, ElementsAre("the watch broke off after step 20 (cannot reach it); trying again "
                                "for 30s",
                                "the watch goes on after step 20",
                                "missed 2 earlier lines of this job: the coordinator does not keep "
                                "them"));
  EXPECT_EQ(out_.size(), 2u);
}

TEST_F(WatchPrinterTest, SaysOnceThatAJobIsDrained) {
  WatchPrinter printer = Make(false);
  const WatchHandlers handlers = printer.Handlers();
  v1::WatchJobResponse draining = State(v1::RUNNING, "is drained: it stops after this step");
  draining.mutable_job()->set_draining(true);
  handlers.on_event(draining);
  handlers.on_event(draining);
  draining.mutable_job()->set_state(v1::CANCELLED);
  handlers.on_event(draining);
  EXPECT_THAT(err_, ElementsAre("job gpt is drained: it stops after this step"));
}

TEST_F(WatchPrinterTest, SaysThatAJobThatRecoversIsDrainedLater) {
  WatchPrinter printer = Make(false);
  const WatchHandlers handlers = printer.Handlers();
  v1::WatchJobResponse draining = State(v1::RECOVERING, "rank 1 was killed");
  draining.mutable_job()->set_draining(true);
  handlers.on_event(draining);
  EXPECT_THAT(err_, ElementsAre("job gpt is drained: it stops once it runs again"));
}

}  // namespace
}  // namespace tessera
