#include "common/grpc_status.h"

#include <string>

#include "absl/status/status.h"
#include "common/errors.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

google::rpc::Status Details(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  return details;
}

TEST(GrpcStatusTest, OkHasNoDetails) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).error_details().empty());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(GrpcStatusTest, ReasonTravelsAsErrorInfoAndComesBack) {
  const grpc::Status wire =
      ToGrpcStatus(WithReason(absl::FailedPreconditionError("old"), "STALE_GENERATION"));
  EXPECT_EQ(wire.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(wire.error_message(), "old");
  const google::rpc::Status details = Details(wire);
  EXPECT_EQ(details.code(), 9);
  EXPECT_EQ(details.message(), "old");
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "STALE_GENERATION");
  EXPECT_EQ(info.domain(), "tessera");

  const absl::Status back = FromGrpcStatus(wire);
  EXPECT_EQ(back.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(back.message(), "old");
  EXPECT_EQ(Reason(back), "STALE_GENERATION");
  EXPECT_EQ(Field(back), "");
}

TEST(GrpcStatusTest, WithoutReasonTheCodeIsTheReasonOnTheWireOnly) {
  const grpc::Status wire = ToGrpcStatus(absl::NotFoundError("no job"));
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(Details(wire).details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "NOT_FOUND");
  EXPECT_EQ(Reason(FromGrpcStatus(wire)), "");
}

TEST(GrpcStatusTest, FieldTravelsAsBadRequestAndComesBack) {
  const absl::Status status = InvalidField("mesh.min_workers", "is 0; give at least 1");
  const grpc::Status wire = ToGrpcStatus(status);
  const google::rpc::Status details = Details(wire);
  ASSERT_EQ(details.details_size(), 2);
  google::rpc::BadRequest bad_request;
  ASSERT_TRUE(details.details(1).UnpackTo(&bad_request));
  ASSERT_EQ(bad_request.field_violations_size(), 1);
  EXPECT_EQ(bad_request.field_violations(0).field(), "mesh.min_workers");
  EXPECT_EQ(bad_request.field_violations(0).description(), "is 0; give at least 1");

  const absl::Status back = FromGrpcStatus(wire);
  EXPECT_EQ(back.message(), "mesh.min_workers: is 0; give at least 1");
  EXPECT_EQ(Field(back), "mesh.min_workers");
}

TEST(GrpcStatusTest, UnavailableSaysWhenToRetry) {
  const google::rpc::Status details = Details(ToGrpcStatus(absl::UnavailableError("later")));
  ASSERT_EQ(details.details_size(), 2);
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(details.details(1).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
}

TEST(GrpcStatusTest, LongMessageIsCutSoThatTheStatusFitsInTheTrailers) {
  // 1,024 bytes at most; "é" is two bytes and is not cut in half.
  std::string message(1020, 'x');
  message += "ééééé";
  const grpc::Status wire = ToGrpcStatus(absl::InternalError(message));
  EXPECT_EQ(wire.error_message(), std::string(1020, 'x') + "...");
  EXPECT_LT(wire.error_details().size(), 4096u);
}

TEST(GrpcStatusTest, BrokenDetailsLeaveCodeAndMessage) {
  const absl::Status back =
      FromGrpcStatus(grpc::Status(grpc::StatusCode::ABORTED, "gone", "\x01not a message"));
  EXPECT_EQ(back.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(back.message(), "gone");
}

}  // namespace
}  // namespace tessera
