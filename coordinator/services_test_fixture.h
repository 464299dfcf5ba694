// All services over a real server, for tests.
#ifndef TESSERA_COORDINATOR_SERVICES_TEST_FIXTURE_H_
#define TESSERA_COORDINATOR_SERVICES_TEST_FIXTURE_H_

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/grpc_channel.h"
#include "common/grpc_server.h"
#include "common/grpc_status.h"
#include "common/simulated_clock.h"
#include "coordinator/access_rules.h"
#include "coordinator/coordinator.h"
#include "coordinator/job_service.h"
#include "coordinator/membership_service.h"
#include "coordinator/plan_service.h"
#include "coordinator/stats_service.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

namespace tessera {

// One Attend stream of a member, read in lockstep.
class Stream {
 public:
  Stream(v1::MembershipService::Stub* stub, const v1::AttendRequest& join)
      : stream_(stub->Attend(&context_)) {
    stream_->Write(join);
  }
  ~Stream() {
    context_.TryCancel();
    if (!finished_) stream_->Finish();
  }
  v1::AttendResponse Read() {
    v1::AttendResponse message;
    EXPECT_TRUE(stream_->Read(&message));
    return message;
  }
  void Write(const v1::AttendRequest& message) { EXPECT_TRUE(stream_->Write(message)); }
  absl::Status Finish() {
    v1::AttendResponse rest;
    while (stream_->Read(&rest)) {
    }
    finished_ = true;
    return FromGrpcStatus(stream_->Finish());
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttendRequest, v1::AttendResponse>> stream_;
  bool finished_ = false;
};

inline v1::AttendRequest HostJoin(const std::string& job, int local_workers) {
  v1::AttendRequest request;
  request.mutable_join_host()->set_host_name("node-a");
  request.mutable_join_host()->set_incarnation("agent");
  request.mutable_join_host()->set_local_workers(local_workers);
  request.mutable_join_host()->set_job(job);
  return request;
}

inline v1::AttendRequest RankJoin(const v1::Assignment& assignment) {
  v1::AttendRequest request;
  v1::JoinRank* join = request.mutable_join_rank();
  join->set_job(assignment.job());
  join->set_generation(assignment.generation());
  join->set_rank(assignment.rank());
  join->set_incarnation(absl::StrCat("i", assignment.rank()));
  join->set_pid(100 + assignment.rank());
  return request;
}

class ServicesTest : public ::testing::Test {
 protected:
  ServicesTest() {
    auto server =
        GrpcServer::Start({.rules = AccessRules()},
                          {{v1::JobService::service_full_name(), &job_service_},
                           {v1::PlanService::service_full_name(), &plan_service_},
                           {v1::StatsService::service_full_name(), &stats_service_},
                           {v1::MembershipService::service_full_name(), &membership_service_}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = MakeChannel(server_->address());
    jobs_ = v1::JobService::NewStub(channel_);
    plans_ = v1::PlanService::NewStub(channel_);
    stats_ = v1::StatsService::NewStub(channel_);
    members_ = v1::MembershipService::NewStub(channel_);
  }

  static v1::CreateJobRequest CreateRequest(const std::string& name, int workers) {
    v1::CreateJobRequest request;
    v1::JobSpec* spec = request.mutable_spec();
    spec->set_name(name);
    spec->mutable_model()->set_layers(1);
    spec->mutable_model()->set_width(8);
    spec->mutable_model()->set_heads(2);
    spec->mutable_model()->set_context(8);
    spec->mutable_mesh()->set_min_workers(workers);
    return request;
  }

  grpc::Status Create(const v1::CreateJobRequest& request) {
    grpc::ClientContext context;
    v1::CreateJobResponse response;
    return jobs_->CreateJob(&context, request, &response);
  }

  v1::GetJobResponse Get(const std::string& name) {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_name(name);
    v1::GetJobResponse response;
    EXPECT_TRUE(jobs_->GetJob(&context, request, &response).ok());
    return response;
  }

  // Any unary method of a service that has no stub here, by its wire format.
  std::string Call(const std::string& method, const std::string& request) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const grpc::Slice slice(request);
    const grpc::ByteBuffer bytes(&slice, 1);
    auto call = stub.PrepareUnaryCall(&context, method, bytes, &queue);
    call->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->Finish(&answer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    EXPECT_TRUE(status.ok()) << status.error_message();
    grpc::Slice whole;
    if (!answer.DumpToSingleSlice(&whole).ok()) return "";
    return std::string(reinterpret_cast<const char*>(whole.begin()), whole.size());
  }

  SimulatedClock clock_;
  Coordinator coordinator_{{.clock = &clock_}};
  JobService job_service_{&coordinator_};
  PlanService plan_service_{&coordinator_};
  StatsService stats_service_{&coordinator_};
  MembershipService membership_service_{&coordinator_};
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::PlanService::Stub> plans_;
  std::unique_ptr<v1::StatsService::Stub> stats_;
  std::unique_ptr<v1::MembershipService::Stub> members_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_SERVICES_TEST_FIXTURE_H_
