// What is asked of the messages of one Attend stream before the coordinator hears of them.
//
//   MemberCheck check({.caller = caller, .max_members = 1000}, &members);
//   TESSERA_RETURN_IF_ERROR(check.Check(first));    counts the member until `check` is destroyed
//
// Thread-safety: one thread at a time; `members` is shared by all.
#ifndef TESSERA_COORDINATOR_MEMBER_CHECK_H_
#define TESSERA_COORDINATOR_MEMBER_CHECK_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "common/caller.h"
#include "common/limits.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera {

class MemberCheck {
 public:
  struct Options {
    Caller caller = Anybody();
    int64_t max_members = 100'000;
    MessageLimits message_limits = {};
  };
  // `members`: how many there are. Not owned.
  MemberCheck(Options options, std::atomic<int64_t>* members)
      : options_(std::move(options)), members_(members) {
    ++*members_;
  }
  MemberCheck(MemberCheck&& other) noexcept
      : options_(other.options_), members_(std::exchange(other.members_, nullptr)) {}
  MemberCheck& operator=(MemberCheck&&) = delete;
  ~MemberCheck() {
    if (members_ != nullptr) --*members_;
  }

  // PERMISSION_DENIED (OTHER_JOB): a join to a job that is not the caller's. RESOURCE_EXHAUSTED:
  // max_members, and those of CheckMessage.
  absl::Status Check(const v1::AttendRequest& message) const;

 private:
  const Options options_;
  std::atomic<int64_t>* members_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_MEMBER_CHECK_H_
