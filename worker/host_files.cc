#include "worker/host_files.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/control_file.h"
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

absl::Status RenewControlFile(const v1::FormHost& form, HostFiles& files) {
  const v1::HostForecast& host = form.host_forecast();
  bool same = files.shared[0].bytes() == RoundUp(host.unsharded_file_bytes(), kPageBytes) &&
              files.shared[1].bytes() == RoundUp(host.gradient_file_bytes(), kPageBytes) &&
              static_cast<int>(files.ranks.size()) == form.rank_forecasts_size();
  for (int i = 0; same && i < form.rank_forecasts_size(); ++i)
    same = files.ranks[i].bytes() == RoundUp(form.rank_forecasts(i).mapped_bytes(), kPageBytes);
  if (!same) {
    return absl::InternalError(
        "the coordinator recovers this host with another layout than it has; is it of the same "
        "build as the agent?");
  }
  TESSERA_ASSIGN_OR_RETURN(files.shared[2],
                           MemoryFile::Create(kControlFileName, host.control_file_bytes()));
  return absl::OkStatus();
}

}  // namespace tessera
