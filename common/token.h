// The join token: a secret in a file, for clusters that have no certificates. It is in no flag, no
// log and no error.
//
//   TESSERA_ASSIGN_OR_RETURN(auto token, TokenFile::Open("/etc/tessera/token"));
//   if (!token->Matches(shown)) ...
//
// Thread-safe. A change of the file is seen within a second; a file that is no token then leaves
// the last one in force.
#ifndef TESSERA_COMMON_TOKEN_H_
#define TESSERA_COMMON_TOKEN_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace tessera {

class TokenFile {
 public:
  // INVALID_ARGUMENT (field --token_file): it cannot be read, or does not hold 16 to 4,096
  // characters that are printable and not spaces, with white space around them left out.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& path,
                                                         const Clock* clock = Clock::Real());

  // In constant time.
  bool Matches(absl::string_view shown);
  // For a client to send.
  std::string Current();

 private:
  TokenFile(std::string path, std::string token, const Clock* clock)
      : path_(std::move(path)), clock_(clock), token_(std::move(token)), read_(clock->Now()) {}

  const std::string path_;
  const Clock* const clock_;
  Mutex mutex_;
  std::string token_ ABSL_GUARDED_BY(mutex_);
  absl::Time read_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_COMMON_TOKEN_H_
