// What a server takes of its callers. Pure but for CallerLimits's lock.
//
//   CallerLimits limits({.clock = Clock::Real()});
//   TESSERA_RETURN_IF_ERROR(limits.Begin("10.0.0.7", /*stream=*/false));
//   ...
//   limits.End("10.0.0.7", /*stream=*/false);
//
// Everything beyond a limit is RESOURCE_EXHAUSTED (LIMIT_EXCEEDED); the message and the ErrorInfo
// name the limit and its value.
#ifndef TESSERA_COMMON_LIMITS_H_
#define TESSERA_COMMON_LIMITS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "google/protobuf/message.h"

namespace tessera {

// `name` is the limit's flag without its dashes, where it has one.
absl::Status LimitExceeded(absl::string_view name, int64_t limit, absl::string_view what);

// "NAME=LIMIT" of such a status; "" of others.
std::string Limit(const absl::Status& status);

struct MessageLimits {
  // Of each field of strings or bytes, however deep.
  int64_t max_string_bytes = 64 << 10;
  // Of all models in a message together.
  int64_t max_modules = 1'000'000;
};

// RESOURCE_EXHAUSTED: `message` is beyond one of them; names the field by its path.
absl::Status CheckMessage(const google::protobuf::Message& message, const MessageLimits& limits);

// Requests and streams of each caller. Thread-safe.
class CallerLimits {
 public:
  struct Options {
    const Clock* clock = Clock::Real();
    // Unary calls that are not answered yet.
    int64_t max_requests_in_flight = 20'000;
    // Calls begun, streams included; a caller that was quiet may begin as many at once.
    int64_t max_requests_per_second = 50'000;
    int64_t max_streams = 50'000;
  };
  explicit CallerLimits(Options options) : options_(options) {}

  // OK: the caller calls End when the call is over.
  absl::Status Begin(const std::string& caller, bool stream);
  void End(const std::string& caller, bool stream);
  // How many callers it remembers: those with a call under way or a recent one.
  int64_t callers() const;

 private:
  struct Counts {
    int64_t in_flight = 0;
    int64_t streams = 0;
    double tokens = 0;
    absl::Time filled;
  };
  void ForgetIdleLocked(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  std::map<std::string, Counts> counts_ ABSL_GUARDED_BY(mutex_);
  size_t forget_at_ ABSL_GUARDED_BY(mutex_) = 1000;
};

}  // namespace tessera

#endif  // TESSERA_COMMON_LIMITS_H_
