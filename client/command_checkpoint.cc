// tessera checkpoint: looks at checkpoints on disk, without a coordinator.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/command.h"
#include "common/checkpoint_reader.h"
#include "common/logging.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

struct CheckpointFlags {
  std::string directory;
  std::shared_ptr<ClientFlags> client = std::make_shared<ClientFlags>();
};

// `directory` is a checkpoint, or has some: then the newest whole one.
absl::StatusOr<CheckpointReader> OpenNewest(const std::string& directory) {
  TESSERA_ASSIGN_OR_RETURN(const FoundCheckpoints found, FindCheckpoints(directory));
  for (const std::string& torn : found.torn) LogInfo(absl::StrCat("skipped: ", torn));
  return CheckpointReader::Open(found.whole.empty() ? directory : found.whole.front().path);
}

std::string HashTable(const v1::CheckpointHashes& hashes) {
  std::string text = absl::StrCat("checkpoint ", hashes.path(), "\nstep ", hashes.step(), "\n");
  for (const v1::ParameterHash& parameter : hashes.parameters()) {
    absl::StrAppend(&text, parameter.sha256(), " ", parameter.fqn(), "\n");
  }
  return text;
}

absl::Status Hash(const CheckpointFlags& flags) {
  TESSERA_ASSIGN_OR_RETURN(CheckpointReader reader, OpenNewest(flags.directory));
  TESSERA_ASSIGN_OR_RETURN(const v1::CheckpointHashes hashes, HashCheckpoint(reader));
  if (!flags.client->json()) {
    Print(HashTable(hashes));
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string json, ToJson(hashes));
  Print(json);
  return absl::OkStatus();
}

}  // namespace

void AddCheckpointCommand(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand("checkpoint", "Looks at checkpoints on disk");
  command->require_subcommand(1);
  CLI::App* hash = command->add_subcommand(
      "hash", "SHA-256 of each parameter and its optimizer state, however they are cut");
  auto flags = std::make_shared<CheckpointFlags>();
  hash->add_option("directory", flags->directory,
                   "a checkpoint, or a job's directory: the newest whole one in it")
      ->required();
  AddOutputFlag(*hash, flags->client);
  hash->callback([=] {
    *chosen = [=] {
      const absl::Status status = Hash(*flags);
      return status.ok() ? 0 : Report(status);
    };
  });
}

}  // namespace tessera
