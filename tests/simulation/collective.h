// Where the ranks of one generation meet: their control file and their links.
//
//   collective->Enter(rank, {.host = "h1", .process = ..., .broken = ...});
//   collective->Arrive(rank, [] { /* once, when all are there */ }, [] { /* goes on */ });
//
// A rank that dies, or leaves for another generation, breaks it for all others; so does one that
// does not come in time. Nobody meets across a host that is cut off.
#ifndef TESSERA_TESTS_SIMULATION_COLLECTIVE_H_
#define TESSERA_TESTS_SIMULATION_COLLECTIVE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/simulation/base.h"
#include "tests/simulation/server.h"

namespace tessera::simulation {

struct Vote {
  int64_t step = 0;
  int attempt = 0;
  bool operator==(const Vote& other) const {
    return step == other.step && attempt == other.attempt;
  }
};

// A rank's memory file.
struct RankMemory {
  bool filled = false;
  Vote votes[2];        // by the step's parity
  int64_t applied = 0;  // the newest step whose update it has
  uint64_t value = 0;   // what the updates made of it
  std::weak_ptr<Process> user;

  const Vote& newest() const { return votes[0].step > votes[1].step ? votes[0] : votes[1]; }
  const Vote& of(int64_t step) const { return votes[step % 2]; }
};

class Collective : public std::enable_shared_from_this<Collective> {
 public:
  struct Member {
    std::string host;
    std::weak_ptr<Process> process;
    // `rank` is gone (UNAVAILABLE), or did not come (DEADLINE_EXCEEDED).
    std::function<void(int rank, const absl::Status& why)> broken;
  };
  Collective(Base* base, Server* network, int world_size)
      : memories(world_size),
        base_(base),
        network_(network),
        members_(world_size),
        released_(world_size) {}

  void Enter(int rank, Member member);
  // timeout InfiniteDuration: waits for ever.
  void Arrive(int rank, absl::Duration timeout, Events::Action all_there, Events::Action released);
  // It has died or left before it was done.
  void Gone(int rank);
  // It is done: its end breaks nothing.
  void Done(int rank);

  int world_size() const { return static_cast<int>(members_.size()); }

  // What the ranks share. The one that votes last commits the step.
  std::vector<std::shared_ptr<RankMemory>> memories;
  int64_t step = 0;  // after which they go on
  int attempt = 0;   // of the next one
  int64_t voting = 0;
  int votes = 0;
  std::optional<int64_t> drain_step;  // the last one

 private:
  void TryComplete();
  void Expire(int64_t meeting);
  void Break(int rank, const absl::Status& why);
  absl::Time ApartUntil() const;

  Base* base_;
  Server* network_;
  std::vector<Member> members_;
  std::vector<Events::Action> released_;  // of those that wait
  Events::Action all_there_;
  int waiting_ = 0;
  int64_t meeting_ = 0;
  std::set<std::string> hosts_;
  std::optional<int> gone_;
  std::set<int> done_;
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_COLLECTIVE_H_
