#include "common/caller.h"

#include "common/errors.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

Caller Of(std::initializer_list<absl::string_view> uris) {
  Caller caller;
  caller.authenticated = true;
  for (const absl::string_view uri : uris) AddIdentity(uri, &caller);
  return caller;
}

TEST(CallerTest, EachIdentityGivesItsRole) {
  EXPECT_EQ(Of({"tessera://operator"}).roles, 1);
  EXPECT_EQ(Of({"tessera://viewer"}).roles, 2);
  EXPECT_EQ(Of({"tessera://worker"}).roles, 4);
  EXPECT_EQ(Of({"tessera://worker/gpt"}).roles, 4);
  EXPECT_EQ(Of({"tessera://viewer", "tessera://worker/gpt"}).roles, 6);
  EXPECT_EQ(Of({"tessera://viewer", "tessera://worker/gpt"}).name,
            "tessera://viewer tessera://worker/gpt");
}

TEST(CallerTest, WhatIsNoIdentityGivesNothing) {
  for (const absl::string_view uri :
       {"", "tessera://", "tessera://Operator", "tessera://operator/", "tessera://worker/",
        "tessera://worker/a/b", "tessera://worker/.hidden", "tessera://worker/a b",
        "tessera://workers", "https://operator", "TESSERA://operator"}) {
    Caller caller;
    EXPECT_FALSE(AddIdentity(uri, &caller)) << uri;
    EXPECT_EQ(caller.roles, 0) << uri;
    EXPECT_EQ(caller.name, "") << uri;
  }
  const std::string longest = "tessera://worker/" + std::string(63, 'x');
  Caller caller;
  EXPECT_TRUE(AddIdentity(longest, &caller));
  EXPECT_FALSE(AddIdentity(longest + "x", &caller));
}

TEST(CallerTest, AWorkerOfJobsTouchesTheseAlone) {
  const Caller bound = Of({"tessera://worker/a", "tessera://worker/b"});
  EXPECT_TRUE(bound.MayTouch("a"));
  EXPECT_TRUE(bound.MayTouch("b"));
  EXPECT_FALSE(bound.MayTouch("c"));
  EXPECT_FALSE(bound.MayTouch(""));
  for (const Caller& any :
       {Of({"tessera://worker"}), Of({"tessera://worker/a", "tessera://worker"}),
        Of({"tessera://worker", "tessera://worker/a"})}) {
    EXPECT_TRUE(any.MayTouch("c"));
    EXPECT_TRUE(any.MayTouch(""));
  }
  EXPECT_FALSE(Of({"tessera://operator"}).MayTouch("a"));
}

TEST(CallerTest, RulesSayWhoIsLetIn) {
  const AccessRule rule = {.method = "/s/M", .roles = 3};
  EXPECT_TRUE(Authorize(rule, Of({"tessera://operator"})).ok());
  EXPECT_TRUE(Authorize(rule, Of({"tessera://viewer"})).ok());
  EXPECT_TRUE(Authorize(rule, Anybody()).ok());

  const absl::Status worker = Authorize(rule, Of({"tessera://worker"}));
  EXPECT_EQ(worker.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Reason(worker), "ROLE_DENIED");
  EXPECT_EQ(worker.message(), "/s/M takes the role operator or viewer; this is tessera://worker");
  EXPECT_EQ(Reason(Authorize(rule, Of({}))), "NO_ROLE");
  const absl::Status nobody = Authorize(rule, Caller());
  EXPECT_EQ(nobody.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Reason(nobody), "NO_CREDENTIALS");
  EXPECT_TRUE(Authorize({.method = "/s/M", .anyone = true}, Caller()).ok());
}

TEST(CallerTest, AnotherJobIsDenied) {
  const AccessRule rule = {.method = "/s/M", .roles = 4, .job_field = "job"};
  const absl::Status other = AuthorizeJob(rule, Of({"tessera://worker/a"}), "b");
  EXPECT_EQ(other.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Reason(other), "OTHER_JOB");
  EXPECT_TRUE(AuthorizeJob(rule, Of({"tessera://worker/a"}), "a").ok());
  EXPECT_TRUE(AuthorizeJob(rule, Anybody(), "b").ok());
  // Being an operator too does not help where workers alone are let in.
  EXPECT_FALSE(AuthorizeJob(rule, Of({"tessera://worker/a", "tessera://operator"}), "b").ok());
}

}  // namespace
}  // namespace tessera
