#include "tests/fakes/mortal_ranks.h"

#include <sys/eventfd.h>

#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "common/control_file.h"
#include "common/errors.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "tests/fakes/thread_ranks.h"
#include "worker/session_impl.h"

namespace tessera {
namespace {

// One life of the ranks: until the next death.
struct Generation {
  std::unique_ptr<char[], void (*)(char*)> control{
      nullptr, [](char* data) { operator delete(data, std::align_val_t(kPageBytes)); }};
  std::vector<UniqueFd> gone;  // by rank: readable once it is
  int ready = 0;               // ranks that can start
};

// What a thread of a rank knows of whether it lives.
struct Life {
  int rank = 0;
  bool doomed = false;  // its writer has died: it dies at its next fault point
  bool dead = false;
};

class World : public std::enable_shared_from_this<World> {
 public:
  World(std::unique_ptr<ThreadRanks> ranks, int world_size, std::vector<Death> deaths,
        std::function<absl::Status(Session&)> body, MortalOptions options)
      : ranks_(std::move(ranks)),
        world_size_(world_size),
        deaths_(std::move(deaths)),
        body_(std::move(body)),
        options_(std::move(options)),
        statuses_(world_size) {
    generations_.push_back(MakeGeneration());
  }

  std::vector<absl::Status> Run() {
    MutexLock lock(mutex_);
    for (int rank = 0; rank < world_size_; ++rank) Spawn(rank, 1);
    while (ended_ < world_size_) changed_.Wait(lock);
    if (options_.died != nullptr) *options_.died = died_;
    std::vector<absl::Status> statuses;
    for (const std::optional<absl::Status>& status : statuses_) statuses.push_back(*status);
    return statuses;
  }

  // A rank's passage of a fault point. Does not return to one that dies there.
  void Pass(Life& life, bool writer, absl::string_view point, int64_t step) {
    MutexLock lock(mutex_);
    if (life.dead) return Stand(lock);
    if (life.doomed && !writer) return Die(life, lock);
    const bool dies = Strikes(life.rank, point, step);
    if (!dies && !life.doomed) return;
    if (!writer) return Die(life, lock);
    // The whole process dies: its other thread does where it is seen to touch nothing more.
    life.doomed = true;
    Stand(lock);
  }

  int64_t generation() {
    MutexLock lock(mutex_);
    return Current();
  }

  int64_t AwaitAfter(int64_t generation) {
    MutexLock lock(mutex_);
    while (Current() <= generation) changed_.Wait(lock);
    return Current();
  }

  absl::Status Start(int64_t generation) {
    MutexLock lock(mutex_);
    ++generations_[generation - 1]->ready;
    changed_.NotifyAll();
    while (Current() <= generation && generations_[generation - 1]->ready < world_size_)
      changed_.Wait(lock);
    if (generations_[generation - 1]->ready == world_size_) return absl::OkStatus();
    return WithReason(absl::AbortedError("another rank died"), "GENERATION_ENDED");
  }

  ThreadRanks::Wiring WiringOf(int64_t generation) {
    MutexLock lock(mutex_);
    ThreadRanks::Wiring wiring;
    const Generation& now = *generations_[generation - 1];
    wiring.generation = generation;
    wiring.control = now.control.get();
    for (const UniqueFd& fd : now.gone) wiring.peer_fds.push_back(fd.get());
    return wiring;
  }

  ThreadRanks& ranks() { return *ranks_; }
  std::unique_ptr<MembershipClient> Membership(int rank) const {
    return options_.membership ? options_.membership(rank) : nullptr;
  }

 private:
  int64_t Current() const { return static_cast<int64_t>(generations_.size()); }

  std::unique_ptr<Generation> MakeGeneration() {
    auto made = std::make_unique<Generation>();
    const int64_t bytes = ranks_->control_bytes();
    made->control.reset(
        static_cast<char*>(operator new(static_cast<size_t>(bytes), std::align_val_t(kPageBytes))));
    std::memset(made->control.get(), 0, static_cast<size_t>(bytes));
    for (int rank = 0; rank < world_size_; ++rank) made->gone.emplace_back(eventfd(0, EFD_CLOEXEC));
    return made;
  }

  bool Strikes(int rank, absl::string_view point, int64_t step) {
    for (size_t i = 0; i < deaths_.size(); ++i) {
      const Death& death = deaths_[i];
      if (death.rank != rank || death.point != point || death.generation != Current() ||
          (death.step != 0 && death.step != step))
        continue;
      if (++passed_[i] == death.passage) return true;
    }
    return false;
  }

