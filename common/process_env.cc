#include "common/process_env.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "common/errors.h"

namespace tessera {
namespace {

std::string Get(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

absl::StatusOr<ProcessEnv> ProcessEnv::Read() {
  ProcessEnv env;
  if (const std::string text = Get("TESSERA_AGENT_FD"); !text.empty()) {
    int fd = -1;
    if (!absl::SimpleAtoi(text, &fd) || fd < 0) {
      return InvalidField("TESSERA_AGENT_FD",
                          "is not a file descriptor; the agent sets it, unset it elsewhere");
    }
    env.agent_fd = fd;
  }
  env.coordinator = Get("TESSERA_COORDINATOR");
  env.tls.cert_file = Get("TESSERA_TLS_CERT_FILE");
  env.tls.key_file = Get("TESSERA_TLS_KEY_FILE");
  env.tls.ca_file = Get("TESSERA_TLS_CA_FILE");
  if (const std::string text = Get("TESSERA_TLS_REQUIRE_CLIENT_CERT"); !text.empty()) {
    if (!absl::SimpleAtob(text, &env.tls.require_client_cert)) {
      return InvalidField("TESSERA_TLS_REQUIRE_CLIENT_CERT", "is neither true nor false");
    }
  }
  env.token_file = Get("TESSERA_TOKEN_FILE");
  env.data_root = Get("TESSERA_DATA_ROOT");
  env.checkpoint_root = Get("TESSERA_CHECKPOINT_ROOT");
  env.test_fault = Get("TESSERA_TEST_FAULT");
  env.test_gradients_dir = Get("TESSERA_TEST_GRADIENTS_DIR");
  env.nccl_library = Get("TESSERA_NCCL_LIBRARY");
  env.cuda_home = Get("CUDA_HOME");
  env.path = Get("PATH");
  env.no_color = !Get("NO_COLOR").empty();
  return env;
}

}  // namespace tessera
