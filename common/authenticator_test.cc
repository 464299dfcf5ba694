#include "common/authenticator.h"

#include <fstream>
#include <string>

#include "common/errors.h"
#include "common/simulated_clock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr char kToken[] = "243f6a8885a308d3";

class AuthenticatorTest : public testing::Test {
 protected:
  void WriteToken(const std::string& text) { std::ofstream(path_) << text; }
  std::unique_ptr<Authenticator> WithToken() {
    WriteToken(kToken);
    return *Authenticator::Create({.token_file = path_});
  }

  const std::string path_ = testing::TempDir() + "/authenticator_test.token";
};

TEST_F(AuthenticatorTest, AServerThatAsksForNothingTakesAnybody) {
  const auto open = Authenticator::Create({});
  ASSERT_TRUE(open.ok());
  EXPECT_EQ((*open)->Identify({})->roles, kEveryRole);
}

TEST_F(AuthenticatorTest, ATokenIsTheServersOrNone) {
  const auto authenticator = WithToken();
  const Caller nobody = *authenticator->Identify({});
  EXPECT_FALSE(nobody.authenticated);
  EXPECT_EQ(nobody.roles, 0);
  const Caller holder = *authenticator->Identify({.authorization = "Bearer 243f6a8885a308d3"});
  EXPECT_EQ(holder.roles, kEveryRole);
  EXPECT_EQ(holder.name, "token");
  for (const char* wrong : {"", "Bearer ", "243f6a8885a308d3", "Bearer 243f6a8885a308d",
                            "Bearer 243f6a8885a308d33", "Bearer 343f6a8885a308d3"}) {
    const absl::Status status = authenticator->Identify({.authorization = wrong}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << wrong;
    EXPECT_EQ(Reason(status), "WRONG_TOKEN");
  }
}

TEST_F(AuthenticatorTest, ACertificateGivesItsRolesBesideAToken) {
  const auto authenticator = WithToken();
  const Caller viewer =
      *authenticator->Identify({.certificate = true, .uris = {"tessera://viewer"}});
  EXPECT_EQ(viewer.roles, static_cast<int>(Role::kViewer));
  EXPECT_TRUE(authenticator->Identify({.certificate = true})->authenticated);
  EXPECT_EQ(authenticator->Identify({.certificate = true})->roles, 0);
}

TEST_F(AuthenticatorTest, ATokenFileIsReadAgainAndABadOneLeavesTheLastInForce) {
  SimulatedClock clock;
  WriteToken(std::string("  ") + kToken + "\n");
  const auto token = TokenFile::Open(path_, &clock);
  ASSERT_TRUE(token.ok());
  EXPECT_TRUE((*token)->Matches(kToken));
  WriteToken("13198a2e03707344");
  clock.Advance(absl::Seconds(1));
  EXPECT_FALSE((*token)->Matches(kToken));
  EXPECT_TRUE((*token)->Matches("13198a2e03707344"));
  WriteToken("");
  clock.Advance(absl::Seconds(1));
  EXPECT_FALSE((*token)->Matches(""));
  EXPECT_TRUE((*token)->Matches("13198a2e03707344"));
}

TEST_F(AuthenticatorTest, WhatIsNoTokenIsRefusedAndNotQuoted) {
  for (const std::string& text : {std::string("243f6a8885a308d"), std::string("243f6a88 85a308d3"),
                                  std::string(4097, 'x'), std::string("243f6a8885a308d\x01")}) {
    WriteToken(text);
    const absl::Status status = TokenFile::Open(path_).status();
    EXPECT_EQ(Field(status), "--token_file");
    EXPECT_EQ(status.message().find("243f"), absl::string_view::npos);
  }
  EXPECT_EQ(Field(TokenFile::Open("/no/such").status()), "--token_file");
}

TEST_F(AuthenticatorTest, HalfOfTlsIsRefused) {
  EXPECT_EQ(Field(Authenticator::Create({.tls = {.cert_file = "a"}}).status()), "--tls_ca_file");
  EXPECT_EQ(Field(Authenticator::Create({.tls = {.ca_file = "a"}}).status()), "--tls_cert_file");
  EXPECT_EQ(Field(Authenticator::Create({.tls = {.cert_file = "a", .ca_file = "b"}}).status()),
            "--tls_key_file");
}

}  // namespace
}  // namespace tessera
