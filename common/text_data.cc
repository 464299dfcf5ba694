#include "common/text_data.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

constexpr char kField[] = "data";

absl::Status Unusable(const std::string& path, absl::string_view what) {
  return InvalidField(kField, absl::StrCat(path, " ", what));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return Unusable(path, "does not exist; give a text file that the workers can read");
  }
  if (error) return Unusable(path, absl::StrCat("cannot be read: ", error.message()));
  if (!std::filesystem::is_regular_file(status)) {
    return Unusable(path, "is not a file; give a text file");
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string text;
  if (in) {
    // By blocks: a file's stated length need not be what can be read of it.
    std::vector<char> block(1 << 20);
    while (in.read(block.data(), static_cast<std::streamsize>(block.size())), in.gcount() > 0) {
      text.append(block.data(), static_cast<size_t>(in.gcount()));
    }
  }
  if (!in.eof()) {
    return Unusable(path, absl::StrCat("cannot be read: ", std::strerror(errno == 0 ? EIO : errno),
                                       "; give a text file that the workers can read"));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadTextFolder(absl::string_view folder) {
  const std::string path(folder);
  std::error_code error;
  std::vector<std::string> names;
  std::filesystem::directory_iterator entry(path, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    // symlink_status: what the entry itself is, not what it points to.
    std::error_code gone;
    if (entry->symlink_status(gone).type() == std::filesystem::file_type::regular) {
      names.push_back(entry->path().filename().string());
    }
  }
  if (error) {
    return Unusable(
        path, absl::StrCat("cannot be listed: ", error.message(), "; set data to a text file"));
  }
  std::sort(names.begin(), names.end());  // std::string compares bytes as unsigned
  std::string text;
  for (const std::string& name : names) {
    TESSERA_ASSIGN_OR_RETURN(const std::string more, ReadFile(absl::StrCat(path, "/", name)));
    text += more;
  }
  return text;
}

absl::StatusOr<TextData> LoadText(absl::string_view path, int64_t global_batch, int64_t context) {
  const bool is_default = path.empty();
  const std::string name(is_default ? absl::string_view(kDefaultTextFolder) : path);
  absl::StatusOr<std::string> text = is_default ? ReadTextFolder(name) : ReadFile(name);
  if (!text.ok()) return text.status();

  const int64_t total = static_cast<int64_t>(text->size());
  if (total == 0) return Unusable(name, "is empty; give a text file");
  // Divisions, so that no product can overflow. A sequence needs its context and the byte that
  // follows.
  const int64_t sequences = total / (context + 1);
  if (sequences < global_batch) {
    return Unusable(name, absl::StrCat("has ", total, " bytes, fewer than one batch: ",
                                       global_batch, " sequences of ", context + 1,
                                       " bytes; give a longer text or lower global_batch"));
  }
  TextData data;
  const int64_t held_out = total / 10;
  if (held_out < context + 1) {
    return Unusable(name, absl::StrCat("has ", total, " bytes; the tenth that is held out needs ",
                                       context + 1, " bytes: give a longer text or lower context"));
  }
  data.held_out = text->substr(static_cast<size_t>(total - held_out));
  text->resize(static_cast<size_t>(total - held_out));
  data.train = *std::move(text);
  return data;
}

}  // namespace tessera
