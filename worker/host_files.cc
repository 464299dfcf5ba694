#include "worker/host_files.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/host_memory.h"

namespace tessera {

int64_t HostFilesBytes(const v1::FormHost& form) {
  int64_t bytes = form.host_forecast().mapped_bytes();
  for (const v1::RankForecast& rank : form.rank_forecasts()) bytes += rank.mapped_bytes();
  return bytes;
}

absl::StatusOr<HostFiles> CreateHostFiles(const v1::FormHost& form) {
  TESSERA_RETURN_IF_ERROR(CheckHostMemory(HostFilesBytes(form), ReadHostMemory()));
  const v1::HostForecast& host = form.host_forecast();
  const std::pair<const char*, int64_t> shared[] = {
      {kUnshardedFileName, host.unsharded_file_bytes()},
      {kGradientFileName, host.gradient_file_bytes()},
      {kControlFileName, host.control_file_bytes()},
  };
  HostFiles files;
  for (const auto& [name, bytes] : shared) {
    TESSERA_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::Create(name, bytes));
    files.shared.push_back(std::move(file));
  }
  for (const v1::RankForecast& rank : form.rank_forecasts()) {
    const std::string name = absl::StrCat(kRankFilePrefix, rank.rank());
    TESSERA_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::Create(name, rank.mapped_bytes()));
    files.ranks.push_back(std::move(file));
  }
  return files;
}

}  // namespace tessera
