// The flags of TLS and of the join token, the same for every program:
//
//   CLI::App app(...);
//   AddSecurityFlags(app);
//   AddRootFlags(app);          programs that take jobs or open their files
//   app.parse(argc, argv);
//   ProcessEnv::Read();         has what the flags said
//
// A flag that is given sets its variable (common/process_env.h) in this process while the command
// line is parsed, before there are threads: so flags win over the environment, and what the
// program starts inherits them. The values are paths, never secrets.
#ifndef TESSERA_COMMON_SECURITY_FLAGS_H_
#define TESSERA_COMMON_SECURITY_FLAGS_H_

namespace CLI {
class App;
}  // namespace CLI

namespace tessera {

void AddSecurityFlags(CLI::App& app);
void AddRootFlags(CLI::App& app);

// For a program whose children talk to each other alone.
void ForgetSecurity();

}  // namespace tessera

#endif  // TESSERA_COMMON_SECURITY_FLAGS_H_