  // The next generation begins at once: no survivor is needed for it.
  void Die(Life& life, MutexLock& lock) {
    life.dead = true;
    ++died_;
    const int64_t generation = Current();
    generations_.push_back(MakeGeneration());
    eventfd_write(generations_[generation - 1]->gone[life.rank].get(), 1);
    // Who had done its work already does it again.
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank != life.rank && !statuses_[rank].has_value()) continue;
      if (statuses_[rank].has_value()) --ended_;
      statuses_[rank].reset();
      Spawn(rank, Current());
    }
    changed_.NotifyAll();
    Stand(lock);
  }

  void Stand(MutexLock& lock) {
    for (;;) never_.Wait(lock);
  }

  void Spawn(int rank, int64_t generation) {
    std::thread([self = shared_from_this(), rank, generation] {
      const absl::Status status = self->Live(rank, generation);
      MutexLock done(self->mutex_);
      self->statuses_[rank] = status;
      ++self->ended_;
      self->changed_.NotifyAll();
    }).detach();
  }

  absl::Status Live(int rank, int64_t generation);

  const std::unique_ptr<ThreadRanks> ranks_;
  const int world_size_;
  const std::vector<Death> deaths_;
  const std::function<absl::Status(Session&)> body_;
  const MortalOptions options_;
  Mutex mutex_;
  CondVar changed_, never_;
  std::vector<std::unique_ptr<Generation>> generations_;
  std::map<size_t, int> passed_;  // by death
  std::vector<std::optional<absl::Status>> statuses_;
  int ended_ = 0;
  int died_ = 0;
};

class ThreadGenerations final : public NextGeneration {
 public:
  ThreadGenerations(World* world, int rank, int64_t generation)
      : world_(world), rank_(rank), generation_(generation) {}
  void set_faults(FaultPoints* faults) { faults_ = faults; }

  absl::StatusOr<GenerationParts> Await() override {
    generation_ = world_->AwaitAfter(generation_);
    GenerationParts parts;
    parts.assignment = world_->ranks().AssignmentOf(rank_, generation_);
    parts.collectives =
        world_->ranks().MakeCollectives(rank_, world_->WiringOf(generation_), faults_);
    parts.membership = world_->Membership(rank_);
    return parts;
  }
  absl::Status Start(MembershipClient*, int64_t) override { return world_->Start(generation_); }
  void Interrupt(const absl::Status&) override {}

 private:
  World* const world_;
  const int rank_;
  int64_t generation_;
  FaultPoints* faults_ = nullptr;
};

absl::Status World::Live(int rank, int64_t generation) {
  auto life = std::make_shared<Life>();
  life->rank = rank;
  ThreadRanks::Wiring wiring = WiringOf(generation);
  wiring.recover = generation > 1;
  wiring.faults = std::make_unique<FaultPoints>(
      [this, life](absl::string_view point, int64_t step) { Pass(*life, false, point, step); });
  wiring.writer_faults = std::make_shared<FaultPoints>(
      [this, life](absl::string_view point, int64_t step) { Pass(*life, true, point, step); });
  auto next = std::make_shared<ThreadGenerations>(this, rank, generation);
  next->set_faults(wiring.faults.get());
  wiring.next = next;
  TESSERA_ASSIGN_OR_RETURN(SessionParts parts, ranks_->MakeParts(rank, std::move(wiring)));
  parts.membership = Membership(rank);
  auto impl = std::make_shared<SessionImpl>(std::move(parts));
  absl::Status status = generation > 1 ? impl->EnterRecovered() : impl->AgreeOnStart();
  Session session(impl);
  if (status.ok()) status = body_(session);
  if (!status.ok()) session.Abort(status);
  return status;
}

}  // namespace

std::vector<absl::Status> RunMortalRanks(const v1::JobSpec& job, int world_size,
                                         const std::vector<Death>& deaths,
                                         std::function<absl::Status(Session&)> body,
                                         MortalOptions options) {
  absl::StatusOr<std::unique_ptr<ThreadRanks>> ranks = ThreadRanks::Create(job, world_size, {});
  if (!ranks.ok()) return {ranks.status()};
  // The dead stand in it.
  static auto* const kept = new std::vector<std::shared_ptr<World>>();
  kept->push_back(std::make_shared<World>(*std::move(ranks), world_size, deaths, std::move(body),
                                          std::move(options)));
  return kept->back()->Run();
}

}  // namespace tessera
