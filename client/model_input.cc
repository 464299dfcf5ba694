#include "client/model_input.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/job_input.h"
#include "common/errors.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "coordinator/model_import/hf_config.h"
#include "coordinator/model_import/safetensors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kOneFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

// `bytes` from `offset`, or what there is of them.
absl::StatusOr<std::string> ReadAt(const UniqueFd& file, const std::string& path, int64_t offset,
                                   int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = pread(file.get(), text.data() + filled, text.size() - filled,
                              static_cast<off_t>(offset) + static_cast<off_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return InvalidField(path, absl::StrCat("cannot be read: ", strerror(errno)));
    if (got == 0) break;  // it is short, or shrank meanwhile
    filled += static_cast<size_t>(got);
  }
  text.resize(filled);
  return text;
}

// The header alone; `name` is what messages call the file.
absl::StatusOr<SafetensorsFile> ReadHeader(const std::string& path, std::string name) {
  // Not blocking: a named pipe without a writer must not hang the command.
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return InvalidField(path, absl::StrCat("cannot be read: ", strerror(errno)));
  struct stat about = {};
  if (fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) {
    return InvalidField(path, "is not a regular file; give a safetensors file");
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string start, ReadAt(file, path, 0, kSafetensorsLengthBytes));
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, SafetensorsHeaderBytes(path, start, about.st_size));
  TESSERA_ASSIGN_OR_RETURN(std::string header, ReadAt(file, path, kSafetensorsLengthBytes, bytes));
  if (static_cast<int64_t>(header.size()) < bytes) {
    return InvalidField(path, "became shorter while it was read; try again");
  }
  return SafetensorsFile{
      .name = std::move(name), .header = std::move(header), .file_bytes = about.st_size};
}

// What of a folder is read.
absl::StatusOr<std::string> FileOf(const std::string& folder) {
  std::error_code error;
  for (const char* name : {kOneFile, kIndexFile}) {
    const fs::path path = fs::path(folder) / name;
    if (fs::exists(path, error)) return path.string();
  }
  std::vector<std::string> found;
  for (auto entry = fs::directory_iterator(folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") found.push_back(entry->path().string());
  }
  if (found.size() == 1) return found.front();
  return InvalidField(
      folder, absl::StrCat("has ", found.size(), " *.safetensors, and neither ", kOneFile, " nor ",
                           kIndexFile, "; name the file or the index"));
}

// "llama-8b" for llama-8b/model.safetensors and for llama-8b/.
std::string NameOf(const fs::path& file) {
  std::error_code error;
  const fs::path whole = fs::absolute(file, error).lexically_normal();
  return error ? file.stem().string() : whole.parent_path().filename().string();
}

absl::StatusOr<v1::ModelSpec> ReadIndexed(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  TESSERA_ASSIGN_OR_RETURN(const SafetensorsIndex index, ParseSafetensorsIndex(text, path));
  std::vector<SafetensorsFile> files;
  for (const std::string& name : index.Files()) {
    const fs::path beside = fs::path(path).parent_path() / name;
    TESSERA_ASSIGN_OR_RETURN(SafetensorsFile file, ReadHeader(beside.string(), name));
    files.push_back(std::move(file));
  }
  return ModelFromSafetensors(files, &index, NameOf(path));
}

}  // namespace

absl::StatusOr<v1::ModelSpec> ReadHfConfig(const std::string& path) {
  std::error_code error;
  const std::string file =
      fs::is_directory(path, error) ? (fs::path(path) / "config.json").string() : path;
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file));
  return ModelFromHfConfig(text, file);
}

absl::StatusOr<v1::ModelSpec> ReadSafetensors(const std::string& path) {
  std::error_code error;
  std::string file = path;
  if (fs::is_directory(path, error)) {
    TESSERA_ASSIGN_OR_RETURN(file, FileOf(path));
  }
  if (fs::path(file).extension() == ".json") return ReadIndexed(file);
  TESSERA_ASSIGN_OR_RETURN(const SafetensorsFile header, ReadHeader(file, file));
  return ModelFromSafetensors({header}, /*index=*/nullptr, NameOf(file));
}

absl::StatusOr<v1::ModelSpec> ReadModel(const ModelFiles& files) {
  if (!files.hf_config.empty()) return ReadHfConfig(files.hf_config);
  if (!files.safetensors.empty()) return ReadSafetensors(files.safetensors);
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(files.spec));
  return ParseModelSpec(text, files.spec);
}

}  // namespace tessera
