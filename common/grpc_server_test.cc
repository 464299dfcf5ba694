// The guard before what every server has: health and reflection.
#include "common/grpc_server.h"

#include <fstream>
#include <memory>
#include <string>

#include "common/errors.h"
#include "common/grpc_status.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using grpc::reflection::v1alpha::ServerReflection;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

constexpr char kReflection[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

std::vector<AccessRule> Rules() {
  return {{.method = "/grpc.health.v1.Health/Check", .anyone = true},
          {.method = "/grpc.health.v1.Health/Watch", .roles = static_cast<int>(Role::kViewer)},
          {.method = kReflection, .roles = static_cast<int>(Role::kViewer)}};
}

class GrpcServerTest : public testing::Test {
 protected:
  GrpcServerTest() {
    std::ofstream(token_file_) << "243f6a8885a308d3";
    authenticator_ = *Authenticator::Create({.token_file = token_file_});
  }

  void Start(GrpcServer::Options options) {
    options.rules = Rules();
    auto server = GrpcServer::Start(std::move(options), {});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
  }

  absl::Status Check(const std::string& service, HealthCheckResponse* response) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(service);
    return FromGrpcStatus(Health::NewStub(channel_)->Check(&context, request, response));
  }

  // One question; `token` "": none is shown.
  absl::Status Reflect(const ServerReflectionRequest& request, const std::string& token,
                       ServerReflectionResponse* response) {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    auto stub = ServerReflection::NewStub(channel_);
    auto stream = stub->ServerReflectionInfo(&context);
    stream->Write(request);
    stream->WritesDone();
    while (stream->Read(response)) {
    }
    return FromGrpcStatus(stream->Finish());
  }

  const std::string token_file_ = testing::TempDir() + "/grpc_server_test.token";
  std::unique_ptr<Authenticator> authenticator_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(GrpcServerTest, RefusesUnaryServerStreamingAndBidiCallsWithTheirReason) {
  Start({.authenticator = authenticator_.get()});
  HealthCheckResponse state;
  EXPECT_TRUE(Check("", &state).ok());  // anyone
  EXPECT_EQ(state.status(), HealthCheckResponse::SERVING);

  ServerReflectionRequest list;
  list.set_list_services("*");
  ServerReflectionResponse services;
  const absl::Status nobody = Reflect(list, "", &services);
  EXPECT_EQ(nobody.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Reason(nobody), "NO_CREDENTIALS");
  EXPECT_EQ(Reason(Reflect(list, "343f6a8885a308d3", &services)), "WRONG_TOKEN");
  EXPECT_EQ(services.message_response_case(), ServerReflectionResponse::MESSAGE_RESPONSE_NOT_SET);

  grpc::ClientContext context;
  auto watch = Health::NewStub(channel_)->Watch(&context, {});
  EXPECT_FALSE(watch->Read(&state));
  EXPECT_EQ(Reason(FromGrpcStatus(watch->Finish())), "NO_CREDENTIALS");

  EXPECT_TRUE(Reflect(list, "243f6a8885a308d3", &services).ok());
  ASSERT_EQ(services.list_services_response().service_size(), 2);
  EXPECT_EQ(services.list_services_response().service(0).name(), "grpc.health.v1.Health");
}

TEST_F(GrpcServerTest, ReflectionAnswersWithFilesAndErrors) {
  Start({});
  ServerReflectionRequest request;
  ServerReflectionResponse response;
  request.set_file_containing_symbol("grpc.health.v1.Health");
  ASSERT_TRUE(Reflect(request, "", &response).ok());
  EXPECT_EQ(response.file_descriptor_response().file_descriptor_proto_size(), 1);
  request.set_file_by_filename("grpc/health/v1/health.proto");
  ASSERT_TRUE(Reflect(request, "", &response).ok());
  EXPECT_EQ(response.file_descriptor_response().file_descriptor_proto_size(), 1);
  request.set_file_containing_symbol("no.such.Thing");
  ASSERT_TRUE(Reflect(request, "", &response).ok());
  EXPECT_EQ(response.error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  ASSERT_TRUE(Reflect({}, "", &response).ok());
  EXPECT_EQ(response.error_response().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GrpcServerTest, HealthTellsWatchersAndEndsThem) {
  Start({});
  auto stub = Health::NewStub(channel_);
  grpc::ClientContext context;
  auto watch = stub->Watch(&context, {});
  HealthCheckRequest unknown;
  unknown.set_service("no.such.Service");
  grpc::ClientContext other;
  auto nothing = stub->Watch(&other, unknown);
  HealthCheckResponse state;
  ASSERT_TRUE(watch->Read(&state));
  EXPECT_EQ(state.status(), HealthCheckResponse::SERVING);
  ASSERT_TRUE(nothing->Read(&state));
  EXPECT_EQ(state.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  EXPECT_EQ(Check("no.such.Service", &state).code(), absl::StatusCode::kNotFound);

  server_->StopServing();
  ASSERT_TRUE(watch->Read(&state));
  EXPECT_EQ(state.status(), HealthCheckResponse::NOT_SERVING);
  server_->Shutdown(absl::Seconds(30));
  EXPECT_FALSE(watch->Read(&state));
  EXPECT_FALSE(nothing->Read(&state));
}

TEST_F(GrpcServerTest, LimitsAreNamedAndCallsAreCountedOff) {
  GrpcServer::Options options;
  options.max_message_bytes = 100;
  options.message_limits.max_string_bytes = 10;
  options.limits.max_requests_in_flight = 1;
  options.limits.max_streams = 1;
  Start(options);
  HealthCheckResponse state;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Check("", &state).ok()) << i;
  const absl::Status text = Check(std::string(11, 'x'), &state);
  EXPECT_EQ(text.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(text.message(), "service has 11 bytes; the limit max_string_bytes is 10");
  const absl::Status message = Check(std::string(101, 'x'), &state);
  EXPECT_EQ(message.message(),
            "a HealthCheckRequest of 103 bytes; the limit max_message_bytes is 100");

  grpc::ClientContext first;
  auto stub = Health::NewStub(channel_);
  auto watch = stub->Watch(&first, {});
  ASSERT_TRUE(watch->Read(&state));
  grpc::ClientContext second;
  auto more = stub->Watch(&second, {});
  EXPECT_FALSE(more->Read(&state));
  EXPECT_EQ(Reason(FromGrpcStatus(more->Finish())), "LIMIT_EXCEEDED");
}

TEST_F(GrpcServerTest, ATokenIsNotServedBeyondThisMachineInTheClear) {
  const absl::Status status = GrpcServer::Start({.listen = "0.0.0.0:0",
                                                 .allow_insecure = true,
                                                 .rules = Rules(),
                                                 .authenticator = authenticator_.get()},
                                                {})
                                  .status();
  EXPECT_EQ(Field(status), "--token_file");
}

}  // namespace
}  // namespace tessera
