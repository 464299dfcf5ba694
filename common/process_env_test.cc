#include "common/process_env.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "common/errors.h"

namespace tessera {
namespace {

class ProcessEnvTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"TESSERA_AGENT_FD", "TESSERA_COORDINATOR", "TESSERA_TEST_FAULT",
          "TESSERA_TEST_GRADIENTS_DIR", "TESSERA_TLS_CERT_FILE", "TESSERA_TLS_KEY_FILE",
          "TESSERA_TLS_CA_FILE", "TESSERA_TLS_REQUIRE_CLIENT_CERT", "TESSERA_TOKEN_FILE",
          "TESSERA_DATA_ROOT", "TESSERA_CHECKPOINT_ROOT", "NO_COLOR"}) {
      unsetenv(name);
    }
  }
};

TEST_F(ProcessEnvTest, IsEmptyWhenNothingIsSet) {
  const absl::StatusOr<ProcessEnv> env = ProcessEnv::Read();
  ASSERT_TRUE(env.ok()) << env.status();
  EXPECT_FALSE(env->agent_fd.has_value());
  EXPECT_EQ(env->coordinator, "");
  EXPECT_EQ(env->test_fault, "");
  EXPECT_EQ(env->test_gradients_dir, "");
  EXPECT_FALSE(env->no_color);
}

TEST_F(ProcessEnvTest, ReadsEveryVariable) {
  setenv("TESSERA_AGENT_FD", "3", 1);
  setenv("TESSERA_COORDINATOR", "localhost:7000", 1);
  setenv("TESSERA_TEST_FAULT", "rank=1", 1);
  setenv("TESSERA_TEST_GRADIENTS_DIR", "/tmp/g", 1);
  setenv("PATH", "/bin:/usr/bin", 1);
  setenv("NO_COLOR", "1", 1);
  const absl::StatusOr<ProcessEnv> env = ProcessEnv::Read();
  ASSERT_TRUE(env.ok()) << env.status();
  EXPECT_EQ(env->agent_fd, 3);
  EXPECT_EQ(env->coordinator, "localhost:7000");
  EXPECT_EQ(env->test_fault, "rank=1");
  EXPECT_EQ(env->test_gradients_dir, "/tmp/g");
  EXPECT_EQ(env->path, "/bin:/usr/bin");
  EXPECT_TRUE(env->no_color);
}

TEST_F(ProcessEnvTest, ReadsWhatSecurityNeeds) {
  EXPECT_FALSE(ProcessEnv::Read()->tls.enabled());
  EXPECT_TRUE(ProcessEnv::Read()->tls.require_client_cert);
  setenv("TESSERA_TLS_CERT_FILE", "/c", 1);
  setenv("TESSERA_TLS_KEY_FILE", "/k", 1);
  setenv("TESSERA_TLS_CA_FILE", "/a", 1);
  setenv("TESSERA_TLS_REQUIRE_CLIENT_CERT", "false", 1);
  setenv("TESSERA_TOKEN_FILE", "/t", 1);
  setenv("TESSERA_DATA_ROOT", "/d", 1);
  setenv("TESSERA_CHECKPOINT_ROOT", "/p", 1);
  const absl::StatusOr<ProcessEnv> env = ProcessEnv::Read();
  ASSERT_TRUE(env.ok()) << env.status();
  EXPECT_EQ(env->tls.cert_file, "/c");
  EXPECT_EQ(env->tls.key_file, "/k");
  EXPECT_EQ(env->tls.ca_file, "/a");
  EXPECT_FALSE(env->tls.require_client_cert);
  EXPECT_EQ(env->token_file, "/t");
  EXPECT_EQ(env->data_root, "/d");
  EXPECT_EQ(env->checkpoint_root, "/p");
  setenv("TESSERA_TLS_REQUIRE_CLIENT_CERT", "maybe", 1);
  EXPECT_EQ(Field(ProcessEnv::Read().status()), "TESSERA_TLS_REQUIRE_CLIENT_CERT");
}

TEST_F(ProcessEnvTest, RefusesDescriptorsThatAreNone) {
  for (const char* value : {"-1", "three", "3x", "99999999999"}) {
    setenv("TESSERA_AGENT_FD", value, 1);
    const absl::StatusOr<ProcessEnv> env = ProcessEnv::Read();
    ASSERT_EQ(env.status().code(), absl::StatusCode::kInvalidArgument) << value;
    EXPECT_EQ(Field(env.status()), "TESSERA_AGENT_FD");
  }
}

}  // namespace
}  // namespace tessera
