// All services over a real server: what a client on the wire sees.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/grpc_server.h"
#include "common/grpc_status.h"
#include "coordinator/job_service.h"
#include "coordinator/membership_service.h"
#include "coordinator/plan_service.h"
#include "coordinator/services_test_fixture.h"
#include "coordinator/stats_service.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST_F(ServicesTest, AJobRunsOverTheWire) {
  ASSERT_TRUE(Create(CreateRequest("gpt", 2)).ok());
  Stream agent(members_.get(), HostJoin("gpt", 2));
  EXPECT_EQ(agent.Read().welcome().heartbeat().seconds(), 1);
  const v1::FormHost form = agent.Read().form_host();
  ASSERT_EQ(form.assignments_size(), 2);
  EXPECT_EQ(form.layout().units_size(), 0);

  v1::ListUnitsRequest list;
  list.set_job("gpt");
  list.set_generation(form.generation());
  v1::ListUnitsResponse units;
  grpc::ClientContext list_context;
  ASSERT_TRUE(members_->ListUnits(&list_context, list, &units).ok());
  EXPECT_EQ(units.units_size(), 2);
  EXPECT_EQ(units.layouts(0).fqn(), "h.0");

  Stream rank_0(members_.get(), RankJoin(form.assignments(0)));
  Stream rank_1(members_.get(), RankJoin(form.assignments(1)));
  EXPECT_EQ(rank_0.Read().welcome().lease().seconds(), 5);
  EXPECT_TRUE(rank_1.Read().has_welcome());
  v1::AttendRequest ready;
  ready.mutable_rank_ready()->set_measured_bytes(4096);
  rank_0.Write(ready);
  rank_1.Write(ready);
  EXPECT_TRUE(rank_0.Read().has_start());
  EXPECT_TRUE(rank_1.Read().has_start());
  EXPECT_EQ(Get("gpt").job().state(), v1::RUNNING);

  grpc::ClientContext report_context;
  v1::ReportStatsRequest report;
  report.set_job("gpt");
  report.set_generation(1);
  report.set_incarnation("i0");
  report.set_step(1);
  report.add_progress()->set_step(1);
  v1::ReportStatsResponse reported;
  ASSERT_TRUE(members_->ReportStats(&report_context, report, &reported).ok());
  grpc::ClientContext stats_context;
  v1::GetStatsRequest get_stats;
  get_stats.set_job("gpt");
  v1::GetStatsResponse stats;
  ASSERT_TRUE(stats_->GetStats(&stats_context, get_stats, &stats).ok());
  EXPECT_EQ(stats.stats().ranks(1).pid(), 101);
  EXPECT_EQ(stats.stats().ranks(1).measured_bytes(), 4096);
  EXPECT_EQ(stats.stats().step(), 1);

  v1::AttendRequest leave;
  leave.mutable_leave();
  rank_0.Write(leave);
  EXPECT_EQ(rank_0.Finish(), absl::OkStatus());
  rank_1.Write(leave);
  EXPECT_EQ(rank_1.Finish(), absl::OkStatus());
  EXPECT_EQ(agent.Read().end().state(), v1::SUCCEEDED);
  agent.Write(leave);
  EXPECT_EQ(agent.Finish(), absl::OkStatus());
}

TEST_F(ServicesTest, WatchShowsWhatHappenedAndEndsWithTheJob) {
  ASSERT_TRUE(Create(CreateRequest("gpt", 2)).ok());
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_name("gpt");
  auto reader = jobs_->WatchJob(&context, request);
  v1::WatchJobResponse event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.job().state(), v1::FORMING);
  grpc::ClientContext cancel_context;
  v1::CancelJobRequest cancel;
  cancel.set_name("gpt");
  cancel.set_reason("enough");
  v1::CancelJobResponse cancelled;
  ASSERT_TRUE(jobs_->CancelJob(&cancel_context, cancel, &cancelled).ok());
  EXPECT_EQ(cancelled.job().state(), v1::CANCELLED);
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.job().state(), v1::CANCELLED);
  EXPECT_EQ(event.job().reason(), "enough");
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
}

