// A file descriptor with one owner, closed with it.
//
//   UniqueFd file(open(path, O_RDONLY | O_CLOEXEC));
//   if (!file.valid()) return absl::ErrnoToStatus(errno, path);
//
// Thread-safety: as an int.
#ifndef TESSERA_COMMON_UNIQUE_FD_H_
#define TESSERA_COMMON_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace tessera {

class UniqueFd {
 public:
  UniqueFd() = default;
  // Owns `fd`; a negative one is none.
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Gives the descriptor away without closing it.
  [[nodiscard]] int Release() { return std::exchange(fd_, -1); }
  // Closes what it owns and owns `fd` instead.
  void Reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace tessera

#endif  // TESSERA_COMMON_UNIQUE_FD_H_
