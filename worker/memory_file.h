// Shared memory without a name: a memfd that lives as long as some process holds a descriptor or a
// mapping of it.
//
// The agent:
//   TESSERA_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::Create("tessera-unsharded", bytes));
//   ... file.fd() travels to the workers over their socket ...
// A worker:
//   TESSERA_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::FromFd(std::move(fd)));
//   TESSERA_ASSIGN_OR_RETURN(MemoryMapping memory, file.Map());
//
// A file has all its pages from the start, filled with zeros, so that no later write can fail for
// want of memory, and is sealed: nobody can change its length. /proc/PID/smaps lists a mapping as
// "/memfd:NAME (deleted)".
//
// Thread-safety: as a pointer. A mapping outlives its file.
#ifndef TESSERA_WORKER_MEMORY_FILE_H_
#define TESSERA_WORKER_MEMORY_FILE_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/unique_fd.h"

namespace tessera {

// Names of the files of a job. A rank's own file is kRankFilePrefix and the rank: "tessera-rank-0",
// ...
inline constexpr char kUnshardedFileName[] = "tessera-unsharded";
inline constexpr char kGradientFileName[] = "tessera-gradient";
inline constexpr char kControlFileName[] = "tessera-control";
inline constexpr char kRankFilePrefix[] = "tessera-rank-";

// A mapping of a whole file, readable and writable, shared with every other. Unmapped with its
// owner.
class MemoryMapping {
 public:
  MemoryMapping() = default;
  MemoryMapping(MemoryMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryMapping& operator=(MemoryMapping&& other) noexcept;
  ~MemoryMapping() { Unmap(); }

  // Aligned to 4,096; null where bytes() is 0.
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  friend class MemoryFile;
  MemoryMapping(char* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  void Unmap();

  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

class MemoryFile {
 public:
  // A new file of `bytes` rounded up to 4,096. Errors:
  //   INVALID_ARGUMENT    bytes is negative, or the name longer than 200 bytes.
  //   RESOURCE_EXHAUSTED  not so much memory or no descriptor is left; the message has the name and
  //                       the bytes.
  //   INTERNAL            the kernel has no sealed memory files.
  static absl::StatusOr<MemoryFile> Create(absl::string_view name, int64_t bytes);

  // A file that another process made. INVALID_ARGUMENT: not a memory file, or its length is not
  // sealed, so that touching it might one day be a SIGBUS.
  static absl::StatusOr<MemoryFile> FromFd(UniqueFd fd);

  int fd() const { return fd_.get(); }
  // A multiple of 4,096.
  int64_t bytes() const { return bytes_; }

  // RESOURCE_EXHAUSTED: no address space is left.
  absl::StatusOr<MemoryMapping> Map() const;

 private:
  MemoryFile(UniqueFd fd, int64_t bytes) : fd_(std::move(fd)), bytes_(bytes) {}

  UniqueFd fd_;
  int64_t bytes_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_MEMORY_FILE_H_
