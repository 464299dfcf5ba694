#include "common/safetensors_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kOneFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

// `bytes` from `offset`, or what there is of them. Returns how many; -1: errno says why.
int64_t ReadAt(int fd, int64_t offset, int64_t bytes, char* out) {
  int64_t filled = 0;
  while (filled < bytes) {
    const ssize_t got = pread(fd, out + filled, static_cast<size_t>(bytes - filled),
                              static_cast<off_t>(offset + filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;  // it is short, or shrank meanwhile
    filled += got;
  }
  return filled;
}

absl::Status CannotRead(const std::string& path) {
  return InvalidField(path, absl::StrCat("cannot be read: ", strerror(errno)));
}

absl::StatusOr<std::string> ReadText(int fd, const std::string& path, int64_t offset,
                                     int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  const int64_t got = ReadAt(fd, offset, bytes, text.data());
  if (got < 0) return CannotRead(path);
  text.resize(static_cast<size_t>(got));
  return text;
}

// Opens a regular file and says how long it is.
absl::StatusOr<UniqueFd> OpenRegular(const std::string& path, int64_t* file_bytes) {
  // Not blocking: a named pipe without a writer must not hang the caller.
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return CannotRead(path);
  struct stat about = {};
  if (fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) {
    return InvalidField(path, "is not a regular file; give a safetensors file");
  }
  *file_bytes = about.st_size;
  return file;
}

// The header alone; `name` is what messages call the file.
absl::StatusOr<SafetensorsFile> ReadHeader(const UniqueFd& file, const std::string& path,
                                           std::string name, int64_t file_bytes) {
  TESSERA_ASSIGN_OR_RETURN(const std::string start,
                           ReadText(file.get(), path, 0, kSafetensorsLengthBytes));
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, SafetensorsHeaderBytes(path, start, file_bytes));
  TESSERA_ASSIGN_OR_RETURN(std::string header,
                           ReadText(file.get(), path, kSafetensorsLengthBytes, bytes));
  if (static_cast<int64_t>(header.size()) < bytes) {
    return InvalidField(path, "became shorter while it was read; try again");
  }
  return SafetensorsFile{
      .name = std::move(name), .header = std::move(header), .file_bytes = file_bytes};
}

absl::StatusOr<SafetensorsFile> ReadHeaderOf(const std::string& path, std::string name) {
  int64_t file_bytes = 0;
  TESSERA_ASSIGN_OR_RETURN(const UniqueFd file, OpenRegular(path, &file_bytes));
  return ReadHeader(file, path, std::move(name), file_bytes);
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

}  // namespace

absl::StatusOr<SafetensorsFolder> ReadSafetensorsFolder(const std::string& path) {
  SafetensorsFolder folder;
  folder.file = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    TESSERA_ASSIGN_OR_RETURN(folder.file, FileOf(path));
  }
  if (fs::path(folder.file).extension() != ".json") {
    TESSERA_ASSIGN_OR_RETURN(SafetensorsFile file, ReadHeaderOf(folder.file, folder.file));
    folder.paths.push_back(folder.file);
    folder.files.push_back(std::move(file));
    return folder;
  }
  int64_t bytes = 0;
  TESSERA_ASSIGN_OR_RETURN(const UniqueFd index, OpenRegular(folder.file, &bytes));
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadText(index.get(), folder.file, 0, bytes));
  TESSERA_ASSIGN_OR_RETURN(folder.index, ParseSafetensorsIndex(text, folder.file));
  for (const std::string& name : folder.index->Files()) {
    const std::string beside = (fs::path(folder.file).parent_path() / name).string();
    TESSERA_ASSIGN_OR_RETURN(SafetensorsFile file, ReadHeaderOf(beside, name));
    folder.paths.push_back(beside);
    folder.files.push_back(std::move(file));
  }
  return folder;
}

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const std::string& path,
                                                          std::string name) {
  SafetensorsReader reader;
  reader.path_ = path;
  TESSERA_ASSIGN_OR_RETURN(reader.fd_, OpenRegular(path, &reader.file_bytes_));
  TESSERA_ASSIGN_OR_RETURN(const SafetensorsFile file,
                           ReadHeader(reader.fd_, path, std::move(name), reader.file_bytes_));
  TESSERA_ASSIGN_OR_RETURN(reader.tensors_, ReadSafetensorsHeader(file, kMaxSafetensorsTensors));
  TESSERA_RETURN_IF_ERROR(CheckSafetensorsData(file, reader.tensors_));
  reader.data_begin_ = kSafetensorsLengthBytes + static_cast<int64_t>(file.header.size());
  for (size_t i = 0; i < reader.tensors_.size(); ++i) reader.by_name_[reader.tensors_[i].name] = i;
  return reader;
}

const SafetensorsTensor* SafetensorsReader::Find(absl::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

absl::Status SafetensorsReader::Read(const SafetensorsTensor& tensor, int64_t offset, int64_t bytes,
                                     void* out) const {
  const int64_t got =
      ReadAt(fd_.get(), data_begin_ + tensor.begin + offset, bytes, static_cast<char*>(out));
  if (got == bytes) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      path_, ", tensor ", tensor.name, ": ",
      got < 0 ? absl::StrCat("cannot be read: ", strerror(errno)) : "became shorter meanwhile"));
}

}  // namespace tessera
