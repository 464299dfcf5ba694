#include "worker/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/control_file.h"

namespace tessera {
namespace {

constexpr int kLengthSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr size_t kMaxNameLength = 200;  // the kernel's is 249

absl::Status CannotCreate(const std::string& name, int64_t bytes, int error) {
  const std::string message =
      absl::StrCat("memory file ", name, " of ", bytes,
                   " bytes: ", absl::ErrnoToStatus(error, "not created").message());
  switch (error) {
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

// 0, or errno. The kernel gives pages until the machine has none left and then kills a process, so
// what can never fit is not begun. Allocating a large file takes a while, and a signal ends the
// call without an effect.
int Allocate(int fd, int64_t bytes) {
  if (bytes == 0) return 0;
  if (bytes / sysconf(_SC_PAGESIZE) > sysconf(_SC_PHYS_PAGES)) return ENOMEM;
  while (fallocate(fd, 0, 0, bytes) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

MemoryMapping& MemoryMapping::operator=(MemoryMapping&& other) noexcept {
  if (this != &other) {
    Unmap();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void MemoryMapping::Unmap() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

absl::StatusOr<MemoryFile> MemoryFile::Create(absl::string_view name, int64_t bytes) {
  if (bytes < 0 || bytes > INT64_MAX - kPageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory file ", name, ": ", bytes, " bytes is no length"));
  }
  if (name.size() > kMaxNameLength) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory file ", name, ": the name has more than ", kMaxNameLength, " bytes"));
  }
  bytes = RoundUp(bytes, kPageBytes);
  const std::string terminated(name);
  UniqueFd fd(memfd_create(terminated.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return CannotCreate(terminated, bytes, errno);
  if (const int error = Allocate(fd.get(), bytes); error != 0) {
    return CannotCreate(terminated, bytes, error);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kLengthSeals | F_SEAL_SEAL) != 0) {
    return CannotCreate(terminated, bytes, errno);
  }
  return MemoryFile(std::move(fd), bytes);
}

absl::StatusOr<MemoryFile> MemoryFile::FromFd(UniqueFd fd) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kLengthSeals) != kLengthSeals) {
    return absl::InvalidArgumentError(
        "the descriptor is not a memory file whose length is sealed; it must come from the agent");
  }
  struct stat status;
  if (fstat(fd.get(), &status) != 0) return absl::ErrnoToStatus(errno, "memory file: fstat");
  return MemoryFile(std::move(fd), status.st_size);
}

absl::StatusOr<MemoryMapping> MemoryFile::Map() const {
  if (bytes_ == 0) return MemoryMapping();
  void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory file of ", bytes_, " bytes: ", absl::ErrnoToStatus(errno, "not mapped").message()));
  }
  return MemoryMapping(static_cast<char*>(data), bytes_);
}

}  // namespace tessera
