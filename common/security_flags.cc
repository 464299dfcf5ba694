#include "common/security_flags.h"

#include <cstdlib>
#include <string>

#include "CLI/CLI.hpp"

namespace tessera {
namespace {

struct Flag {
  const char* name;
  const char* variable;
  const char* help;
};

constexpr Flag kSecurity[] = {
    {"--tls_cert_file", "TESSERA_TLS_CERT_FILE",
     "PEM file with this program's certificate; the --tls files go together and are read again "
     "when they change [TESSERA_TLS_CERT_FILE]"},
    {"--tls_key_file", "TESSERA_TLS_KEY_FILE", "PEM file with its key [TESSERA_TLS_KEY_FILE]"},
    {"--tls_ca_file", "TESSERA_TLS_CA_FILE",
     "PEM file with the CA that vouches for the other side [TESSERA_TLS_CA_FILE]"},
    {"--token_file", "TESSERA_TOKEN_FILE",
     "file with a secret that whoever calls has to know, where there are no certificates "
     "[TESSERA_TOKEN_FILE]"},
};

constexpr Flag kRoots[] = {
    {"--data_root", "TESSERA_DATA_ROOT",
     "folder in which jobs' data and imports have to be [anywhere]"},
    {"--checkpoint_root", "TESSERA_CHECKPOINT_ROOT",
     "folder in which jobs' checkpoints and exports have to be [anywhere]"},
};

void Add(CLI::App& app, const Flag& flag) {
  app.add_option_function<std::string>(
      flag.name,
      [variable = flag.variable](const std::string& value) {
        setenv(variable, value.c_str(), /*overwrite=*/1);
      },
      flag.help);
}

}  // namespace

void AddSecurityFlags(CLI::App& app) {
  for (const Flag& flag : kSecurity) Add(app, flag);
  app.add_flag_function(
      "--tls_require_client_cert",
      [](int64_t count) {
        setenv("TESSERA_TLS_REQUIRE_CLIENT_CERT", count > 0 ? "true" : "false", 1);
      },
      "with TLS: a server refuses, and a client shows, no certificate where this is false [true; "
      "TESSERA_TLS_REQUIRE_CLIENT_CERT]");
}

void AddRootFlags(CLI::App& app) {
  for (const Flag& flag : kRoots) Add(app, flag);
}

void ForgetSecurity() {
  for (const Flag& flag : kSecurity) unsetenv(flag.variable);
  unsetenv("TESSERA_TLS_REQUIRE_CLIENT_CERT");
}

}  // namespace tessera