// Reads `count` messages of a watch that begins with `token`, then breaks it off.
std::vector<v1::WatchJobResponse> ReadWatch(v1::JobService::Stub* jobs, const std::string& token,
                                            int count) {
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_name("gpt");
  request.set_resume_token(token);
  auto reader = jobs->WatchJob(&context, request);
  std::vector<v1::WatchJobResponse> messages(count);
  for (v1::WatchJobResponse& message : messages) EXPECT_TRUE(reader->Read(&message));
  context.TryCancel();
  reader->Finish();
  return messages;
}

TEST_F(ServicesTest, AWatchGoesOnAfterTheEventOfItsToken) {
  ASSERT_TRUE(Create(CreateRequest("gpt", 2)).ok());
  const auto first = ReadWatch(jobs_.get(), "", 1);
  EXPECT_EQ(first[0].job().state(), v1::FORMING);
  const std::string token = first[0].resume_token();
  ASSERT_NE(token, "");
  // That the stream is open is said before there is anything new.
  const auto open = ReadWatch(jobs_.get(), token, 1);
  EXPECT_EQ(open[0].event_case(), v1::WatchJobResponse::EVENT_NOT_SET);
  EXPECT_EQ(open[0].resume_token(), token);
  ASSERT_TRUE(coordinator_.CancelJob("gpt", "enough").ok());
  const auto rest = ReadWatch(jobs_.get(), token, 2);
  EXPECT_EQ(rest[0].event_case(), v1::WatchJobResponse::EVENT_NOT_SET);
  EXPECT_EQ(rest[1].job().state(), v1::CANCELLED);
  EXPECT_NE(rest[1].resume_token(), token);

  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_name("gpt");
  request.set_resume_token("nonsense");
  v1::WatchJobResponse event;
  auto reader = jobs_->WatchJob(&context, request);
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(Field(FromGrpcStatus(reader->Finish())), "resume_token");
}

TEST_F(ServicesTest, JobsAreListedInPages) {
  for (const char* name : {"a", "b"}) ASSERT_TRUE(Create(CreateRequest(name, 1)).ok());
  v1::ListJobsRequest request;
  request.set_page_size(1);
  v1::ListJobsResponse page;
  for (const char* name : {"b", "a"}) {
    grpc::ClientContext context;
    ASSERT_TRUE(jobs_->ListJobs(&context, request, &page).ok());
    ASSERT_EQ(page.jobs_size(), 1);
    EXPECT_EQ(page.jobs(0).name(), name);
    request.set_page_token(page.next_page_token());
  }
  EXPECT_EQ(request.page_token(), "");
  request.set_page_size(-1);
  grpc::ClientContext context;
  EXPECT_EQ(Field(FromGrpcStatus(jobs_->ListJobs(&context, request, &page))), "page_size");
}

TEST_F(ServicesTest, ADrainReachesTheRanks) {
  ASSERT_TRUE(Create(CreateRequest("gpt", 1)).ok());
  Stream agent(members_.get(), HostJoin("gpt", 1));
  agent.Read();
  const v1::FormHost form = agent.Read().form_host();
  Stream rank(members_.get(), RankJoin(form.assignments(0)));
  EXPECT_TRUE(rank.Read().has_welcome());
  v1::AttendRequest ready;
  ready.mutable_rank_ready();
  rank.Write(ready);
  EXPECT_TRUE(rank.Read().has_start());
  v1::DrainJobRequest request;
  v1::DrainJobResponse response;
  {
    grpc::ClientContext context;
    EXPECT_EQ(Field(FromGrpcStatus(jobs_->DrainJob(&context, request, &response))), "name");
  }
  request.set_name("gpt");
  grpc::ClientContext context;
  ASSERT_TRUE(jobs_->DrainJob(&context, request, &response).ok());
  EXPECT_TRUE(response.job().draining());
  EXPECT_TRUE(rank.Read().has_drain());
  v1::AttendRequest leave;
  leave.mutable_leave();
  rank.Write(leave);
  EXPECT_EQ(agent.Read().end().state(), v1::CANCELLED);
  EXPECT_EQ(Get("gpt").job().reason_code(), "DRAINED");
}

