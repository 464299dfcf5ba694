#include "common/token.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace tessera {
namespace {

constexpr char kField[] = "--token_file";
constexpr size_t kLeast = 16;
constexpr size_t kMost = 4096;
constexpr absl::Duration kFresh = absl::Seconds(1);

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    return InvalidField(kField, absl::StrCat(path, " cannot be read: ", strerror(errno)));
  }
  std::string text(2 * kMost, '\0');
  const ssize_t got = read(file.get(), text.data(), text.size());
  if (got < 0)
    return InvalidField(kField, absl::StrCat(path, " cannot be read: ", strerror(errno)));
  text.resize(static_cast<size_t>(got));
  std::string token(absl::StripAsciiWhitespace(text));
  const bool plain = std::all_of(token.begin(), token.end(),
                                 [](unsigned char c) { return absl::ascii_isgraph(c); });
  if (!plain || token.size() < kLeast || token.size() > kMost) {
    return InvalidField(kField, absl::StrCat(path,
                                             " holds no token: 16 to 4096 printable "
                                             "characters without spaces, e.g. of `openssl "
                                             "rand -hex 32`"));
  }
  return token;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const std::string& path,
                                                           const Clock* clock) {
  TESSERA_ASSIGN_OR_RETURN(std::string token, ReadToken(path));
  return std::unique_ptr<TokenFile>(new TokenFile(path, std::move(token), clock));
}

std::string TokenFile::Current() {
  const absl::Time now = clock_->Now();
  {
    MutexLock lock(mutex_);
    if (now - read_ < kFresh) return token_;
    read_ = now;
  }
  absl::StatusOr<std::string> token = ReadToken(path_);
  MutexLock lock(mutex_);
  if (token.ok()) token_ = *std::move(token);
  return token_;
}

bool TokenFile::Matches(absl::string_view shown) {
  const std::string token = Current();
  // Digests have one length, so that not even the token's own is told by the time this takes.
  unsigned char own[SHA256_DIGEST_LENGTH];
  unsigned char other[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), own);
  SHA256(reinterpret_cast<const unsigned char*>(shown.data()), shown.size(), other);
  return CRYPTO_memcmp(own, other, sizeof(own)) == 0;
}

}  // namespace tessera
