#include "client/local_cluster.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/errors.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

constexpr absl::Duration kListenDeadline = absl::Seconds(15);
// Between SIGTERM and SIGKILL. Two of them and the patience of an interrupted run stay under five
// seconds.
constexpr absl::Duration kGrace = absl::Seconds(1);
constexpr char kCoordinator[] = "tessera-coordinator";
constexpr char kWorker[] = "tessera-worker";

}  // namespace

std::string OwnDirectory() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

absl::StatusOr<std::string> FindSiblingProgram(const std::string& directory,
                                               const std::string& neighbour,
                                               const std::string& name) {
  const std::filesystem::path own = directory;
  const std::filesystem::path beside = own / name;
  const std::filesystem::path built = (own / ".." / neighbour / name).lexically_normal();
  for (const std::filesystem::path& path : {beside, built}) {
    if (access(path.c_str(), X_OK) == 0) return path.string();
  }
  return absl::NotFoundError(absl::StrCat(name, " is neither at ", beside.string(), " nor at ",
                                          built.string(), "; build it or install it there"));
}

absl::StatusOr<LocalBinaries> FindLocalBinaries(const std::string& directory) {
  LocalBinaries binaries;
  TESSERA_ASSIGN_OR_RETURN(binaries.coordinator,
                           FindSiblingProgram(directory, "coordinator", kCoordinator));
  TESSERA_ASSIGN_OR_RETURN(binaries.worker, FindSiblingProgram(directory, "worker", kWorker));
  return binaries;
}

absl::StatusOr<std::string> ParseListeningLine(absl::string_view line) {
  absl::string_view address = line;
  if (!absl::ConsumePrefix(&address, "listening ") || !absl::StrContains(address, ":") ||
      absl::StrContains(address, " ")) {
    return absl::InternalError(absl::StrCat(
        "the coordinator's first line is \"", line,
        "\", not \"listening HOST:PORT\"; client and coordinator are of different builds"));
  }
  return std::string(address);
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(LocalBinaries binaries,
                                                                  int interrupt_fd) {
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(std::move(binaries)));
  TESSERA_ASSIGN_OR_RETURN(
      cluster->coordinator_,
      ChildProcess::Start(
          // Its only clients are this process and its agent.
          {cluster->binaries_.coordinator, "--listen=127.0.0.1:0", "--drain_delay=0s"},
          ChildProcess::Stdout::kPipe));
  absl::StatusOr<std::string> line =
      cluster->coordinator_->ReadLine(absl::Now() + kListenDeadline, interrupt_fd);
  if (absl::IsUnavailable(line.status())) {
    cluster->coordinator_->WaitUntil(absl::Now() + kGrace, interrupt_fd);
    return absl::UnavailableError(absl::StrCat("the coordinator ", cluster->coordinator_->Ending(),
                                               " before it listened; see its lines above"));
  }
  if (!line.ok()) return Annotate(line.status(), "the coordinator");
  TESSERA_ASSIGN_OR_RETURN(cluster->coordinator_address_, ParseListeningLine(*line));
  return cluster;
}

absl::Status LocalCluster::StartAgent(const std::string& job, int64_t local_workers,
                                      const std::vector<std::string>& program) {
  std::vector<std::string> argv = {
      binaries_.worker, absl::StrCat("--coordinator=", coordinator_address_),
      absl::StrCat("--local_workers=", local_workers), absl::StrCat("--job=", job)};
  if (!program.empty()) {
    argv.push_back("--");
    argv.insert(argv.end(), program.begin(), program.end());
  }
  TESSERA_ASSIGN_OR_RETURN(agent_, ChildProcess::Start(argv, ChildProcess::Stdout::kToStderr));
  return absl::OkStatus();
}

void LocalCluster::Stop(absl::Duration patience, int interrupt_fd) {
  if (agent_ != nullptr) {
    // It would wait for its coordinator to come back.
    const bool orphan = coordinator_->WaitUntil(absl::Now(), interrupt_fd);
    if (orphan || !agent_->WaitUntil(absl::Now() + patience, interrupt_fd)) agent_->Terminate();
    agent_->WaitUntil(absl::Now() + kGrace, interrupt_fd);
    agent_->KillGroup();
  }
  coordinator_->Terminate();
  coordinator_->WaitUntil(absl::Now() + kGrace, interrupt_fd);
  coordinator_->KillGroup();
}

}  // namespace tessera