TEST_F(ServicesTest, ABrokenStreamOfTheAgentFailsTheJobNamingTheHost) {
  ASSERT_TRUE(Create(CreateRequest("gpt", 2)).ok());
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_name("gpt");
  auto reader = jobs_->WatchJob(&context, request);
  {
    Stream agent(members_.get(), HostJoin("gpt", 2));
    agent.Read();
    agent.Read();
  }  // cancelled: no leave
  v1::WatchJobResponse event;
  while (reader->Read(&event)) {
  }
  EXPECT_EQ(event.job().state(), v1::FAILED);
  EXPECT_EQ(event.job().reason(), "host node-a is lost: its agent (pid 0) is gone");
  EXPECT_FALSE(event.job().has_failed_rank());
}

TEST_F(ServicesTest, BadInputNamesItsField) {
  v1::CreateJobRequest request = CreateRequest("gpt", 2);
  request.mutable_spec()->mutable_mesh()->set_min_workers(0);
  const grpc::Status status = Create(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  google::rpc::BadRequest bad_request;
  ASSERT_EQ(details.details_size(), 2);
  ASSERT_TRUE(details.details(1).UnpackTo(&bad_request));
  EXPECT_EQ(bad_request.field_violations(0).field(), "mesh.min_workers");

  grpc::ClientContext context;
  v1::GetJobResponse response;
  EXPECT_EQ(Field(FromGrpcStatus(jobs_->GetJob(&context, v1::GetJobRequest(), &response))), "name");
}

TEST_F(ServicesTest, RefusedJoinsEndTheStreamWithTheReason) {
  v1::AttendRequest heartbeat;
  heartbeat.mutable_heartbeat();
  EXPECT_EQ(Field(Stream(members_.get(), heartbeat).Finish()), "message");
  v1::Assignment nowhere;
  nowhere.set_job("none");
  EXPECT_EQ(Stream(members_.get(), RankJoin(nowhere)).Finish().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Create(CreateRequest("gpt", 1)).ok());
  Stream first(members_.get(), HostJoin("gpt", 1));
  EXPECT_TRUE(first.Read().has_welcome());
  v1::AttendRequest other = HostJoin("gpt", 1);
  other.mutable_join_host()->set_incarnation("other");
  EXPECT_EQ(Reason(Stream(members_.get(), other).Finish()), "SECOND_HOST");
}

TEST_F(ServicesTest, UnitsArePagedAndUnknownJobsNotFound) {
  ASSERT_TRUE(Create(CreateRequest("gpt", 2)).ok());
  grpc::ClientContext context;
  v1::ListPlanUnitsRequest request;
  request.set_job("gpt");
  request.set_page_size(1);
  v1::ListPlanUnitsResponse page;
  ASSERT_TRUE(plans_->ListPlanUnits(&context, request, &page).ok());
  EXPECT_EQ(page.units_size(), 1);
  EXPECT_NE(page.next_page_token(), "");
  grpc::ClientContext unknown_context;
  v1::GetPlanRequest unknown;
  unknown.set_job("none");
  v1::GetPlanResponse plan;
  EXPECT_EQ(plans_->GetPlan(&unknown_context, unknown, &plan).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServicesTest, ExplainsAModuleOfAJobThatNeedNotExist) {
  v1::ExplainModuleRequest request;
  *request.mutable_spec() = CreateRequest("never-made", 2).spec();
  request.set_fqn("h.0.mlp");
  v1::ExplainModuleResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(plans_->ExplainModule(&context, request, &response).ok());
  EXPECT_EQ(response.fqn(), "h.0.mlp");
  EXPECT_EQ(response.class_name(), "MLP");
  EXPECT_FALSE(response.is_unit());
  EXPECT_EQ(response.unit_fqn(), "h.0");
  ASSERT_GT(response.reasons_size(), 1);
  EXPECT_EQ(response.reasons(response.reasons_size() - 1),
            "Its parameters are in unit \"h.0\", the nearest around it.");

  request.set_fqn("h.0.mlq");
  grpc::ClientContext unknown;
  EXPECT_EQ(Field(FromGrpcStatus(plans_->ExplainModule(&unknown, request, &response))), "fqn");
  request.mutable_spec()->mutable_wrap()->set_policy("best");
  grpc::ClientContext bad;
  EXPECT_EQ(Field(FromGrpcStatus(plans_->ExplainModule(&bad, request, &response))), "wrap.policy");
}

TEST_F(ServicesTest, HealthAnswersForTheServerAndEachService) {
  for (const std::string service : {"", "tessera.v1.JobService", "tessera.v1.PlanService",
                                    "tessera.v1.StatsService", "tessera.v1.MembershipService"}) {
    // HealthCheckRequest{service = 1}; HealthCheckResponse{status = 1}, SERVING = 1.
    std::string request;
    if (!service.empty())
      request = absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
    EXPECT_EQ(Call("/grpc.health.v1.Health/Check", request), std::string("\x08\x01")) << service;
  }
  server_->StopServing();
  EXPECT_EQ(Call("/grpc.health.v1.Health/Check", ""), std::string("\x08\x02"));
}

TEST_F(ServicesTest, ReflectionListsTheServices) {
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  // ServerReflectionRequest{list_services = 7: "*"}.
  const grpc::Slice slice(std::string("\x3a\x01*"));
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::Slice whole;
  ASSERT_TRUE(answer.DumpToSingleSlice(&whole).ok());
  const std::string text(reinterpret_cast<const char*>(whole.begin()), whole.size());
  for (const char* service : {"tessera.v1.JobService", "tessera.v1.PlanService",
                              "tessera.v1.StatsService", "tessera.v1.MembershipService"}) {
    EXPECT_NE(text.find(service), std::string::npos) << service;
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(status.ok());
}

TEST_F(ServicesTest, ShutdownEndsStreamsWithALastMessage) {
  ASSERT_TRUE(Create(CreateRequest("gpt", 1)).ok());
  Stream agent(members_.get(), HostJoin("gpt", 1));
  EXPECT_TRUE(agent.Read().has_welcome());
  EXPECT_TRUE(agent.Read().has_form_host());
  coordinator_.Shutdown();
  EXPECT_EQ(agent.Read().end().state(), v1::CANCELLED);
  EXPECT_EQ(agent.Finish().code(), absl::StatusCode::kUnavailable);
  server_->Shutdown(absl::Seconds(2));
}

TEST_F(ServicesTest, OnlyLoopbackWithoutInsecureAndOnlyFreePorts) {
  EXPECT_EQ(Field(GrpcServer::Start({.listen = "0.0.0.0:0"}, {}).status()), "--listen");
  EXPECT_EQ(Field(GrpcServer::Start({.listen = "nonsense"}, {}).status()), "--listen");
  EXPECT_EQ(Field(GrpcServer::Start({.listen = "127.0.0.1:99999"}, {}).status()), "--listen");
  EXPECT_EQ(Field(GrpcServer::Start({.listen = "::1:80"}, {}).status()), "--listen");
  EXPECT_TRUE(
      GrpcServer::Start({.listen = "0.0.0.0:0", .allow_insecure = true, .rules = AccessRules()}, {})
          .ok());
  EXPECT_EQ(
      GrpcServer::Start({.listen = server_->address(), .rules = AccessRules()}, {}).status().code(),
      absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tessera
