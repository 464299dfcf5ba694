// Every environment variable that Tessera's programs read.
//
//   TESSERA_ASSIGN_OR_RETURN(const ProcessEnv env, ProcessEnv::Read());
//   if (!env.agent_fd.has_value()) {
//     return absl::FailedPreconditionError("no agent started this process");
//   }
//
// Thread-safety: Read must not run while another thread calls setenv.
#ifndef TESSERA_COMMON_PROCESS_ENV_H_
#define TESSERA_COMMON_PROCESS_ENV_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/tls.h"

namespace tessera {

struct ProcessEnv {
  // TESSERA_AGENT_FD: set by the agent for the workers that it starts: the descriptor of the socket
  // over which a worker gets its rank and its memory files.
  std::optional<int> agent_fd;
  // TESSERA_COORDINATOR: HOST:PORT, for programs that were not given --coordinator. "": not set.
  std::string coordinator;
  // TESSERA_TLS_CERT_FILE, TESSERA_TLS_KEY_FILE, TESSERA_TLS_CA_FILE and
  // TESSERA_TLS_REQUIRE_CLIENT_CERT (true or false): as the flags --tls_... of each program, which
  // set them in their own process, so that what it starts inherits them (common/security_flags.h).
  TlsOptions tls;
  // TESSERA_TOKEN_FILE: the same for --token_file: where the join token is. "": there is none.
  std::string token_file;
  // TESSERA_DATA_ROOT, TESSERA_CHECKPOINT_ROOT: as --data_root and --checkpoint_root: the folders
  // that a job's files have to be in (common/file_roots.h). "": anywhere.
  std::string data_root;
  std::string checkpoint_root;
  // TESSERA_TEST_FAULT: for tests: where a worker is to stop, wait or die (worker/fault_points.h).
  // "": nowhere.
  std::string test_fault;
  // TESSERA_TEST_GRADIENTS_DIR: for tests: where a worker writes its first step's gradients. "":
  // nowhere.
  std::string test_gradients_dir;
  // TESSERA_NCCL_LIBRARY: the path of libnccl.so.2 where the loader doesn't find it. "": not set.
  std::string nccl_library;
  // CUDA_HOME: where CUDA is installed. "": not set.
  std::string cuda_home;
  // PATH: where programs that are named without a slash are looked for.
  std::string path;
  // NO_COLOR: set and not empty: no colours on a terminal (no-color.org).
  bool no_color = false;

  // The process's own. INVALID_ARGUMENT: a variable's value makes no sense; the message names the
  // variable.
  static absl::StatusOr<ProcessEnv> Read();
};

}  // namespace tessera

#endif  // TESSERA_COMMON_PROCESS_ENV_H_
