// What the guard holds for all services, over a real server.
#include <atomic>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "coordinator/member_check.h"
#include "coordinator/services_test_fixture.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

const google::protobuf::ServiceDescriptor* Described(const std::string& service) {
  return google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service);
}

TEST(AccessRulesTest, EveryMethodHasOneRuleAndEveryRuleAMethod) {
  std::set<std::string> methods;
  for (const char* service :
       {"tessera.v1.JobService", "tessera.v1.PlanService", "tessera.v1.StatsService",
        "tessera.v1.MembershipService", "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection"}) {
    ASSERT_NE(Described(service), nullptr) << service;
    for (int i = 0; i < Described(service)->method_count(); ++i) {
      methods.insert(absl::StrCat("/", service, "/", Described(service)->method(i)->name()));
    }
  }
  std::set<std::string> rules;
  for (const AccessRule& rule : AccessRules()) {
    EXPECT_TRUE(rules.insert(rule.method).second) << rule.method;
    EXPECT_TRUE(rule.anyone || rule.roles != 0) << rule.method;
  }
  EXPECT_EQ(rules, methods);
}

// Whatever workers may call looks at the job that they are bound to.
TEST(AccessRulesTest, WhatWorkersCallIsBoundToTheirJob) {
  for (const AccessRule& rule : AccessRules()) {
    const bool of_workers = (rule.roles & static_cast<int>(Role::kWorker)) != 0;
    const bool in_stream = rule.method == "/tessera.v1.MembershipService/Attend";
    EXPECT_EQ(rule.job_field, of_workers && !in_stream ? "job" : "") << rule.method;
  }
}

class AccessTest : public ServicesTest {};

TEST_F(AccessTest, AMethodWithoutARuleCannotBeServed) {
  std::vector<AccessRule> rules = AccessRules();
  rules.erase(rules.begin());
  const absl::Status status =
      GrpcServer::Start({.rules = rules}, {{v1::JobService::service_full_name(), &job_service_}})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "/tessera.v1.JobService/CreateJob has no access rule; say who may call it");
}

// Members count while they attend, and what is too much is named.
TEST(MemberCheckTest, CountsMembersAndLooksAtJoins) {
  std::atomic<int64_t> members = 0;
  v1::AttendRequest join;
  join.mutable_join_host()->set_job("a");
  Caller bound{.authenticated = true};
  ASSERT_TRUE(AddIdentity("tessera://worker/a", &bound));
  {
    const MemberCheck first({.caller = bound, .max_members = 1}, &members);
    EXPECT_TRUE(first.Check(join).ok());
    const MemberCheck second({.caller = bound, .max_members = 1}, &members);
    EXPECT_EQ(second.Check(join).message(), "this would be member 2; the limit max_members is 1");
    v1::AttendRequest heartbeat;
    heartbeat.mutable_heartbeat();
    EXPECT_TRUE(second.Check(heartbeat).ok());
  }
  EXPECT_EQ(members, 0);

  const MemberCheck check({.caller = bound}, &members);
  join.mutable_join_host()->set_serving_job("b");
  EXPECT_EQ(Reason(check.Check(join)), "OTHER_JOB");
  join.mutable_join_host()->set_serving_job("a");
  EXPECT_TRUE(check.Check(join).ok());
  join.mutable_join_host()->clear_job();
  EXPECT_EQ(Reason(check.Check(join)), "OTHER_JOB");
  join.mutable_join_rank()->set_job("b");
  EXPECT_EQ(Reason(check.Check(join)), "OTHER_JOB");
  join.mutable_join_rank()->set_job("a");
  EXPECT_TRUE(check.Check(join).ok());
}

TEST_F(AccessTest, WhatIsNoMessageIsInvalid) {
  grpc::GenericStub stub(channel_);
  for (const char* method :
       {"/tessera.v1.JobService/GetJob", "/tessera.v1.MembershipService/ListUnits"}) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const grpc::Slice slice(std::string("\xff\xff\xff"));
    const grpc::ByteBuffer bytes(&slice, 1);
    auto call = stub.PrepareUnaryCall(&context, method, bytes, &queue);
    call->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->Finish(&answer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
  }
}

TEST_F(AccessTest, AMethodThatIsNotServedIsUnimplemented) {
  grpc::ClientContext context;
  v1::ListIncidentsRequest request;
  request.set_job("none");
  v1::ListIncidentsResponse response;
  const grpc::Status status = jobs_->ListIncidents(&context, request, &response);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

}  // namespace
}  // namespace tessera
