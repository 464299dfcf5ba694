// Where the ranks of a group learn the ids of their communicators: the group's first rank publishes
// them, the others wait for them. Ids are one generation's; they go when it ends.
//
//   rendezvous.Begin("gpt", /*generation=*/1, {{0, 1, 2, 3}});
//   TESSERA_RETURN_IF_ERROR(rendezvous.Fetch({"gpt", 1, 2, 0}, now, absl::Seconds(30), done));
//   TESSERA_RETURN_IF_ERROR(rendezvous.Publish({"gpt", 1, 0, 0}, ids));
//   for (const Rendezvous::Answer& answer : rendezvous.TakeAnswers()) answer.done(answer.ids);
//
// A Fetch that was taken is answered once: with the ids; at its deadline with DEADLINE_EXCEEDED; at
// the generation's end with ABORTED (GENERATION_ENDED); or with ABORTED when its rank asks again.
// The first two errors name the rank that did not publish. Whoever calls a method then takes the
// answers that have come due and passes them on.
//
// Who may speak for a rank (its incarnation) is not checked here but by Membership.
//
// Pure: no lock, log or I/O; the clock is the caller's; `done` is kept and given back, not called.
#ifndef TESSERA_COORDINATOR_RENDEZVOUS_H_
#define TESSERA_COORDINATOR_RENDEZVOUS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera {

class Rendezvous {
 public:
  using Done = std::function<void(const absl::StatusOr<v1::CommunicatorIds>&)>;
  struct Answer {
    Done done;
    absl::StatusOr<v1::CommunicatorIds> ids;
  };
  // Who speaks, and of which of the generation's groups.
  struct Caller {
    std::string job;
    int64_t generation = 0;
    int rank = 0;
    int group = 0;
  };

  // `groups`: the world ranks of each group; the first of a group publishes. An earlier generation
  // of the job has ended.
  void Begin(const std::string& job, int64_t generation, std::vector<std::vector<int>> groups);
  // Drops the job's ids. `why` goes into the message of those that still wait.
  void End(const std::string& job, absl::string_view why);

  // FAILED_PRECONDITION (STALE_GENERATION): not the generation that has begun. INVALID_ARGUMENT: no
  // such group; the caller is not its first rank; an id is empty or longer than kMaxIdBytes.
  // ALREADY_EXISTS (IDS_PUBLISHED): other ids were published; the same ones again are OK.
  absl::Status Publish(const Caller& caller, const v1::CommunicatorIds& ids);

  // OK: `done` will be in an answer. FAILED_PRECONDITION (STALE_GENERATION); INVALID_ARGUMENT: no
  // such group, or the caller is not in it.
  absl::Status Fetch(const Caller& caller, absl::Time now, absl::Duration timeout, Done done);

  // Ends the waits whose deadline has passed.
  void Expire(absl::Time now);

  // What has come due since the last call, in the order in which it did.
  std::vector<Answer> TakeAnswers();

  static constexpr size_t kMaxIdBytes = 1024;

 private:
  struct Waiter {
    absl::Time deadline;
    absl::Duration timeout;
    Done done;
  };
  struct Group {
    std::vector<int> ranks;
    std::optional<v1::CommunicatorIds> ids;
    std::map<int, Waiter> waiters;  // by rank
  };
  struct Generation {
    int64_t number = 0;
    std::vector<Group> groups;
  };

  absl::StatusOr<Group*> Find(const Caller& caller);
  void Give(Waiter& waiter, absl::StatusOr<v1::CommunicatorIds> ids);

  std::map<std::string, Generation> generations_;  // by job
  std::vector<Answer> answers_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_RENDEZVOUS_H_
