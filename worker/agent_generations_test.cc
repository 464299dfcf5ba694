#include "worker/agent_generations.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/control_file.h"
#include "common/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/fake_membership_service.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

bool IsJoin(const v1::AttendRequest& request) { return request.has_join_rank(); }
bool IsReady(const v1::AttendRequest& request) { return request.has_rank_ready(); }

// A rank, alone on its host, of a job that has no units.
class AgentGenerationsTest : public testing::Test {
 protected:
  AgentGenerationsTest() {
    v1::Welcome welcome;
    welcome.mutable_heartbeat()->set_seconds(3600);
    service_.WelcomeJoins(welcome);
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    agent_.Reset(ends[0]);
    AgentHandoff handoff;
    handoff.hello = HelloOf(1);
    handoff.agent_socket.Reset(ends[1]);
    for (int i = 0; i < kHandoffFiles; ++i) handoff.files.push_back(File());
    handoff.peer_pidfds.push_back(Living());
    auto memory = HostMemory::Map(std::move(handoff));
    EXPECT_TRUE(memory.ok()) << memory.status();
    relay_ = std::make_shared<EndRelay>(nullptr);
    generations_ = std::make_unique<AgentGenerations>(AgentGenerations::Options{
        .memory = *memory, .relay = relay_, .planned = {}, .context = {.faults = &faults_}});
  }

  // As the pidfd of a process that lives: never readable.
  static UniqueFd Living() { return UniqueFd(eventfd(0, EFD_CLOEXEC)); }
  static UniqueFd File() { return UniqueFd(dup(MemoryFile::Create("test", 2 * kPageBytes)->fd())); }

  v1::AgentHello HelloOf(int64_t generation) {
    v1::AgentHello hello;
    hello.set_coordinator(service_.address());
    hello.mutable_assignment()->set_job("job");
    hello.mutable_assignment()->set_generation(generation);
    hello.mutable_assignment()->set_world_size(1);
    hello.mutable_assignment()->set_local_world_size(1);
    hello.set_incarnation("abc");
    hello.set_host_name("testhost");
    hello.mutable_layout()->set_shard_count(1);
    hello.mutable_layout()->set_replica_count(1);
    hello.set_recover(generation > 1);
    for (auto* timeout : {hello.mutable_spec()->mutable_timeouts()->mutable_form(),
                          hello.mutable_spec()->mutable_timeouts()->mutable_collective()})
      timeout->set_seconds(60);
    return hello;
  }

  void HandOut(int64_t generation) {
    const UniqueFd control = File(), pidfd = Living();
    HandoffSender sender(agent_.get(), HelloOf(generation), {control.get(), pidfd.get()});
    EXPECT_TRUE(*sender.Send());
  }

  void End(v1::JobState state) {
    v1::AttendResponse response;
    response.mutable_end()->set_state(state);
    service_.Send(response);
  }

  FakeMembershipService service_;
  UniqueFd agent_;
  FaultPoints faults_;
  std::shared_ptr<EndRelay> relay_;
  std::unique_ptr<AgentGenerations> generations_;
};

TEST_F(AgentGenerationsTest, JoinsTheNewestThatTheAgentHandsOut) {
  relay_->End(WithReason(absl::AbortedError("the job is RECOVERING"), "GENERATION_ENDED"));
  HandOut(2);
  HandOut(3);
  absl::StatusOr<GenerationParts> parts = generations_->Await();
  ASSERT_TRUE(parts.ok()) << parts.status();
  const v1::JoinRank join = service_.AwaitRequest(IsJoin).join_rank();
  EXPECT_EQ(join.generation(), 3);
  EXPECT_EQ(join.incarnation(), "abc");
  EXPECT_EQ(join.pid(), getpid());
  EXPECT_EQ(parts->assignment.generation(), 3);
  // Over a control file of its own: nobody is waited for.
  EXPECT_TRUE(parts->collectives->Exchange("", "nobody").ok());

  auto started = std::async(std::launch::async,
                            [&] { return generations_->Start(parts->membership.get(), 41); });
  EXPECT_EQ(service_.AwaitRequest(IsReady).rank_ready().step(), 41);
  v1::AttendResponse start;
  start.mutable_start();
  service_.Send(start);
  EXPECT_TRUE(started.get().ok());
}

TEST_F(AgentGenerationsTest, AGenerationThatEndsBeforeItBeginsIsPassedOver) {
  HandOut(2);
  absl::StatusOr<GenerationParts> second = generations_->Await();
  ASSERT_TRUE(second.ok()) << second.status();
  auto started = std::async(std::launch::async,
                            [&] { return generations_->Start(second->membership.get(), 7); });
  service_.AwaitRequest(IsReady);
  End(v1::RECOVERING);
  EXPECT_EQ(Reason(started.get()), "GENERATION_ENDED");
  HandOut(3);
  const absl::StatusOr<GenerationParts> third = generations_->Await();
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(third->assignment.generation(), 3);
}

TEST_F(AgentGenerationsTest, ARefusedGenerationIsPassedOver) {
  service_.RefuseJoins(
      WithReason(absl::FailedPreconditionError("generation 2 has ended"), "STALE_GENERATION"));
  HandOut(2);
  auto parts = std::async(std::launch::async, [&] { return generations_->Await(); });
  service_.AwaitRequest(IsJoin);
  v1::Welcome welcome;
  welcome.mutable_heartbeat()->set_seconds(3600);
  service_.WelcomeJoins(welcome);
  HandOut(3);
  const absl::StatusOr<GenerationParts> third = parts.get();
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(third->assignment.generation(), 3);
}

TEST_F(AgentGenerationsTest, TheJobsEndEndsTheWait) {
  relay_->End(WithReason(absl::AbortedError("the job is FAILED: no hosts"), "JOB_ENDED"));
  const absl::Status status = generations_->Await().status();
  EXPECT_EQ(Reason(status), "JOB_ENDED");
  EXPECT_THAT(std::string(status.message()), HasSubstr("no hosts"));
}

TEST_F(AgentGenerationsTest, TheAgentsEndEndsTheWait) {
  agent_.Reset();
  const absl::Status status = generations_->Await().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "the agent of host testhost is gone");
}

TEST_F(AgentGenerationsTest, AnInterruptionEndsTheWait) {
  generations_->Interrupt(absl::CancelledError("enough"));
  EXPECT_EQ(generations_->Await().status(), absl::CancelledError("enough"));
}

TEST(CanRecoverTest, JobsOnCpusWhoseModelIsGivenCan) {
  v1::JobSpec spec;
  v1::Layout layout;
  spec.set_max_recoveries(1);
  EXPECT_TRUE(CanRecover(spec, layout));
  layout.set_device(v1::CUDA);
  EXPECT_FALSE(CanRecover(spec, layout));
  layout.clear_device();
  spec.mutable_model()->set_built(true);
  EXPECT_FALSE(CanRecover(spec, layout));
  spec.clear_model();
  spec.set_max_recoveries(0);
  EXPECT_FALSE(CanRecover(spec, layout));
}

}  // namespace
}  // namespace tessera
