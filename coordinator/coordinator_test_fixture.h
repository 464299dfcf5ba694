// A Coordinator with a clock that tests move, and members that write down what they are sent.
#ifndef TESSERA_COORDINATOR_COORDINATOR_TEST_FIXTURE_H_
#define TESSERA_COORDINATOR_COORDINATOR_TEST_FIXTURE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/simulated_clock.h"
#include "coordinator/coordinator.h"
#include "gtest/gtest.h"

namespace tessera {

class RecordingSink final : public MemberSink {
 public:
  void Send(v1::AttendResponse message) override {
    if (message.has_welcome()) ++welcomes;
    if (message.has_form_host()) form = message.form_host();
    if (message.has_start()) ++starts;
    if (message.has_drain()) ++drains;
    if (message.has_drain() && message.drain().resize()) ++resizes;
    if (message.has_end()) end = message.end();
  }
  void Close(const absl::Status& status) override { closed = status; }

  int welcomes = 0;
  int starts = 0;
  int drains = 0;
  int resizes = 0;  // of them
  std::optional<v1::FormHost> form;
  std::optional<v1::EndGeneration> end;
  std::optional<absl::Status> closed;
};

struct Member {
  MemberId id = 0;
  std::shared_ptr<RecordingSink> sink = std::make_shared<RecordingSink>();
};

class CoordinatorFixture : public ::testing::Test {
 protected:
  // A job of the smallest builtin gpt; global_batch 12 divides over 1, 2, 3, 4 and 6 workers. The
  // first loss fails it.
  static v1::JobSpec Spec(const std::string& name, int min_workers, int max_workers) {
    v1::JobSpec spec;
    spec.set_name(name);
    spec.mutable_model()->set_builtin("gpt");
    spec.mutable_model()->set_layers(1);
    spec.mutable_model()->set_width(8);
    spec.mutable_model()->set_heads(2);
    spec.mutable_model()->set_context(8);
    spec.set_global_batch(12);
    spec.set_steps(5);
    spec.set_max_recoveries(0);
    spec.mutable_mesh()->set_min_workers(min_workers);
    spec.mutable_mesh()->set_max_workers(max_workers);
    return spec;
  }

  absl::StatusOr<v1::Job> Create(const v1::JobSpec& spec, const std::string& request_id = "") {
    v1::CreateJobRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    return coordinator_.CreateJob(request);
  }
  v1::Job Get(const std::string& name) {
    const auto response = coordinator_.GetJob(name);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->job() : v1::Job();
  }

  std::vector<v1::Incident> IncidentsOf(const std::string& job) {
    v1::ListIncidentsRequest request;
    request.set_job(job);
    const auto response = coordinator_.ListIncidents(request);
    EXPECT_TRUE(response.ok()) << response.status();
    if (!response.ok()) return {};
    return {response->incidents().begin(), response->incidents().end()};
  }

  // `status`: where not null, takes the join's status, which otherwise must be OK.
  Member JoinHost(const std::string& host, int local_workers, const std::string& job,
                  absl::Status* status = nullptr, const std::string& program = "") {
    v1::AttendRequest request;
    v1::JoinHost* join = request.mutable_join_host();
    join->set_host_name(host);
    join->set_local_workers(local_workers);
    join->set_job(job);
    join->set_program(program);
    join->set_incarnation(host);
    join->set_pid(7);
    return Join(request, status);
  }
  Member JoinRank(const std::string& job, int64_t generation, int rank,
                  absl::Status* status = nullptr, const std::string& incarnation = "") {
    v1::AttendRequest request;
    v1::JoinRank* join = request.mutable_join_rank();
    join->set_job(job);
    join->set_generation(generation);
    join->set_rank(rank);
    join->set_incarnation(incarnation.empty() ? absl::StrCat("i", rank) : incarnation);
    join->set_pid(100 + rank);
    return Join(request, status);
  }
  Member Join(const v1::AttendRequest& request, absl::Status* status) {
    Member member;
    const absl::StatusOr<MemberId> id = coordinator_.Join(request, member.sink);
    if (status != nullptr) {
      *status = id.status();
    } else {
      EXPECT_TRUE(id.ok()) << id.status();
    }
    if (id.ok()) member.id = *id;
    return member;
  }

  void Ready(const Member& member, int64_t measured_bytes = 0, int64_t step = 0) {
    v1::AttendRequest request;
    request.mutable_rank_ready()->set_measured_bytes(measured_bytes);
    request.mutable_rank_ready()->set_step(step);
    EXPECT_TRUE(coordinator_.Receive(member.id, request).ok());
  }
  void Heartbeat(const Member& member) {
    v1::AttendRequest request;
    request.mutable_heartbeat();
    EXPECT_TRUE(coordinator_.Receive(member.id, request).ok());
  }
  void Leave(const Member& member, absl::StatusCode code = absl::StatusCode::kOk,
             const std::string& message = "", std::optional<int> blamed_rank = {}) {
    v1::AttendRequest request;
    request.mutable_leave()->set_code(static_cast<int>(code));
    request.mutable_leave()->set_message(message);
    if (blamed_rank.has_value()) request.mutable_leave()->set_blamed_rank(*blamed_rank);
    EXPECT_TRUE(coordinator_.Receive(member.id, request).ok());
  }
  void Broken(const Member& member, std::optional<int> blamed_rank,
              absl::StatusCode code = absl::StatusCode::kUnavailable,
              const std::string& message = "a peer is gone") {
    v1::AttendRequest request;
    request.mutable_broken()->set_code(static_cast<int>(code));
    request.mutable_broken()->set_message(message);
    if (blamed_rank.has_value()) request.mutable_broken()->set_blamed_rank(*blamed_rank);
    EXPECT_TRUE(coordinator_.Receive(member.id, request).ok());
  }
  // generation: the newest that the process was given; 0: the agent does not say.
  void WorkerExited(const Member& agent, int rank, int exit_code, int signal,
                    int64_t generation = 0) {
    v1::AttendRequest request;
    request.mutable_worker_exited()->set_generation(generation);
    request.mutable_worker_exited()->set_rank(rank);
    request.mutable_worker_exited()->set_exit_code(exit_code);
    request.mutable_worker_exited()->set_signal(signal);
    EXPECT_TRUE(coordinator_.Receive(agent.id, request).ok());
  }

  // Lets time pass as the ticker does; `alive` send heartbeats.
  void Pass(absl::Duration duration, const std::vector<Member>& alive = {}) {
    for (absl::Duration passed; passed < duration; passed += absl::Milliseconds(100)) {
      clock_.Advance(absl::Milliseconds(100));
      for (const Member& member : alive) Heartbeat(member);
      coordinator_.Tick();
    }
  }

  // Job "gpt" on host "node-a" with `workers` ranks, RUNNING.
  void StartGpt(int workers) {
    ASSERT_TRUE(Create(Spec("gpt", workers, workers)).ok());
    agent_ = JoinHost("node-a", workers, "gpt");
    for (int rank = 0; rank < workers; ++rank) ranks_.push_back(JoinRank("gpt", 1, rank));
    for (const Member& rank : ranks_) Ready(rank);
    ASSERT_EQ(Get("gpt").state(), v1::RUNNING);
  }

  SimulatedClock clock_;
  Coordinator coordinator_{{.clock = &clock_}};
  Member agent_;
  std::vector<Member> ranks_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_COORDINATOR_TEST_FIXTURE_H_
